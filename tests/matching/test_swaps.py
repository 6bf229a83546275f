"""Swaps of two subjects in films of boxes and features with known answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from idmetric.matching.assignment import assigned
from idmetric.matching.swaps import Sighting, swaps
from idmetric.matching.tracks import linked

ANN, REX = np.eye(4)[:2]
SIDE = 20.0
THRESHOLDS = [0.3, 0.3]
Region = tuple[np.ndarray, float]  # what it shows, and its left side


def sightings(frames: Sequence[Sequence[Region]], cuts: Sequence[int] = ()) -> list[Sighting]:
    """Tracks and subjects of frames, as `match` finds them."""
    features = [np.array([shown for shown, _ in frame]).reshape(-1, 4) for frame in frames]
    boxes = [np.array([[left, 0, left + SIDE, SIDE] for _, left in frame]).reshape(-1, 4) for frame in frames]
    is_cut = [time in cuts for time in range(len(frames))]
    tracks = linked(features, boxes, is_cut, max(THRESHOLDS))
    films = []
    for time, vectors in enumerate(features):
        result = assigned(1 - np.array([ANN, REX]) @ vectors.T, THRESHOLDS)
        region_of, further = {}, {}
        for subject, state in enumerate(result.states):
            if state != "missing":
                region_of[subject] = int(result.region[subject])
                further[subject] = np.flatnonzero(result.within[subject]).tolist()
        films.append(Sighting(tracks[time], boxes[time], region_of, further, is_cut[time]))
    return films


def noisy(feature: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    vector = feature + rng.normal(0, 0.05, 4)
    return vector / np.linalg.norm(vector)


def film(
    ann_at: Callable[[int], float], rex_at: Callable[[int], float], count: int, boxes: int, seed: int = 0
) -> list[list[Region]]:
    """Ann in front of Rex, who shows Ann's features, or has no box, where Ann covers half of him."""
    rng = np.random.default_rng(seed)
    frames = []
    for time in range(count):
        ann, rex = ann_at(time), rex_at(time)
        frame = [(noisy(ANN, rng), ann)]
        if abs(ann - rex) >= SIDE / 2:
            frame.append((noisy(REX, rng), rex))
        elif boxes == 2:
            frame.append((noisy(ANN, rng), rex))
        frames.append(frame)
    return frames


@pytest.mark.parametrize("boxes", [1, 2])
@pytest.mark.parametrize("speed", [2.0, 4.0, 7.0, 9.0])
@pytest.mark.parametrize("both", [False, True], ids=["one moves", "both move"])
@pytest.mark.parametrize("seed", range(5))
def test_a_subject_that_passes_in_front_of_another_is_not_swapped(
    boxes: int, speed: float, both: bool, seed: int
) -> None:
    count = int(200 / speed)
    frames = film(lambda t: speed * t, lambda t: 140 - (speed * t if both else 40), count, boxes, seed)
    hidden = sum(len(frame) < 2 or bool(frame[1][0] @ ANN > 0.5) for frame in frames)
    assert hidden >= 1
    assert swaps(sightings(frames)) == [[]] * count


@pytest.mark.parametrize("boxes", [1, 2])
@pytest.mark.parametrize(("stays", "swapped"), [(4, []), (5, [0, 1]), (30, [0, 1])])
def test_who_changed_places_behind_another_is_swapped_if_that_lasts(boxes: int, stays: int, swapped: list[int]) -> None:
    start, hidden = 6, 4

    def ann_at(time: int) -> float:
        return 0.0 if time < start else 60.0

    def rex_at(time: int) -> float:
        if time < start + hidden:
            return 60.0
        return 0.0

    frames = film(ann_at, rex_at, start + hidden + stays, boxes)
    expected: list[list[int]] = [[] for _ in frames]
    expected[start + hidden] = swapped
    assert swaps(sightings(frames)) == expected


def test_an_exchange_in_full_sight_is_swapped_in_its_frame() -> None:
    both, exchanged = [(ANN, 0.0), (REX, 60.0)], [(REX, 0.0), (ANN, 60.0)]
    assert swaps(sightings([both, both, exchanged, exchanged])) == [[], [], [0, 1], []]
    assert swaps(sightings([both, exchanged])) == [[], [0, 1]]
    assert swaps(sightings([both, exchanged], cuts=[1])) == [[], []]
    assert swaps(sightings([both, [], [(ANN, 0.0)], both])) == [[]] * 4


def test_a_subject_that_turns_into_another_is_swapped() -> None:
    assert swaps(sightings([[(ANN, 0.0)], [(REX, 1.0)], [(REX, 2.0)]])) == [[], [1], []]


def test_a_subject_that_is_there_twice_is_not_swapped() -> None:
    turned = np.array([0.8, 0, 0.6, 0])
    both, twice = [(ANN, 0.0), (REX, 60.0)], [(turned, 0.0), (ANN, 60.0)]
    frames = sightings([both, both, twice, twice])
    assert frames[2].region_of == {0: 1}  # the nearer one, in the place of the other subject
    assert swaps(frames) == [[]] * 4
