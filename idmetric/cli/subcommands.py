"""The parser of all commands: errors in one line, suggestions, and subcommands that are imported only when called."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from idmetric import __version__
from idmetric.io.hints import did_you_mean


class Help(argparse.RawDescriptionHelpFormatter):
    """Help with a short usage: arguments that are needed, and `[options]` for all others."""

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None) -> str:
        needed = [action for action in actions if action.required or not action.option_strings]
        text = super()._format_usage(usage, needed, [], prefix)
        rest = {action.dest for action in actions if action not in needed} - {"help", "version"}
        return f"{text.rstrip()} [options]\n\n" if rest and not usage else text


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that reports an error in one line, with the name that was probably meant."""

    suggest_on_error = False  # Python 3.14 would suggest a second time

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, **options})

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line on stderr, without the usage."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and message.endswith(f"required: {action.metavar}"):
                message = f"{action.metavar} is needed: {', '.join(action.choices)}"
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)

    def add_subparsers(self, **options: Any) -> Any:
        """As in argparse; subcommands report their own unknown options."""
        return super().add_subparsers(**{"parser_class": _Subparser, **options})

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As in argparse, with suggestions for unknown options."""
        return self._checked(*self.parse_known_args(args, namespace))

    def parse_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """As in argparse, with suggestions for unknown options."""
        return self._checked(*self.parse_known_intermixed_args(args, namespace))

    def _checked(self, found: Any, unknown: Sequence[str]) -> Any:
        if unknown:
            options = [name for action in self._actions for name in action.option_strings]
            hint = did_you_mean(unknown[0].partition("=")[0], options)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from error


class _Subparser(Parser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return self._checked(*super().parse_known_args(args, namespace)), []


def parser_of(
    program: str,
    dest: str,
    table: Mapping[str, tuple[str, str]],
    chosen: str | None,
    add: Callable[[argparse.ArgumentParser, str], None],
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """The parser of a command with all its subcommands by name, and the options of the chosen one.

    Args:
        dest: attribute of the arguments that holds the subcommand's name, e.g. "protocol".
        table: subcommand -> its module (the help shows its docstring) and a line that describes it.
        add: called with the chosen subcommand's parser and name to add its options.
    """
    parser = Parser(prog=program, description=description, epilog=epilog)
    parser.add_argument("--version", action="version", version=f"idmetric {__version__}")
    commands = parser.add_subparsers(dest=dest, metavar=dest.upper(), required=True)
    for name, (module, line) in table.items():
        sub = commands.add_parser(name, help=line, allow_abbrev=False)
        if name == chosen:
            sub.description = _docstring(module)
            add(sub, name)
    return parser


def _docstring(module: str) -> str | None:
    """A module's docstring from its source: importing it would load torch."""
    source = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    return ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
