"""TOML from files that anybody may have written."""

from __future__ import annotations

import tomllib
from typing import Any

_DOTS = 1000  # in a line; Python's parser takes memory with the square of a name's parts


def parse(text: str) -> dict[str, Any]:
    """The table of a TOML text.

    Raises:
        ValueError: if it is not TOML, or nested so deeply that Python cannot hold it.
    """
    if any(line.count(".") > _DOTS for line in text.splitlines()):
        raise ValueError(f"a line has more than {_DOTS} dots")
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found
