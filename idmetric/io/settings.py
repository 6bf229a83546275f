"""Typed settings from what JSON, TOML or a command line holds."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from idmetric.io import json_file

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def accept(name: str, value: Any, hint: Any, *, finite: bool = False) -> Any:
    """Convert a value to a type hint: lists become tuples, 1 becomes 1.0.

    Args:
        name: of the setting, for the message.
        hint: int, float, bool, str, a Literal, a tuple, a mapping, or a union of them with None.
        finite: refuse NaN and infinity.

    Raises:
        ValueError: with the name, the value and the type that is needed.
    """
    kind, optional = unwrapped(hint)
    if value is None and optional:
        return None

    origin = typing.get_origin(kind)
    if origin is Literal and value in typing.get_args(kind) and not isinstance(value, bool):
        return value
    if origin is tuple and isinstance(value, list | tuple) and length(kind) in (None, len(value)):
        parts = typing.get_args(kind)
        parts = parts[:1] * len(value) if length(kind) is None else parts
        try:
            return tuple(accept(name, v, part, finite=finite) for v, part in zip(value, parts, strict=True))
        except ValueError:
            raise _wrong(name, value, hint, finite) from None
    if is_mapping(kind) and isinstance(value, Mapping):
        return dict(value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _number(name, value, hint, finite)
    if (
        kind in _WORDS
        and kind is not float
        and isinstance(value, kind)
        and (kind is bool or not isinstance(value, bool))
    ):
        return value
    raise _wrong(name, value, hint, finite)


def from_text(text: str, hint: Any) -> Any:
    """Read a value of a type hint from a command line; text that does not fit stays text, which `accept` refuses."""
    kind, optional = unwrapped(hint)
    if optional and text.lower() == "none":
        return None
    if kind is str:
        return text
    if typing.get_origin(kind) is Literal:
        return next((v for v in typing.get_args(kind) if str(v) == text), text)
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return json_file.parse(text)


def fail_or_skip(on_error: str) -> Literal["fail", "skip"]:
    """Read the treatment of unusable images, which version 0.1 spelled "stop" or "skip".

    Raises:
        ValueError: for any other word.
    """
    if on_error not in ("fail", "skip", "stop"):
        raise ValueError(f"on_error {on_error!r}: choose fail or skip")
    return "skip" if on_error == "skip" else "fail"


def unwrapped(hint: Any) -> tuple[Any, bool]:
    """`X | None` as (X, True), other hints as (hint, False)."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if len(kinds) == 1:
            return kinds[0], True
    return hint, False


def length(kind: Any) -> int | None:
    """The number of values of a tuple type; None for any number."""
    parts = typing.get_args(kind)
    return None if len(parts) == 2 and parts[1] is Ellipsis else len(parts)


def is_mapping(kind: Any) -> bool:
    """Whether a type is a dict or a Mapping."""
    return (typing.get_origin(kind) or kind) in (dict, Mapping)


def shown(value: Any) -> str:
    """A value for messages, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _number(name: str, value: float, hint: Any, finite: bool) -> float:
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all floats
        raise _wrong(name, value, hint, finite) from None
    if finite and not math.isfinite(number):
        raise _wrong(name, value, hint, finite)
    return number


def _wrong(name: str, value: Any, hint: Any, finite: bool) -> ValueError:
    return ValueError(f"{name} = {shown(value)}: {_wanted(hint, finite)} is needed")


def _wanted(hint: Any, finite: bool) -> str:
    kind, optional = unwrapped(hint)
    if optional:
        return f"{_wanted(kind, finite)} or nothing"
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if typing.get_origin(kind) is tuple:
        count, part = length(kind), typing.get_args(kind)[0]
        values = "numbers" if part in (int, float) else "values"
        return f"a list of {values}" if count is None else f"a list of {count} {values}"
    if is_mapping(kind):
        return "an object"
    return "a finite number" if kind is float and finite else _WORDS.get(kind, str(kind))
