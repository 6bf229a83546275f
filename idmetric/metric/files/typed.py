"""Values of JSON files and command lines, checked against type hints, and as messages show them. Loads no torch."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from idmetric.metric.files import json_file

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    Path: "a path",
    dict: "an object",
    Mapping: "an object",
}


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def accept(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to a type hint: lists become tuples, 1 becomes 1.0. NaN and infinity are refused.

    Args:
        name: of the setting, for the message.
        hint: int, float, bool, str, Path, a Literal, a tuple, a mapping, or a union of one of them with None.

    Raises:
        ValueError: with the name, the value and the type that is needed.
    """
    try:
        return _converted(value, hint)
    except (ValueError, OverflowError):  # OverflowError: a whole number beyond all floats
        raise ValueError(f"{name} = {shown(value)}: {_wanted(hint)} is needed") from None


def from_text(text: str, hint: Any) -> Any:
    """Read a value of a type hint from a command line; text that does not fit stays text, which `accept` refuses."""
    kind, choices, optional = parts_of(hint)
    if optional and text.lower() == "none":
        return None
    if kind is Literal:
        return {str(choice): choice for choice in choices}.get(text, text)
    if kind in (str, Path):
        return text
    try:
        if kind in (int, float):
            return kind(text)
        return json_file.parse(text)
    except ValueError:
        return text


def parts_of(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """The type of a hint (int, tuple, Literal, ...), its arguments in brackets, and whether it is `X | None`."""
    parts = get_args(hint)
    if len(parts) == 2 and parts[1] is types.NoneType:
        return (*parts_of(parts[0])[:2], True)
    return get_origin(hint) or hint, parts, False


def shown(value: Any) -> str:
    """A value for messages, shortened to 80 characters."""
    text = repr(value)
    if len(text) <= 80:
        return text
    return text[:77] + "..."


def printable(text: str) -> str:
    r"""Text in one line for a terminal or Markdown: characters that control them or turn the direction are escaped.

    >>> printable("a\x1b[2J\n")
    'a\\x1b[2J\\n'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def first_few(lines: Sequence[str], shown: int = 10) -> list[str]:
    """The first lines and, if there are more, a line with their number.

    >>> first_few(["a", "b", "c"], shown=2)
    ['a', 'b', 'and 1 more']
    """
    more = len(lines) - shown
    if more <= 0:
        return list(lines)
    return [*lines[:shown], f"and {more} more"]


def _converted(value: Any, hint: Any) -> Any:
    kind, parts, optional = parts_of(hint)
    if value is None and optional:
        return None
    if kind is tuple and isinstance(value, list | tuple):
        if ... in parts:
            parts = parts[:1] * len(value)
        # of another length, zip raises the ValueError
        return tuple(_converted(item, part) for item, part in zip(value, parts, strict=True))
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) is int:
        value = float(value)

    is_truth_value = isinstance(value, bool)  # which Python counts as a whole number
    if kind is Literal and value in parts:
        return value
    if kind is Literal or not isinstance(value, kind) or is_truth_value != (kind is bool):
        raise ValueError
    if kind is float and not math.isfinite(value):
        raise ValueError
    return value


def _wanted(hint: Any) -> str:
    """A type hint in words, for messages."""
    kind, parts, optional = parts_of(hint)
    if kind is Literal:
        words = f"one of {', '.join(map(str, parts))}"
    elif kind is tuple:
        count = "" if ... in parts else f"{len(parts)} "
        words = f"a list of {count}{'numbers' if parts[0] in (int, float) else 'values'}"
    else:
        words = _WORDS[kind]
    if optional:
        return f"{words} or nothing"
    return words
