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
from collections.abc import Collection, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_type_hints

from idmetric.metric.files import StrPath, accept, from_text, parts_of, read_json_file
from idmetric.metric.load import check_name

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
    about = {
        "default": default,
        "help": text,
        "least": least,
        "choices": choices,
        "metavar": metavar,
        "repeated": repeated,
    }
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


def add_options(parser: Any, config: type, *, but: Collection[str] = ()) -> None:
    """Add an option for each `option` field of a dataclass, except those named in `but`.

    The parsed arguments hold only the options given, so defaults, --smoke and files can rank below them.

    Args:
        parser: an argparse parser or group of one.
        config: int, float, bool, str, Path, Literal, tuple, dict and `X | None` fields.
    """
    hints = get_type_hints(config)
    for entry in fields(config):
        if entry.name not in but:
            option_name = f"--{entry.name.replace('_', '-')}"
            parser.add_argument(option_name, default=argparse.SUPPRESS, **_argument(entry, hints[entry.name]))


def _argument(entry: Field[Any], hint: Any) -> dict[str, Any]:
    """The arguments of argparse's `add_argument` for a field."""
    about = entry.metadata
    kind, parts, is_optional = parts_of(hint)
    text = _help(about["help"], about["default"], is_optional)
    if kind is bool:
        return {"help": text, "action": argparse.BooleanOptionalAction}

    argument = {"help": text, "choices": about["choices"], "metavar": about["metavar"]}
    if about["repeated"]:
        argument["action"] = "append"
    elif kind is tuple:
        argument["nargs"] = "*" if ... in parts else len(parts)
    if kind is tuple:
        hint = parts[0]
        kind, parts, _ = parts_of(hint)

    if kind is Literal:
        argument["choices"] = parts
    if not argument["metavar"] and not argument["choices"]:
        argument["metavar"] = _METAVARS.get(kind, "JSON")
    return {**argument, "type": partial(_read, entry.name, hint)}


def _help(text: str, default: Any, is_optional: bool) -> str:
    """A line of --help that ends with the default, unless the text names it or other settings decide it."""
    shown_default = str(default)
    if default == () or (default is None and is_optional):
        shown_default = "none"
    elif default is None:
        shown_default = ""
    elif isinstance(default, tuple):
        shown_default = " ".join(map(str, default))
    elif isinstance(default, dict | bool):
        shown_default = json.dumps(default)

    if shown_default and "(default" not in text:
        text += f" (default: {shown_default})"
    return text.replace("%", "%%")


def _read(name: str, hint: Any, text: str) -> Any:
    """A value of the command line, as the type of an option."""
    try:
        return accept(name, from_text(text, hint), hint)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def values_of(args: argparse.Namespace, config: type) -> dict[str, Any]:
    """The fields of a dataclass that are given on the command line."""
    values = {}
    for entry in fields(config):
        if hasattr(args, entry.name):
            value = getattr(args, entry.name)
            values[entry.name] = tuple(value) if isinstance(value, list) else value
    return values


def from_file(path: StrPath, *configs: type) -> dict[str, Any]:
    """The settings in a .json or .toml file, named like the fields or like the options (save_every or save-every).

    Raises:
        ValueError: naming the file, and what is wrong: JSON or TOML, a name that is unknown, a value of a wrong type.
    """
    hints: dict[str, Any] = {}
    for config in configs:
        hints |= get_type_hints(config)
    values: dict[str, Any] = {}
    try:
        for key, value in accept("the file", read_json_file(path), dict).items():
            name = key.replace("-", "_")
            if name not in hints:
                raise ValueError(f"there is no option {key!r}; there are {', '.join(sorted(hints))}")
            if name == "backbone" and isinstance(value, str) and check_name(value) == "class":
                raise ValueError(
                    f"{key} = {value!r} would import code: name it on the command line, --backbone {value}"
                )
            values[name] = accept(name, value, hints[name])
    except (OSError, ValueError) as error:
        raise ValueError(f"--config {path}: {error}") from error
    return values
