"""Published reductions: worked values, and the papers' code written out slowly."""

import math

import numpy as np
import pytest
import scipy.optimize

from idmetric.matching import published

RIGHT = np.array([[0.80, 0.45], [0.42, 0.78]])
SWAPPED = RIGHT[:, ::-1]
MISSING = np.array([[0.80], [0.42]])
DOUBLED = np.array([[0.80, 0.79], [0.42, 0.41]])
BLENDED = np.array([[0.62], [0.60]])


def unit(angles):
    return np.stack([np.cos(angles), np.sin(angles)], 1)


@pytest.mark.parametrize("similarity", [RIGHT, SWAPPED], ids=["right", "swapped"])
def test_an_exchange_of_two_subjects_changes_no_number_of_one_image(similarity):
    assert published.best_region(similarity).mean() == pytest.approx(0.790)
    assert published.umo_reward(similarity) == pytest.approx(0.1775)
    assert published.id_confidence(similarity) == pytest.approx([0.4375, 0.4615], abs=1e-4)


def test_the_reward_is_higher_for_a_picture_with_a_missing_subject():
    assert published.umo_reward(MISSING) == pytest.approx(0.19)
    assert published.umo_reward(MISSING) > published.umo_reward(RIGHT)
    assert np.isnan(published.id_confidence(MISSING)).all()
    assert published.best_region(MISSING).mean() == pytest.approx(0.61)
    assert published.uno_distill([MISSING]) == pytest.approx([0.42])


def test_doubled_and_blended_subjects():
    assert published.best_region(DOUBLED).mean() == pytest.approx(0.61)
    assert published.umo_reward(DOUBLED) == pytest.approx(0, abs=1e-12)
    assert published.best_region(BLENDED).mean() == pytest.approx(0.61)
    assert published.umo_reward(BLENDED) == pytest.approx(0.01)


@pytest.mark.parametrize(("count", "reward"), [(1, 0.8), (2, 0.35), (3, 0.2), (4, 0.125)])
def test_the_reward_of_a_perfect_picture_falls_with_the_number_of_subjects(count, reward):
    similarity = np.where(np.eye(count, dtype=bool), 0.8, 0.1)
    assert published.umo_reward(similarity) == pytest.approx(reward)


def test_the_reward_without_regions_is_0():
    assert published.umo_reward(np.empty((2, 0))) == 0


@pytest.mark.parametrize(("found", "expected", "value"), [(1, 2, 60.65), (3, 2, 60.65), (0, 2, 36.79), (4, 2, 36.79)])
def test_occm(found, expected, value):
    assert published.occm([found], [expected]) == pytest.approx(value, abs=0.005)


def test_occm_leaves_out_shots_without_expected_subjects():
    assert published.occm([2, 5], [2, 0]) == pytest.approx(100)
    assert math.isnan(published.occm([5], [0]))


def test_copy_geo():
    assert published.copy_geo(0.6, 0.8, 0.7) == pytest.approx(0.3568, abs=5e-5)
    assert published.copy_geo(0.8, 0.6, 0.7) == pytest.approx(-0.3568, abs=5e-5)
    assert published.copy_geo(0.8, 0.6, 1.0) == 0


@pytest.mark.parametrize(("hits", "released"), [(1, 0.7), (8, 0.0875), (32, 0.0219)])
def test_nexus_as_released_falls_with_the_frames_that_show_the_subject(hits, released):
    frames = [np.array([[0.7]]) if k < hits else np.array([[np.nan]]) for k in range(32)]
    assert published.nexus(frames) == pytest.approx(released, abs=5e-5)
    assert published.nexus(frames, "corrected") == pytest.approx(0.7)


def test_msrvtt_counts_missing_subjects_as_0_unless_corrected():
    none = np.nan
    frames = [np.array([[0.8], [second]]) for second in (0.7, none, none, none)]
    assert published.msrvtt_subject(frames) == pytest.approx(0.4875)
    assert published.msrvtt_subject(frames, "corrected") == pytest.approx(0.78)


def test_vbench_of_a_hard_cut_a_still_and_a_drift():
    angle = math.acos(0.151)
    cut = unit(np.repeat([0, angle], 4))
    assert published.vbench_subject([cut]) == pytest.approx(0.697, abs=5e-4)
    assert (cut[1:] @ cut[0]).min() == pytest.approx(0.151)
    still = unit(np.zeros(4))
    assert published.vbench_subject([still]) == pytest.approx(1)


def test_vbench_pools_frames_as_released_and_averages_videos_corrected():
    still, moving = unit(np.zeros(4)), unit(np.linspace(0, 1.9, 8))
    frames = published.vbench_frames(moving)
    assert published.vbench_subject([still, moving]) == pytest.approx((3 + frames.sum()) / 10)
    assert published.vbench_subject([still, moving], "corrected") == pytest.approx((1 + frames.mean()) / 2)


def test_vbench_of_a_still_of_4_and_a_drift_of_8_frames():
    end = scipy.optimize.brentq(lambda angle: published.vbench_subject([unit(np.linspace(0, angle, 8))]) - 0.641, 1, 3)
    videos = [unit(np.zeros(4)), unit(np.linspace(0, end, 8))]
    assert published.vbench_subject(videos) == pytest.approx(0.749, abs=5e-4)
    assert published.vbench_subject(videos, "corrected") == pytest.approx(0.820, abs=6e-4)


def test_the_reward_where_nothing_was_compared_is_0():
    assert published.umo_reward(np.full((2, 3), np.nan)) == 0


