"""Charts of pages, drawn by the browser: axes with round ticks, and points in percent of the space between their ends.

Colors and text follow the page, in light and dark, and a chart is as wide as its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from idmetric.protocols.common.result import Value


def percent(value: float, low: float, high: float) -> float:
    """The position of a value between two ends, 0..100; NaN lies at the far end."""
    return round(100 * min(1.0, max(0.0, (value - low) / (high - low))), 2) if math.isfinite(value) else 100.0


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


@dataclass(frozen=True)
class Scale:
    """An axis with its name, round ends, and the position and text of each tick."""

    name: str
    low: float
    high: float
    ticks: list[tuple[float, str]]

    @classmethod
    def of(cls, name: str, values: Sequence[float]) -> Scale:
        """The axis that holds these values."""
        unit = round_step((max(values) - min(values)) / 4 or abs(max(values)) or 1.0)
        first, last = math.floor(min(values) / unit), math.ceil(max(values) / unit)
        count = max(1, last - first)
        ticks = [(round(100 * k / count, 2), f"{round((first + k) * unit, 9) + 0.0:g}") for k in range(count + 1)]
        return cls(name, first * unit, (first + count) * unit, ticks)

    def at(self, value: float) -> float:
        """The position of a value in percent."""
        return percent(value, self.low, self.high)

    def span(self, value: Value) -> tuple[float, float] | None:
        """The positions of an interval's ends; None without an interval."""
        return None if value.low is None or value.high is None else (self.at(value.low), self.at(value.high))


@dataclass(frozen=True)
class Point:
    """A point with its label, the spans of its intervals, and whether it is the best or stands for copies."""

    label: str
    x: float
    y: float
    x_span: tuple[float, float] | None = None
    y_span: tuple[float, float] | None = None
    best: bool = False
    copies: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of points.

    Attributes:
        about: what it shows, in words. line: the points that a line joins, in percent.
        real: the position of real photos on the axis of identity, which `real_on` names ("x" or "y").
    """

    about: str
    x: Scale
    y: Scale
    points: list[Point]
    line: list[tuple[float, float]] = field(default_factory=list)
    real: float | None = None
    real_on: str = "x"


def ends_of(values: Sequence[Value]) -> list[float]:
    """The values and the ends of their intervals."""
    return [end for v in values for end in (v.value, v.low, v.high) if end is not None]
