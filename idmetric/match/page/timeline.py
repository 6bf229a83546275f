"""The timeline of a clip: the distance of each subject by time, and small pictures of frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idmetric.match.page.chart import Scale

_STEPS = 1000  # of a line
_FRAMES = 8  # of the strip


@dataclass(frozen=True)
class Timeline:
    """The distances of a clip.

    Attributes:
        times: of its frames, in the table; worst: the worst one. frames: those of the strip.
        lines: of each subject, pieces between frames without regions; a piece has seconds and distances.
    """

    clip: str
    times: list[int]
    worst: int
    x: Scale
    y: Scale
    lines: list[list[list[list[float]]]]
    frames: list[int]

    @classmethod
    def of(cls, clip: str, worst_first: list[int], seconds: Sequence[float], nearest: NDArray[np.float64]) -> Timeline:
        """Lay out the timeline of a clip.

        Args:
            worst_first: its frames. seconds: of all frames of the table.
            nearest: distances (T, S), NaN without regions.
        """
        times = sorted(worst_first)
        clip_seconds = [seconds[time] for time in times]
        distances = nearest[times]
        evenly_spaced = np.linspace(0, len(times) - 1, _FRAMES).round().astype(int)
        strip = {times[index] for index in evenly_spaced}
        return cls(
            clip,
            times,
            worst_first[0],
            x=Scale.of("seconds", clip_seconds, is_tight=True),
            y=Scale.of("distance", [0.0, *distances[np.isfinite(distances)]]),
            lines=[_line(clip_seconds, of_subject) for of_subject in distances.T],
            frames=sorted(strip | {worst_first[0]}),
        )


def _line(seconds: Sequence[float], distances: NDArray[np.float64]) -> list[list[list[float]]]:
    """The pieces of a line; of a long clip, the largest distance of each few frames."""
    stride = math.ceil(len(seconds) / _STEPS)
    seconds = seconds[::stride]
    highest = np.fmax.reduceat(distances, range(0, len(distances), stride))
    points = np.column_stack([seconds, highest])
    is_gap = np.isnan(highest)
    pieces = np.split(points, np.flatnonzero(is_gap))
    return [piece[np.isfinite(piece[:, 1])].tolist() for piece in pieces]
