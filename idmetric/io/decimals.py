"""How numbers are written: four decimals for people and CSV, nine significant digits in JSON."""

from __future__ import annotations

import math
from typing import Any

DIGITS = 9  # any two float32 numbers differ in these


def four(value: float) -> str:
    """Four decimals; what rounds to zero has no sign.

    >>> four(-0.00001), four(0.12345678)
    ('0.0000', '0.1235')
    """
    return f"{round(value, 4) + 0.0:.4f}"


def rounded(value: Any) -> Any:
    """Nine significant digits of a float, also of those in dicts and lists; everything else as it is.

    A score is computed in float32, so more digits are noise.

    >>> rounded({"distance": 0.0934123471379280, "rank": 1})
    {'distance': 0.0934123471, 'rank': 1}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") + 0.0  # no -0.0
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def in_csv(row: dict[str, Any]) -> dict[str, Any]:
    """A row for CSV: its floats by `four`; undefined ones (NaN) are empty."""
    return {key: _cell(value) if isinstance(value, float) else value for key, value in row.items()}


def _cell(value: float) -> str:
    return "" if math.isnan(value) else four(value)
