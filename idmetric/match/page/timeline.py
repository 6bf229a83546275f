"""The timeline of a clip: the distance of each subject by time, and small pictures of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from idmetric.match.page.chart import Scale
from idmetric.metric.scoring.records import Record

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
    def of(cls, clip: str, worst_first: list[int], rows_of: Sequence[Sequence[Record]]) -> Timeline:
        """Lay out the timeline of a clip, by its frames and the rows of all images."""
        times = sorted(worst_first)
        seconds = [rows_of[time][0]["seconds"] for time in times]
        distances = [0.0]
        for time in times:
            distances += [row["nearest"] for row in rows_of[time] if row["nearest"] is not None]
        evenly_spaced = np.linspace(0, len(times) - 1, _FRAMES).round().astype(int)
        strip = {times[index] for index in evenly_spaced}
        worst = worst_first[0]
        return cls(
            clip,
            times,
            worst,
            x=Scale.of("seconds", seconds, is_tight=True),
            y=Scale.of("distance", distances),
            frames=sorted(strip | {worst}),
        )
