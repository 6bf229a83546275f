"""A parser of subcommands that loads the module of one of them only."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from idmetric._version import __version__


def parser_of(
    program: str,
    dest: str,
    table: Mapping[str, tuple[str, str]],
    chosen: str | None,
    add: Callable[[argparse.ArgumentParser, str, Any], None],
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """All subcommands by name, and the options of the chosen one.

    Args:
        dest: what a subcommand is, as the arguments name it. table: name -> its module and a line that describes it.
        add: given the chosen one's parser, name and module, adds its options.
    """
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=program, description=description, epilog=epilog, formatter_class=shape)
    parser.add_argument("--version", action="version", version=f"idmetric {__version__}")
    commands = parser.add_subparsers(dest=dest, metavar=dest.upper(), required=True)
    for name, (module, line) in table.items():
        sub = commands.add_parser(name, help=line, formatter_class=shape, allow_abbrev=False)
        if name == chosen:
            add(sub, name, importlib.import_module(module))
    return parser
