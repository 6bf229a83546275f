"""Axes of the charts that pages draw: ends and ticks, and positions in percent of the space between the ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percent(value: float, low: float, high: float) -> float:
    """The position of a value between two ends, 0..100; NaN lies at the far end."""
    if not math.isfinite(value):
        return 100.0
    share = (value - low) / (high - low)
    return round(100 * min(1.0, max(0.0, share)), 2)


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    for factor in (1, 2, 5):
        step = factor * power
        if step >= least * (1 - 1e-9):
            return step
    return 10 * power


@dataclass(frozen=True)
class Scale:
    """An axis with its name, its ends, and the position and text of each tick."""

    name: str
    low: float
    high: float
    ticks: list[tuple[float, str]]

    @classmethod
    def of(cls, name: str, values: Sequence[float], *, style: str = "g") -> Scale:
        """The axis that holds these values, with round ends.

        Args:
            style: format of the ticks' numbers.
        """
        low = min(values)
        high = max(values)
        extent = round(high - low, 9)
        unit = round_step(extent / 4 or abs(high) or 1.0)
        low = unit * math.floor(low / unit)
        high = unit * math.ceil(high / unit)
        if low == high:
            high += unit
        ticks = []
        lowest = math.ceil(low / unit - 1e-9)
        highest = math.floor(high / unit + 1e-9)
        for number in range(lowest, highest + 1):
            value = round(number * unit, 9) + 0.0  # no -0
            position = percent(value, low, high)
            ticks.append((position, format(value, style)))
        return cls(name, low, high, ticks)
