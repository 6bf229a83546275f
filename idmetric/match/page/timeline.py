"""The timeline of a clip: the distance of each subject by time, and small pictures of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idmetric.match.page.chart import Scale

_FRAMES = 8  # of the strip


@dataclass(frozen=True)
class Timeline:
    """The axes and the frames of a clip.

    Attributes:
        times: of its frames, in the table. worst: the worst one. frames: those of the strip.
    """

    clip: str
    times: list[int]
    worst: int
    x: Scale
    y: Scale
    frames: list[int]

    @classmethod
    def of(cls, clip: str, worst_first: list[int], seconds: Sequence[float], nearest: NDArray[np.float64]) -> Timeline:
        """Lay out the timeline of a clip.

        Args:
            worst_first: its frames. seconds: of all frames of the table.
            nearest: distances (T, S), NaN without regions.
        """
        times = sorted(worst_first)
        distances = nearest[times]
        x = Scale.of("seconds", [seconds[time] for time in times], is_tight=True)
        y = Scale.of("distance", [0.0, *distances[np.isfinite(distances)]])
        evenly_spaced = np.linspace(0, len(times) - 1, _FRAMES).round().astype(int)
        strip = {times[index] for index in evenly_spaced}
        worst = worst_first[0]
        return cls(clip, times, worst, x, y, frames=sorted(strip | {worst}))
