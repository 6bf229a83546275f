"""Conversion of a user's values for settings to the type of their field, with a check of their range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from idmetric.data.generate.errors import GenerateError
from idmetric.io.settings import accept, from_text

# setting -> smallest and largest value
RANGES: dict[str, tuple[float, float]] = {
    "steps": (1, 1000), "guidance": (0, 100), "strength": (0.01, 1), "scale": (0, 10), "side": (8, 4096),
    "highres_scale": (1, 4), "highres_strength": (0.01, 1), "low": (0, 10_000), "high": (0, 10_000),
    "tolerance": (0, 442), "border": (0, 0.5), "clean": (0, 1), "threshold": (0, 1), "least": (0, 1), "most": (0, 1),
    "fitting": (0, 1),
}  # fmt: skip
_KINDS = {"int": int, "float": float, "str": str}


def typed(name: str, owner: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings converted to the types of their fields: 30 and "30.0" give the same number.

    Args:
        name: of the engine, for messages.
        owner: the engine, a dataclass; its fields that hold numbers or text are settings.

    Raises:
        GenerateError: for an unknown setting, a value of another type, or one out of range.
    """
    kinds = {f.name: _KINDS[str(f.type)] for f in fields(owner) if str(f.type) in _KINDS}
    if unknown := sorted(given.keys() - kinds.keys()):
        raise GenerateError(f"{name} has no setting {unknown[0]!r}; it has {', '.join(sorted(kinds)) or 'none'}")
    found = {}
    for setting, value in given.items():
        kind = kinds[setting]
        if isinstance(value, str):
            value = from_text(value, kind)
        elif kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            found[setting] = converted = accept(f"{name}.{setting}", value, kind, finite=True)
        except ValueError as error:
            raise GenerateError(str(error)) from None
        low, high = RANGES.get(setting, (-math.inf, math.inf))
        if not isinstance(converted, str) and not low <= converted <= high:
            raise GenerateError(f"{name}.{setting} must be within {low:g}..{high:g}, not {value!r}")
    return found
