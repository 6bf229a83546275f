"""The parser of all commands: errors of one line, suggestions, and subcommands of which only one is imported."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from idmetric import __version__
from idmetric.io.hints import did_you_mean


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line that suggests the name that was probably meant."""

    suggest_on_error = False  # Python 3.14 would suggest a second time

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line on stderr, without the usage."""
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
    parser = Parser(prog=program, description=description, epilog=epilog, formatter_class=shape)
    parser.add_argument("--version", action="version", version=f"idmetric {__version__}")
    commands = parser.add_subparsers(dest=dest, metavar=dest.upper(), required=True)
    for name, (module, line) in table.items():
        sub = commands.add_parser(name, help=line, formatter_class=shape, allow_abbrev=False)
        if name == chosen:
            add(sub, name, importlib.import_module(module))
    return parser
