"""The label that selects a subject in a mask of several, checked before NumPy and torch are imported."""

from __future__ import annotations

import re

MaskId = int | str | tuple[int, int, int]  # an index or a value; a colour as (red, green, blue) or "#rrggbb"


def parse_mask_id(text: str) -> MaskId:
    """A label as a command line gives it: 7, or #ff0000; or as a gallery keeps it: (255, 0, 0).

    Raises:
        ValueError: for anything else, and for the background, 0.
    """
    if re.fullmatch(r"\(\d+, \d+, \d+\)", text):
        red, green, blue = (int(part) for part in text.strip("()").split(", "))
        return color_of((red, green, blue))
    return color_of(text) if text.startswith("#") else number_of(text)


def color_of(label: MaskId) -> tuple[int, int, int]:
    """The colour that a label names.

    Raises:
        ValueError: for anything else, and for black.
    """
    if isinstance(label, str) and re.fullmatch("#[0-9a-fA-F]{6}", label):
        label = (int(label[1:3], 16), int(label[3:5], 16), int(label[5:7], 16))
    if not isinstance(label, tuple) or len(label) != 3 or not any(label) or not all(0 <= v <= 255 for v in label):
        raise ValueError(
            f"mask_id {label!r} is not a colour of a mask: give '#rrggbb', such as '#ff0000', and not black"
        )
    return label


def number_of(label: MaskId) -> int:
    """The index or value that a label names.

    Raises:
        ValueError: for anything else, and for the background, 0.
    """
    try:
        number = int(label)  # type: ignore[arg-type]  # a colour is refused
    except (TypeError, ValueError):
        number = 0
    if number < 1 or isinstance(label, bool) or (isinstance(label, float) and label != number):
        raise ValueError(f"mask_id {label!r} is not a label: give a whole number above 0, as 0 is the background")
    return number
