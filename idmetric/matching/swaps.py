"""Swaps: subjects that change places, or turn into each other, in the frames of a clip.

Two subjects that pass in front of each other are hidden for a while, and their regions cannot be told apart there. What
a track shows then does not count as a swap, unless they stay in each other's places for longer than one was hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from idmetric.matching.tracks import SAME_SPOT, overlaps

Array = NDArray[np.float64]
_COVERED = 0.5  # of a box that another one hides


@dataclass(frozen=True)
class Sighting:
    """Who is where in a frame.

    Attributes:
        tracks: the track of each region. boxes: of the regions (R, 4).
        region_of: subject -> the region in which it is found.
        further: subject -> all regions that count as it.
        is_cut: whether the frame begins a shot.
    """

    tracks: Sequence[int]
    boxes: Array
    region_of: Mapping[int, int]
    further: Mapping[int, Sequence[int]] = field(default_factory=dict)
    is_cut: bool = False

    def box_of(self, subject: int) -> Array | None:
        """The box of a subject, None if it is not found."""
        if subject not in self.region_of:
            return None
        box: Array = self.boxes[self.region_of[subject]]
        return box


@dataclass
class Encounter:
    """Two subjects over time.

    Attributes:
        boxes: theirs when both were last seen apart; empty before.
        hidden: number of frames since in which they could not be told apart.
    """

    boxes: dict[int, Array] = field(default_factory=dict)
    hidden: int = 0


def swaps(frames: Sequence[Sighting]) -> list[list[int]]:
    """The subjects that are swapped in each frame of a clip, ascending.

    That is so in the first frame that shows a subject in a track that showed another one before, and not in its own
    track as well; and after one subject hid the other, if it is in the other's place for more frames than that took.
    """
    last_subject: dict[int, int] = {}  # of each track
    encounters: dict[tuple[int, int], Encounter] = {}
    subjects: set[int] = set()
    swapped: list[set[int]] = [set() for _ in frames]
    for time, frame in enumerate(frames):
        if frame.is_cut:
            encounters.clear()
        subjects.update(frame.region_of)
        hidden = set()
        for pair in combinations(sorted(subjects), 2):
            encounter = encounters.setdefault(pair, Encounter())
            if _is_hidden(pair, encounter, frame):
                encounter.hidden += 1
                hidden.add(pair)
            elif _is_apart(pair, frame):
                if encounter.hidden:
                    swapped[time].update(_exchanged(pair, encounter, frames[time:]))
                    for subject in pair:
                        last_subject[frame.tracks[frame.region_of[subject]]] = subject
                encounters[pair] = Encounter({subject: frame.boxes[frame.region_of[subject]] for subject in pair})

        for subject, region in frame.region_of.items():
            track = frame.tracks[region]
            previous = last_subject.get(track, subject)
            if (min(subject, previous), max(subject, previous)) in hidden:
                continue
            own_regions = [number for number in frame.further.get(subject, ()) if number != region]
            is_twice = subject in [last_subject.get(frame.tracks[number]) for number in own_regions]
            if previous != subject and is_twice:
                continue
            if previous != subject:
                swapped[time].add(subject)
            last_subject[track] = subject
    return [sorted(of_frame) for of_frame in swapped]


def _is_apart(pair: tuple[int, int], frame: Sighting) -> bool:
    """Whether both are found, and neither's box hides the other's."""
    boxes = [frame.box_of(subject) for subject in pair]
    for box, partner in zip(boxes, boxes[::-1], strict=True):
        if box is None or partner is None or _covers(box, partner):
            return False
    return True


def _is_hidden(pair: tuple[int, int], encounter: Encounter, frame: Sighting) -> bool:
    """Whether one hides the other, now or since they were last seen apart."""
    if not encounter.boxes or _is_apart(pair, frame):
        return False
    if encounter.hidden:
        return True
    for subject, hidden in zip(pair, pair[::-1], strict=True):
        box = frame.box_of(subject)
        if box is not None and _covers(box, encounter.boxes[hidden]):
            return True
    return set(pair) <= set(frame.region_of)  # their boxes overlap


def _exchanged(pair: tuple[int, int], encounter: Encounter, later: Sequence[Sighting]) -> list[int]:
    """The subjects of a pair that are in the other's place from now on for longer than one was hidden."""
    exchanged = []
    for subject, partner in zip(pair, pair[::-1], strict=True):
        stays = 0
        for frame in later[: encounter.hidden + 1]:
            box = frame.box_of(subject)
            if box is not None and overlaps(box[None], encounter.boxes[partner])[0] > SAME_SPOT:
                stays += 1
        if stays > encounter.hidden:
            exchanged.append(subject)
    return exchanged


def _covers(box: Array, hidden: Array) -> bool:
    """Whether a box covers at least half of another one."""
    start = np.maximum(box[:2], hidden[:2])
    end = np.minimum(box[2:], hidden[2:])
    shared = (end - start).clip(0).prod()
    area = (hidden[2:] - hidden[:2]).prod()
    return bool(shared >= _COVERED * area)
