"""Settings as frozen dataclasses, and the command line options and files that set them. Loads no torch.

@dataclass(frozen=True)
class Config(Checked):
    lr: float = option(1e-4, "peak learning rate (section 4.1)")
    views: tuple[int, ...] = option((2, 3), "views of an identity", least=1)

add_options(parser, Config)              # --lr 1e-4 --views 2 3
values = from_file("nearid.toml", Config)
"""

from __future__ import annotations

import argparse
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union

from idmetric.metric.files import json_file

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


# Dataclasses


def option(
    default: Any,
    text: str,
    *,
    least: float | None = None,
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    repeated: bool = False,
) -> Any:
    """A field of a settings dataclass: its default, and a line for --help with its meaning and its source.

    Args:
        least: the least value, which `Checked` checks.
        choices: values to choose from, where the type does not say (a Literal does).
        metavar: the value's name in --help (default: by the type).
        repeated: each use of the option adds a value to a tuple.
    """
    about = {"help": text, "least": least, "choices": choices, "metavar": metavar, "repeated": repeated}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Checked:
    """A base class that refuses values below the least ones of its `option` fields."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            least = entry.metadata.get("least")
            value = getattr(self, entry.name)
            if least is None or value is None:
                continue
            numbers = value if isinstance(value, tuple) else (value,)
            for number in numbers:
                if not number >= least:
                    raise ValueError(f"{entry.name} must be at least {least}, got {number}")


# Options


def add_options(parser: Any, config: type, *, but: typing.Collection[str] = ()) -> None:
    """Add an option for each field of a dataclass, except those named in `but`.

    The parsed arguments hold only the options given, so defaults, --smoke and files can rank below them.

    Args:
        parser: an argparse parser or group of one.
        config: int, float, bool, str, Path, Literal, tuple, dict and `X | None` fields with defaults.
    """
    hints = typing.get_type_hints(config)
    for entry in fields(config):
        if entry.name not in but:
            option_name = f"--{entry.name.replace('_', '-')}"
            parser.add_argument(option_name, **_argument(entry, hints[entry.name]))


def _argument(entry: Field[Any], hint: Any) -> dict[str, Any]:
    """The arguments of argparse's `add_argument` for a field."""
    kind, optional = unwrapped(hint)
    argument: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(entry, optional).replace("%", "%%")}
    if kind is bool and not optional:
        argument["action"] = argparse.BooleanOptionalAction
        return argument

    # the type of a single value
    is_repeated = entry.metadata.get("repeated")
    if is_repeated:
        argument["action"] = "append"
    if typing.get_origin(kind) is tuple:
        if not is_repeated:
            argument["nargs"] = length(kind) or "*"
        kind = hint = typing.get_args(kind)[0]
    argument["type"] = partial(_read, entry.name, hint)

    # how --help shows it
    choices = entry.metadata.get("choices")
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
    metavar = entry.metadata.get("metavar")
    if not metavar and not choices:
        metavar = _METAVARS.get(kind, "JSON")
    return {**argument, "choices": choices, "metavar": metavar}


def _help(entry: Field[Any], optional: bool) -> str:
    """A field's line of --help, with its default unless other settings decide it."""
    text: str = entry.metadata.get("help", "")
    default = entry.default if entry.default_factory is MISSING else entry.default_factory()
    if (default is None and not optional) or "(default" in text:
        return text
    shown_default = _shown(default)
    if shown_default:
        text += f" (default: {shown_default})"
    return text


def values_of(args: argparse.Namespace, config: type) -> dict[str, Any]:
    """The fields of a dataclass that are given on the command line."""
    hints = typing.get_type_hints(config)
    values = {}
    for entry in fields(config):
        name = entry.name
        if hasattr(args, name):
            values[name] = accept(name, getattr(args, name), hints[name])
    return values


def from_file(path: str | Path, *configs: type) -> dict[str, Any]:
    """The settings in a .json or .toml file, named like the fields or like the options (save_every or save-every).

    Raises:
        ValueError: naming the file, and the name that is unknown or the value of a wrong type.
    """
    path = Path(path)
    try:
        settings = json_file.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--config {path}: not readable as {path.suffix[1:] or 'JSON'}: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"--config {path}: an object of names and values is needed, such as {{'seed': 1}}")

    hints: dict[str, Any] = {}
    for config in configs:
        hints |= typing.get_type_hints(config)
    values: dict[str, Any] = {}
    for key, value in settings.items():
        name = key.replace("-", "_")
        if name not in hints:
            raise ValueError(f"--config {path}: there is no option {key!r}; there are {', '.join(sorted(hints))}")
        if name in values:
            raise ValueError(f"--config {path}: {key!r} is given twice")
        try:
            values[name] = accept(name, value, hints[name])
        except ValueError as error:
            raise ValueError(f"--config {path}: {error}") from error
    return values


def _read(name: str, hint: Any, text: str) -> Any:
    """A value of the command line, as the type of an option."""
    try:
        return accept(name, from_text(text, hint), hint)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return " ".join(map(_shown, value)) or "none"
    if isinstance(value, dict | bool):
        return json.dumps(value)
    return str(value)


# Values


def accept(name: str, value: Any, hint: Any, *, finite: bool = False) -> Any:
    """Convert a value to a type hint: lists become tuples, 1 becomes 1.0.

    Args:
        name: of the setting, for the message.
        hint: int, float, bool, str, Path, a Literal, a tuple, a mapping, or a union of them with None.
        finite: refuse NaN and infinity.

    Raises:
        ValueError: with the name, the value and the type that is needed.
    """
    try:
        return _converted(value, hint, finite)
    except (ValueError, OverflowError):  # OverflowError: a whole number beyond all floats
        raise ValueError(f"{name} = {shown(value)}: {_wanted(hint, finite)} is needed") from None


def from_text(text: str, hint: Any) -> Any:
    """Read a value of a type hint from a command line; text that does not fit stays text, which `accept` refuses."""
    kind, optional = unwrapped(hint)
    if optional and text.lower() == "none":
        return None
    if kind in (str, Path):
        return text
    if typing.get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(kind)}
        return choices.get(text, text)
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return json_file.parse(text)


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
    return None if Ellipsis in parts else len(parts)


def shown(value: Any) -> str:
    """A value for messages, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _converted(value: Any, hint: Any, finite: bool) -> Any:
    kind, optional = unwrapped(hint)
    if value is None and optional:
        return None
    origin = typing.get_origin(kind) or kind
    parts = typing.get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        if length(kind) is None:
            parts = parts[:1] * len(value)
        # of another length, zip raises the ValueError
        return tuple(_converted(item, part, finite) for item, part in zip(value, parts, strict=True))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return dict(value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value

    if not isinstance(value, bool):
        if origin is Literal and value in parts:
            return value
        if kind is int and isinstance(value, int):
            return value
        if kind is float and isinstance(value, int | float) and (math.isfinite(value) or not finite):
            return float(value)
    raise ValueError


def _wanted(hint: Any, finite: bool) -> str:
    kind, optional = unwrapped(hint)
    if optional:
        return f"{_wanted(kind, finite)} or nothing"
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if typing.get_origin(kind) is tuple:
        part = typing.get_args(kind)[0]
        values = "numbers" if part in (int, float) else "values"
        count = length(kind)
        return f"a list of {values}" if count is None else f"a list of {count} {values}"
    if (typing.get_origin(kind) or kind) in (dict, Mapping):
        return "an object"
    if kind is float and finite:
        return "a finite number"
    return _WORDS.get(kind, str(kind))
