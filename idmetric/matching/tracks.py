"""Over time: tracks of regions, distances from frame to frame, and how much the picture changes.

A clip that stands still is the most consistent one, so consistency is reported together with `Motion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageStat

from idmetric.matching.segments import zero_if_equal

Array = NDArray[np.float64]
STILL = 0.005  # frame differences below it are those of compression
CUT = 0.12  # frame differences above it are cuts
SAME_SPOT = 0.5  # overlap of boxes in consecutive frames that are one region, whatever it shows
_NOT_LINKED = 10.0  # above all costs of pairs that may be linked


def frame_difference(before: Any, after: Any) -> float:
    """Mean absolute difference of two frames, RGB images or pixels in [0, 1]; in 0..1, NaN for other sizes."""
    if isinstance(before, Image.Image) and isinstance(after, Image.Image):
        if before.size != after.size:
            return float("nan")
        difference = ImageChops.difference(before, after)
        mean_of_channels = ImageStat.Stat(difference).mean
        return float(np.mean(mean_of_channels)) / 255
    if getattr(before, "shape", None) != getattr(after, "shape", None):
        return float("nan")
    return float((before - after).detach().abs().mean())


@dataclass(frozen=True)
class Motion:
    """How much the frames of a clip change.

    Attributes:
        stillness: share of consecutive frames that differ by less than `STILL`, cuts left out; 1 = a still.
        flicker: 1 - the mean difference of consecutive frames, VBench's temporal_flickering if they are all of the
            video's frames; 1 = no change at all.
        cuts: number of differences above `CUT`.
    """

    stillness: float | None
    flicker: float | None
    cuts: int

    @classmethod
    def by_differences(cls, differences: Array) -> Motion:
        """The motion of a clip by the differences from each frame to the next; NaN is left out."""
        differences = differences[~np.isnan(differences)]
        within_shots = differences[differences <= CUT]
        stillness = None
        if len(within_shots):
            is_still = within_shots < STILL
            stillness = float(is_still.mean())
        flicker = None
        if len(differences):
            flicker = 1 - float(differences.mean())
        return cls(stillness, flicker, len(differences) - len(within_shots))


# Tracks


@dataclass
class Track:
    """A region over time: its last feature, box and frame."""

    feature: Array
    box: Array
    time: int


def linked(features: Sequence[Array], boxes: Sequence[Array], is_cut: Sequence[bool], limit: float) -> list[list[int]]:
    """Link the regions of a clip's frames to tracks.

    In each frame, the assignment (`scipy.optimize.linear_sum_assignment`) with the least sum of 1 - cos + 1 - overlap
    is taken: own distance of a region and the track's last feature, and intersection over union with its box in the
    frame before. A region is linked if it is within the limit, or where the track was. A cut ends all tracks.

    Args:
        features: of each frame (R, D), of unit length; NaN, which is like no other, where an encoder sees nothing.
        boxes: (R, 4). is_cut: from the frame before.
        limit: the largest distance within a track; NaN: any.

    Returns:
        The number of the track of each region of each frame.
    """
    from scipy.optimize import linear_sum_assignment

    tracks: list[Track] = []
    first_open = 0
    numbers: list[list[int]] = []
    for time, vectors in enumerate(features):
        if is_cut[time]:
            first_open = len(tracks)
        if len(vectors) == 0:
            numbers.append([])
            continue
        open_tracks = tracks[first_open:]
        cost = np.full((len(open_tracks), len(vectors)), np.nan)
        for row, track in enumerate(open_tracks):
            cosines = np.nan_to_num(vectors) @ np.nan_to_num(track.feature)
            distances = 1 - cosines
            overlap = np.zeros(len(vectors))
            if track.time == time - 1:
                overlap = overlaps(boxes[time], track.box)
            is_too_far = distances > limit  # False for a limit of NaN
            is_impossible = is_too_far & (overlap <= SAME_SPOT)
            cost[row] = distances + 1 - overlap + _NOT_LINKED * is_impossible

        frame_numbers = [-1] * len(vectors)
        for row, region in zip(*linear_sum_assignment(cost), strict=True):
            if cost[row, region] < _NOT_LINKED:
                frame_numbers[region] = first_open + row
        for region, number in enumerate(frame_numbers):
            track = Track(vectors[region], boxes[time][region], time)
            if number < 0:
                frame_numbers[region] = len(tracks)
                tracks.append(track)
            else:
                if np.isnan(track.feature).all():  # the encoder sees nothing here: what was last seen
                    track.feature = tracks[number].feature
                tracks[number] = track
        numbers.append(frame_numbers)
    return numbers


def overlaps(boxes: Array, box: Array) -> Array:
    """Intersection over union (R,) of boxes (R, 4) with one."""
    starts = np.maximum(boxes[:, :2], box[:2])
    ends = np.minimum(boxes[:, 2:], box[2:])
    sides = (ends - starts).clip(0)
    shared = sides.prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    area = (box[2:] - box[:2]).prod()
    overlap: Array = shared / (areas + area - shared)
    return overlap


def steps(features: Sequence[Array | None]) -> tuple[Array, Array]:
    """Distances 1 - cos (T,) of a subject in each frame to the first frame that shows it, and to the previous one.

    NaN in the first one, and in frames that do not show it.
    """
    to_first = np.full(len(features), np.nan)
    to_previous = np.full(len(features), np.nan)
    first: Array | None = None
    previous: Array | None = None
    for time, feature in enumerate(features):
        if feature is None:
            continue
        if first is None or previous is None:
            first = feature
        else:
            to_first[time] = 1 - feature @ first
            to_previous[time] = 1 - feature @ previous
        previous = feature
    return zero_if_equal(to_first), zero_if_equal(to_previous)


def reduced(values: Array, times: Sequence[str]) -> tuple[float | None, float | None, str | None]:
    """The mean of values, the worst (largest) one and its time; None without values."""
    if np.isnan(values).all():
        return None, None, None
    worst = int(np.nanargmax(values))
    return float(np.nanmean(values)), float(values[worst]), times[worst]
