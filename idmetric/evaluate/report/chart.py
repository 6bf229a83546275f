"""Axes of the charts that pages draw: round ends and ticks, and positions in percent of the space between the ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
        unit = round_step(round(max(values) - min(values), 9) / 4 or abs(max(values)) or 1.0)
        first, last = math.floor(min(values) / unit), math.ceil(max(values) / unit)
        count = max(1, last - first)
        ticks = [(round(100 * k / count, 2), f"{round((first + k) * unit, 9) + 0.0:g}") for k in range(count + 1)]
        return cls(name, first * unit, (first + count) * unit, ticks)

    def at(self, value: float) -> float:
        """The position of a value in percent."""
        return percent(value, self.low, self.high)
