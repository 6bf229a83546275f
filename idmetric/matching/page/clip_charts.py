"""The chart of a clip on a page: its axes, a strip of its frames, and the frames before and after each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from idmetric.matching.changes import Border
from idmetric.pages.chart import Scale
from idmetric.pages.pictures import Thumbnail

FRAMES = 8  # in the strip of a clip
CHANGES = 12  # of a clip, with pictures


@dataclass(frozen=True)
class ShownChange:
    """A change in a clip.

    Attributes:
        text: what changes. subject: its number, for its color; -1 without one.
        border: the frames before and after it. before, after: their pictures, as addresses.
        before_text, after_text: below the pictures.
    """

    text: str
    subject: int
    border: Border
    before: str
    after: str
    before_text: str
    after_text: str

    @classmethod
    def of(
        cls, text: str, subject: int, border: Border, pictures: Mapping[str, Thumbnail], texts: tuple[str, str]
    ) -> ShownChange:
        """A change with the pictures of its two frames, which are given by name."""
        before = pictures[border.before.name].uri
        after = pictures[border.after.name].uri
        return cls(text, subject, border, before, after, *texts)


@dataclass(frozen=True)
class ClipChart:
    """The axes and the frames of a clip.

    Attributes:
        times: of its frames, in the table. worst: the worst one. frames: the ones of the strip.
        changes: in order of time.
    """

    clip: str
    times: list[int]
    worst: int
    x: Scale
    y: Scale
    frames: list[int]
    changes: list[ShownChange]

    @classmethod
    def of(
        cls,
        clip: str,
        times: list[int],
        worst: int,
        seconds: Sequence[float],
        distances: Sequence[float],
        changes: list[ShownChange],
    ) -> ClipChart:
        """Lay out a chart.

        Args:
            seconds: of the frames. distances: all that are drawn.
        """
        evenly_spaced = np.linspace(0, len(times) - 1, FRAMES).round().astype(int)
        strip = {times[index] for index in evenly_spaced}
        return cls(
            clip,
            times,
            worst,
            x=Scale.of("seconds", seconds, is_tight=True),
            y=Scale.of("distance", [0.0, *distances]),
            frames=sorted(strip | {worst}),
            changes=sorted(changes, key=lambda change: change.border.after.frame),
        )

    @property
    def pictured_changes(self) -> list[ShownChange]:
        """The first changes, which are shown with pictures."""
        return self.changes[:CHANGES]
