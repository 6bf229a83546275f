"""Tracks, distances from frame to frame, and motion, of arrays with known answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric.matching.tracks import CUT, STILL, Motion, frame_difference, linked, overlaps, reduced, steps

NAN = float("nan")
ANN, REX, LIKE_ANN = np.eye(3)[0], np.eye(3)[1], np.array([0.8, 0.6, 0.0])
LEFT, MIDDLE, RIGHT = ([0.0, 0, 10, 10], [20.0, 0, 30, 10], [40.0, 0, 50, 10])


def tracks(frames, limit=NAN, cuts=()):
    """Tracks of frames that are lists of (feature, box)."""
    features = [np.array([feature for feature, _ in frame]).reshape(-1, 3) for frame in frames]
    boxes = [np.array([box for _, box in frame], float).reshape(-1, 4) for frame in frames]
    return linked(features, boxes, [time in cuts for time in range(len(frames))], limit)


def test_a_region_that_stays_keeps_its_track_whatever_it_shows():
    frames = [[(ANN, LEFT), (REX, RIGHT)], [(REX, LEFT), (ANN, RIGHT)]]
    assert tracks(frames) == [[0, 1], [0, 1]]
    assert tracks(frames, limit=0.3) == [[0, 1], [0, 1]]


def test_a_region_that_moves_is_followed_by_its_features():
    assert tracks([[(ANN, LEFT), (REX, RIGHT)], [(REX, MIDDLE), (ANN, [60, 0, 70, 10])]]) == [[0, 1], [1, 0]]


def test_a_subject_that_was_missing_gets_its_track_back_and_a_stranger_gets_a_new_one():
    frames = [[(ANN, LEFT), (REX, RIGHT)], [(REX, RIGHT)], [], [(ANN, MIDDLE)], [(np.eye(3)[2], [80, 0, 90, 10])]]
    assert tracks(frames, limit=0.3) == [[0, 1], [1], [], [0], [2]]


def test_the_spot_of_a_track_that_was_lost_links_nothing():
    assert tracks([[(ANN, LEFT)], [], [(REX, LEFT)]], limit=0.3) == [[0], [], [1]]


def test_a_region_in_which_an_encoder_sees_nothing_is_linked_by_its_spot_and_keeps_the_last_feature():
    nothing = np.full(3, NAN)
    frames = [[(ANN, LEFT), (REX, RIGHT)], [(nothing, LEFT), (REX, RIGHT)], [(REX, LEFT), (ANN, MIDDLE)]]
    assert tracks(frames, limit=0.3) == [[0, 1], [0, 1], [1, 0]]
    assert tracks([[(ANN, LEFT)], [(nothing, MIDDLE)]], limit=0.3) == [[0], [1]]
    assert tracks([[(nothing, LEFT)], [(ANN, LEFT)], [(ANN, RIGHT)]], limit=0.3) == [[0], [0], [0]]


def test_a_cut_ends_all_tracks():
    frames = [[(ANN, LEFT), (REX, RIGHT)], [(REX, LEFT), (ANN, RIGHT)], [(REX, LEFT), (ANN, RIGHT)]]
    assert tracks(frames, cuts=[1]) == [[0, 1], [2, 3], [2, 3]]


def test_the_assignment_has_the_least_cost():
    rng = np.random.default_rng(0)
    for _ in range(20):
        vectors = rng.normal(size=(2, 4, 3))
        vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
        corners = rng.uniform(0, 5, (2, 4, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(2, 6, (2, 4, 2))], 2)
        _, numbers = linked(list(vectors), list(boxes), [False, False], NAN)

        costs = np.zeros((4, 4))
        for region, track in itertools.product(range(4), range(4)):
            distance = 1 - vectors[1, region] @ vectors[0, track]
            costs[region, track] = distance + 1 - slow_overlap(boxes[1, region], boxes[0, track])
        totals = [costs[range(4), order].sum() for order in itertools.permutations(range(4))]
        assert costs[range(4), numbers].sum() == pytest.approx(min(totals))


def slow_overlap(first, second):
    """Intersection over union, from the sides."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return shared / (sum(areas) - shared)


def test_overlaps_are_intersection_over_union():
    boxes = np.array([[0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6], [0, 0, 1, 4.0]])
    assert overlaps(boxes, boxes[0]) == pytest.approx([slow_overlap(box, boxes[0]) for box in boxes])


# From frame to frame


def test_steps_are_distances_to_the_first_and_the_previous_frame_that_shows_the_subject():
    to_first, to_previous = steps([None, ANN, LIKE_ANN, None, REX])
    assert to_first == pytest.approx([NAN, NAN, 0.2, NAN, 1.0], nan_ok=True)
    assert to_previous == pytest.approx([NAN, NAN, 0.2, NAN, 0.4], nan_ok=True)
    assert all(np.isnan(values).all() for values in steps([None, ANN]))


def test_equal_frames_are_at_0_and_not_below():
    features = np.random.default_rng(0).normal(size=(50, 48)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    assert min(1 - feature @ feature for feature in features) < 0
    for feature in features:
        to_first, to_previous = steps([feature, feature, np.full_like(feature, NAN)])
        assert to_first[1] == to_previous[1] == 0
        assert np.isnan(to_first[2])


def test_reduced_names_the_worst_time():
    assert reduced(np.array([0.1, NAN, 0.5, 0.3]), ["a", "b", "c", "d"]) == (pytest.approx(0.3), 0.5, "c")
    assert reduced(np.array([NAN]), ["a"]) == (None, None, None)


# Motion


def test_change_is_the_mean_difference_of_pixels():
    rng = np.random.default_rng(0)
    before, after = rng.integers(0, 256, (2, 8, 6, 3)).astype(np.uint8)
    expected = np.abs(before.astype(float) - after).mean() / 255
    assert frame_difference(Image.fromarray(before), Image.fromarray(after)) == pytest.approx(expected)
    pixels = [torch.from_numpy(image).permute(2, 0, 1) / 255 for image in (before, after)]
    assert frame_difference(*pixels) == pytest.approx(expected)
    assert np.isnan(frame_difference(Image.fromarray(before), Image.fromarray(after[:4])))
    assert np.isnan(frame_difference(pixels[0], pixels[1][:, :4]))


def test_motion_by_slow_counting():
    changes = [NAN, 0.0, STILL / 2, 0.02, CUT + 0.1, 0.03]
    motion = Motion.by_differences(np.array(changes))
    assert motion.cuts == 1
    assert motion.stillness == 2 / 4  # the cut is no motion
    assert motion.flicker == pytest.approx(1 - sum(changes[1:]) / 5)
    assert Motion.by_differences(np.array([NAN])) == Motion(None, None, 0)


def test_flicker_is_vbenchs_temporal_flickering():
    pictures = np.random.default_rng(0).integers(0, 256, (5, 8, 6, 3)).astype(np.uint8)
    images = [Image.fromarray(pixels) for pixels in pictures]
    changes = [frame_difference(before, after) for before, after in itertools.pairwise(images)]
    differences = [np.abs(before.astype(int) - after).mean() for before, after in itertools.pairwise(pictures)]
    expected = (255 - np.mean(differences)) / 255
    assert Motion.by_differences(np.array(changes)).flicker == pytest.approx(expected)
