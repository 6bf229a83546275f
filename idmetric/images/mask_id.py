"""The label that selects a subject in a mask of several, checked before NumPy and torch are imported."""

from __future__ import annotations

import re
from typing import Any

MaskId = int | str | tuple[int, int, int]  # an index or a value; a color as (red, green, blue) or "#rrggbb"


def parse_mask_id(text: str) -> MaskId:
    """A label as a command line gives it: 7, or #ff0000; or as a gallery keeps it: (255, 0, 0).

    Raises:
        ValueError: for anything else, and for the background, 0.
    """
    if text.startswith("("):
        return color_of(tuple(map(int, re.findall(r"\d+", text))))  # type: ignore[arg-type]  # its length is checked
    return color_of(text) if text.startswith("#") else number_of(text)


def color_of(label: MaskId) -> tuple[int, int, int]:
    """The color that a label names.

    Raises:
        ValueError: for anything else, and for black.
    """
    color: Any = label
    if isinstance(label, str) and re.fullmatch("#[0-9a-fA-F]{6}", label):
        color = tuple(bytes.fromhex(label[1:]))
    if isinstance(color, tuple) and len(color) == 3 and any(color) and all(0 <= v <= 255 for v in color):
        return color
    raise ValueError(f"mask_id {label!r} is not a color of a mask: give '#rrggbb', such as '#ff0000', and not black")


def number_of(label: MaskId) -> int:
    """The index or value that a label names.

    Raises:
        ValueError: for anything else, and for the background, 0.
    """
    try:
        number = int(label)  # type: ignore[arg-type]  # a color is refused
    except (TypeError, ValueError):
        number = 0
    if number < 1 or isinstance(label, bool) or (isinstance(label, float) and label != number):
        raise ValueError(f"mask_id {label!r} is not a label: give a whole number above 0, as 0 is the background")
    return number
