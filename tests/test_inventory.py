"""Every public name, keyword, command and option of the package, each marked by what became of it: tests/inventory.csv.

| column | value |
|---|---|
| kind | name, keyword, command or option |
| name | `idmetric.match`, `idmetric.match(cast)`, `idmetric match`, `idmetric match --cast` |
| mark | `stays`, `goes`, or `instead: ...` with what takes its place |
| until | for a name that is still there, though it is marked to go: the part of the package whose rebuilding ends it |

An option of `idmetric eval`, `gallery`, `train` or `data` is listed once, whichever of its subcommands take it.

    python -m tests.test_inventory      prints kind and name of what is there now
"""

from __future__ import annotations

import argparse
import csv
import importlib
from collections.abc import Iterator
from pathlib import Path

from idmetric.cli.main import COMMANDS
from tests.test_public_api import public_api

INVENTORY = Path(__file__).with_name("inventory.csv")
Row = tuple[str, str]
# commands that build the options of one subcommand at a time, and the table of these
SUBCOMMANDS = {"eval": "PROTOCOLS", "train": "RECIPES"}


def public_names() -> Iterator[Row]:
    """A line for each public name, and one for each parameter of its signature."""
    for line in public_api():
        name, parenthesis, rest = line.partition("(")
        yield "name", name
        if parenthesis:
            # defaults such as `<factory>` are no Python: only the names before `=` matter
            for parameter in parameters(rest.removesuffix(")")):
                yield "keyword", f"{name}({parameter})"


def parameters(signature: str) -> Iterator[str]:
    """The names of the parameters in `self, a, b=(1, 2), *, c=None`."""
    depth = 0
    word = ""
    for letter in signature + ",":
        if letter == "," and depth == 0:
            name = word.partition("=")[0].strip().lstrip("*")
            if name not in ("", "self", "cls", "/"):
                yield name
            word = ""
            continue
        depth += (letter in "([{<") - (letter in ")]}>")
        word += letter


def commands() -> Iterator[Row]:
    """A line for each command and subcommand, and one for each of their arguments and options."""
    for name, (module_name, _) in COMMANDS.items():
        module = importlib.import_module(module_name)
        yield "command", f"idmetric {name}"
        parsers = [module.build_parser(prog=f"idmetric {name}")]
        for part in getattr(module, SUBCOMMANDS.get(name, ""), ()):
            parsers.append(module.build_parser(part, f"idmetric {name}"))
        for parser in parsers:
            yield from arguments(parser, f"idmetric {name}")


def arguments(parser: argparse.ArgumentParser, command: str) -> Iterator[Row]:
    """The options and positional arguments of a parser and of those below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield "command", f"{parser.prog} {name}".strip()
                yield from arguments(child, command)
        elif action.dest != "help":
            word = max(action.option_strings, key=len, default=action.dest)
            yield "option", f"{command} {word}"


def present() -> set[Row]:
    """All that is there now."""
    return {*public_names(), *commands()}


def test_what_is_public_is_in_the_inventory_and_what_is_gone_is_marked_so() -> None:
    with INVENTORY.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({(row["kind"], row["name"]) for row in rows}) == len(rows)

    expected = set()
    for row in rows:
        assert row["mark"] in ("stays", "goes") or row["mark"].startswith("instead: "), row
        assert not (row["until"] and row["mark"] == "stays"), row
        if row["mark"] == "stays" or row["until"]:
            expected.add((row["kind"], row["name"]))
    assert present() == expected


if __name__ == "__main__":
    for kind, name in sorted(present()):
        print(f"{kind},{name}")