def test_vbench_frames_against_a_loop():
    frames = unit(np.array([0, 0.3, 2.0, 2.9]))
    slow = []
    for k in range(1, len(frames)):
        previous = max(0.0, float(np.dot(frames[k], frames[k - 1])))
        first = max(0.0, float(np.dot(frames[k], frames[0])))
        slow.append((previous + first) / 2)
    assert published.vbench_frames(frames) == pytest.approx(slow)


def test_vbench_i2v_and_freeinit_against_loops():
    frames, image = unit(np.array([0.1, 0.3, 0.7])), unit(np.array([0.0]))[0]
    consecutive = [math.cos(0.2), math.cos(0.4)]
    expected = 0.4 * math.cos(0.1) + 0.3 * sum(consecutive) / 2 + 0.3 * min(consecutive)
    assert published.vbench_i2v(frames, frames @ image) == pytest.approx(expected)
    assert published.freeinit(frames) == pytest.approx((math.cos(0.2) + math.cos(0.6)) / 2)


def test_vbench_long_restarts_every_two_seconds():
    frames = unit(np.array([0, 0, 1.5, 1.5]))
    assert published.vbench_long([frames], [np.array([0.0, 1.0, 2.0, 3.0])]) == pytest.approx(1)
    assert published.vbench_subject([frames]) < 0.7


def test_psr_takes_the_first_region_as_released_and_the_most_confident_one_corrected():
    images, whole = [np.array([[0.3, 0.9], [np.nan, np.nan]])], [np.array([0.5, 0.2])]
    assert published.psr(images, whole) == pytest.approx((0.3 + 0.2) / 2)
    assert published.psr(images, whole, [np.array([0.4, 0.8])]) == pytest.approx((0.9 + 0.2) / 2)


def test_multiid_keeps_the_assigned_cells_and_leaves_out_outliers():
    assert published.multiid_similarities([RIGHT, MISSING]) == pytest.approx([0.79, 0.80])
    values = np.array([0.7, 0.71, 0.72, 0.73, -0.9])
    assert published.without_outliers(values) == pytest.approx(np.mean([0.7, 0.71, 0.72, 0.73]))


def test_vistory_cross_assigns_by_the_best_reference_and_scores_by_the_mean():
    similarity = np.array([[[0.9, 0.1], [0.5, 0.3]], [[0.2, 0.6], [0.1, 0.4]]])  # subject, reference, region
    assert published.vistory_cross([similarity]) == pytest.approx((0.7 + 0.5) / 2)


def test_vistory_forms_differ_in_images_without_the_subject():
    found = np.array([[[0.8]]])
    absent = np.full((1, 1, 0), np.nan)
    assert published.vistory_cross([found, absent]) == pytest.approx(0.8)
    assert published.vistory_cross([found, absent], "corrected") == pytest.approx(0.4)
    never = np.full((1, 1, 0), np.nan)
    assert published.vistory_cross([never]) == 0


def test_vistory_cross_is_of_the_characters_in_each_shot():
    """One character in each of two shots, with a bystander who is more like the character outside the cast."""
    shots = [np.array([[[0.9, 0.1]], [[0.2, 0.95]]]), np.array([[[0.1, 0.96]], [[0.97, 0.3]]])]
    of_casts = [shots[0][:1], shots[1][1:]]
    names = [("cat",), ("duck",)]
    assert published.vistory_cross(of_casts, "released", names) == pytest.approx((0.9 + 0.97) / 2)
    assert published.vistory_cross(of_casts, "corrected", names) == pytest.approx((0.9 + 0.97) / 2)
    assert published.vistory_cross(shots) == pytest.approx(((0.9 + 0.96) / 2 + (0.95 + 0.97) / 2) / 2)


def test_vistory_self():
    crops = unit(np.array([0, 0.2, 0.5]))
    expected = (math.cos(0.2) + math.cos(0.5) + math.cos(0.3)) / 3
    assert published.vistory_self([crops]) == pytest.approx(expected)
    assert published.vistory_self([crops[:1], crops[:0]]) == pytest.approx(0.5)
    assert math.isnan(published.vistory_self([crops[:1]], "corrected"))


def test_vistory_copy_paste():
    assert published.vistory_copy_paste(0.8, 0.8) == 0.5
    assert published.vistory_copy_paste(0.83, 0.8) == pytest.approx(math.exp(83) / (math.exp(83) + math.exp(80)))


def test_xverse_counts_a_subject_that_is_not_found_as_0():
    absent = np.array([[0.6], [np.nan]])
    assert published.xverse_ip([RIGHT, absent]) == pytest.approx(100 * (0.8 + 0.78 + 0.6 + 0) / 4)


def test_id_confidence_is_0_for_a_similarity_of_at_most_0_and_1_at_most():
    assert published.id_confidence(np.array([[-0.1, -0.2], [0.5, -0.5]])) == pytest.approx([0, 1])


def test_multiid_with_and_without_outliers():
    """Six alike images, an outlier, and one without regions, which is left out."""
    similar = [np.array([[0.8 + 0.01 * number, 0.1], [0.1, 0.8]]) for number in range(6)]
    outlier = np.array([[0.1, 0.0], [0.0, 0.1]])
    images = [*similar, outlier, np.empty((2, 0))]
    means = [0.8 + 0.005 * number for number in range(6)]
    assert published.multiid(images) == pytest.approx(np.mean(means))
    assert published.multiid(images, "corrected") == pytest.approx(np.mean([*means, 0.1]))
    assert math.isnan(published.multiid(images[-1:]))
