"""Settings as frozen dataclasses, and the command line options and files that set them. Loads no torch.

@dataclass(frozen=True)
class Config:
    lr: float = option(1e-4, "peak learning rate (section 4.1)")
    views: tuple[int, ...] = option((2, 3), "views of an identity")

add_options(parser, Config)              # --lr 1e-4 --views 2 3
values = from_file("nearid.toml", Config)
"""

from __future__ import annotations

import argparse
import json
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from idmetric.io import json_file, text_file, toml_file
from idmetric.io.settings import accept, from_text, length, unwrapped

Precision = Literal["no", "bf16", "fp16"]  # of mixed precision


def option(default: Any, text: str) -> Any:
    """A field of a settings dataclass: its default, and a line for --help with its meaning and its source."""
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata={"help": text})
    return field(default=default, metadata={"help": text})


def flag(name: str) -> str:
    """The option of a field: save_every -> --save-every."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Settings:
    """How to run any recipe. If a recipe's Config has a field of the same name, such as seed, its value counts."""

    seed: int = option(0, "all random numbers follow from it")
    precision: Precision = option("no", "mixed precision")
    max_grad_norm: float = option(0.0, "largest norm of the gradient; 0 = any")
    save_every: int = option(500, "steps between checkpoints; 0 = at the end only")
    keep: int = option(2, "latest checkpoints to keep, in addition to the best one; 0 = all")
    validate_every: int = option(500, "steps between validations, the first before training; 0 = at the end only")
    log_every: int = option(10, "steps between lines of the log")
    workers: int = option(-1, "loading processes of each training process; -1 = one per core, at most 8; 0 = none")
    wandb: str = option("", "project of Weights & Biases to log to as well")
    resume: bool = option(True, "resume the run in the folder, if there is one; otherwise refuse it")


def add_options(parser: Any, config: type, *, but: typing.Collection[str] = ()) -> None:
    """Add an option for each field of a dataclass, except those named in `but`.

    The parsed arguments hold only the options given, so defaults, --smoke and files can rank below them.

    Args:
        parser: an argparse parser or group of one.
        config: int, float, bool, str, Literal, tuple, dict and `X | None` fields with defaults.
    """
    hints = typing.get_type_hints(config)
    for entry in fields(config):
        if entry.name in but:
            continue
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        shown = entry.metadata.get("help", "").replace("%", "%%")
        kind, optional = unwrapped(hints[entry.name])
        if default is not None or optional:  # otherwise other settings decide, as the text says
            shown += f" (default: {value})" if (value := _shown(default)) else ""
        if kind is bool and not optional:
            parser.add_argument(
                flag(entry.name), action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=shown
            )
            continue
        parser.add_argument(
            flag(entry.name),
            metavar=_metavar(hints[entry.name]),
            type=_reader(entry.name, hints[entry.name]),
            nargs=(length(kind) or "*") if typing.get_origin(kind) is tuple else None,
            default=argparse.SUPPRESS,
            help=shown,
        )


def values_of(args: argparse.Namespace, config: type) -> dict[str, Any]:
    """The fields of a dataclass that are given on the command line."""
    hints = typing.get_type_hints(config)
    given = {entry.name: getattr(args, entry.name) for entry in fields(config) if hasattr(args, entry.name)}
    return {name: accept(name, value, hints[name]) for name, value in given.items()}


def from_file(path: str | Path, *configs: type) -> dict[str, Any]:
    """The settings in a .json or .toml file, named like the fields or like the options (save_every or save-every).

    Raises:
        ValueError: naming the file, and the name that is unknown or the value of a wrong type.
    """
    path = Path(path)
    try:
        text = text_file.read(path)
        found = toml_file.parse(text) if path.suffix == ".toml" else json_file.parse(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"--config {path}: not readable as {path.suffix[1:] or 'JSON'}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"--config {path}: an object of names and values is needed, such as {{'seed': 1}}")
    hints = {name: hint for config in configs for name, hint in typing.get_type_hints(config).items()}
    values: dict[str, Any] = {}
    for key, value in found.items():
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


def _reader(name: str, hint: Any) -> Callable[[str], Any]:
    """A function that reads a value of the command line; for tuples, one of their values."""
    kind, _ = unwrapped(hint)
    if typing.get_origin(kind) is tuple:
        hint = typing.get_args(kind)[0]

    def read(text: str) -> Any:
        try:
            return accept(name, from_text(text, hint), hint)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _metavar(hint: Any) -> str:
    kind, _ = unwrapped(hint)
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(map(str, typing.get_args(kind))) + "}"
    if typing.get_origin(kind) is tuple:
        kind, _ = unwrapped(typing.get_args(kind)[0])
    return {int: "N", float: "X", str: "TEXT"}.get(kind, "JSON")


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return " ".join(map(_shown, value)) or "none"
    return json.dumps(value) if isinstance(value, dict | bool) else str(value)
