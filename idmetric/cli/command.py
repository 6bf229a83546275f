"""How every command starts and ends: its parser, its results, its errors and its exit status."""

from __future__ import annotations

import argparse
import ast
import errno
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import MissingExtraError, OutputError, StrPath, check_writable, file_id, replacing
from idmetric.tables import printable
from idmetric.version import __version__

CODES = {
    0: "done",
    1: "error",
    2: "wrong usage",
    3: "a distance exceeds the threshold",
    4: "done, but images were skipped",
    130: "stopped by Ctrl-C",
    143: "stopped by SIGTERM",
}
WRONG_USAGE = 2
_LONGEST = 10_000  # characters of a message: the names of a few files, each of 4,096 at most
_running = ["idmetric"]  # names of the commands that run, the innermost last


class CommandError(Exception):
    """An error that the user can fix; the message says how.

    Attributes:
        status: of the command at its end: 1, or `WRONG_USAGE` if it cannot do what it was asked for.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


# The parser


class Help(argparse.RawDescriptionHelpFormatter):
    """Help with a short usage: arguments that are needed, and `[options]` for all others."""

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None) -> str:
        needed = [
            action
            for action in actions
            if action.required or (not action.option_strings and action.dest is not argparse.SUPPRESS)
        ]
        text = super()._format_usage(usage, needed, [], prefix)
        rest = {action.dest for action in actions if action not in needed} - {"help", "version"}
        return f"{text.rstrip()} [options]\n\n" if rest and not usage else text


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that reports an error in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, **options})

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        """See `ArgumentParser`; a missing subcommand is an error that names all of them."""
        parsed, rest = super().parse_known_args(*args, **options)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and getattr(parsed, action.dest) is None:
                self.error(f"{action.metavar} is needed: {', '.join(action.choices)}")
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line on stderr, without the usage."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit with this status and one line on stderr, after --help and --version too."""
        if message:
            _print_message(message)
        _flush()
        raise SystemExit(status)

    def add_version(self) -> None:
        """Add --version."""
        self.add_argument("--version", action="version", version=f"idmetric {__version__}")


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
    parser.add_version()
    commands = parser.add_subparsers(dest=dest, metavar=dest.upper())
    for name, (module, line) in table.items():
        command = commands.add_parser(name, help=line, allow_abbrev=False)
        if name == chosen:  # the docstring comes from the source: importing the module would load torch
            source = Path(__file__).parents[2] / f"{module.replace('.', '/')}.py"
            command.description = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
            add(command, name)
    return parser


# The end


def codes(*numbers: int) -> str:
    """The line of --help that lists a command's exit codes."""
    return f"Exit status: {', '.join(f'{number} {CODES[number]}' for number in numbers)}."


def form_of(args: argparse.Namespace) -> str:
    """The form of the result: --format, else the one that --output ends in, else a table."""
    form: str | None = args.format
    if form is not None:
        return form
    ending = os.path.splitext(args.output or "")[1].lower().lstrip(".")
    return ending if ending in ("csv", "json", "jsonl") else "table"


def status_of(left_out: object) -> int:
    """The exit status of work that is done: 4 if images were left out (any number, table or list of them), else 0."""
    return 4 if left_out else 0


def say(message: str) -> None:
    """Print a message on stderr, after the name of the running command."""
    _print_message(f"{_running[-1]}: {message}")


def _print_message(message: str) -> None:
    """Print on stderr, where it can be read: a lost message must not cost a result.

    Names of files and tensors come from strangers: control characters are escaped, a further line is indented, so that
    it cannot pass for a message of its own, and only the first `_LONGEST` characters are shown.
    """
    if sys.stderr is None:  # print would take stdout
        return
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}..."
    first_line, *further = message.rstrip("\n").split("\n")
    lines = [f"  {printable(line).strip()}" for line in further]
    with suppress(OSError):
        print("\n".join([printable(first_line), *lines]), file=sys.stderr, flush=True)


@contextmanager
def warnings_as_lines(quiet: bool = False, show: Callable[[str], object] = say) -> Iterator[None]:
    """Show each warning that is given in the block as a line on stderr, once."""
    shown: set[str] = set()

    def show_text(message: Warning | str, *_: object, **__: object) -> None:
        text = printable(str(message))
        if text not in shown:  # an image may be read several times
            shown.add(text)
            show(text)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "always", UserWarning)
        warnings.showwarning = show_text
        yield


@contextmanager
def fixable(*more: type[Exception], in_one_line: bool = False) -> Iterator[None]:
    """Turn errors that the user can fix into a `CommandError`; any others are bugs, shown with their traceback.

    Args:
        more: kinds of errors in addition to those of values, files, packages and checkpoints.
    """
    kinds: tuple[type[Exception], ...] = (CheckpointError, ImportError, ValueError, OSError, *more)
    try:
        yield
    except BrokenPipeError:
        raise
    except kinds as error:
        raise CommandError(" ".join(str(error).split()) if in_one_line else str(error)) from error


def ended(run: Callable[[], int], parser: argparse.ArgumentParser) -> int:
    """Run a command; returns its exit status. Wrong usage, Ctrl-C and SIGTERM print one line: status 2, 130 and 143."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # bytes of file names that are not text: \\udcXX, as JSON writes them
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:  # closed by the shell, or under pythonw: libraries' progress bars would fail
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends

    _running.append(parser.prog)
    signals: list[int] = []
    try:
        with _sigterm_interrupts() as signals:
            status = run()
        _print("", "direct it to another disk")
        return status
    except CommandError as error:
        message = f"error: {_message_of(error)}"
        if error.status == WRONG_USAGE:
            parser.exit(WRONG_USAGE, f"{parser.prog}: {message}")
        say(message)
        return error.status
    except (CheckpointError, MissingExtraError, PermissionError) as error:
        say(f"error: {_message_of(error)}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 143 if signals else 130
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        return 1
    finally:
        _running.pop()
        _flush()


@contextmanager
def _sigterm_interrupts() -> Iterator[list[int]]:
    """Let SIGTERM, which schedulers and `kill` send, interrupt the block as Ctrl-C does, so that work is saved.

    Where it is ignored or handled by somebody else, that stays so.

    Yields:
        The numbers of the signals that have come.
    """
    signals: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield signals
        return

    def interrupt(number: int, _: object) -> NoReturn:
        signals.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _message_of(error: BaseException) -> str:
    """An error's message without the system's number."""
    return re.sub(r"\[Errno \d+\] ", "", str(error))


@contextmanager
def counting_embeddings(quiet: bool) -> Iterator[None]:
    """Print, after the block, how many images were embedded, if stores were asked for them."""
    from idmetric.store import counts

    before = counts.copy()
    yield
    asked, made = counts["asked"] - before["asked"], counts["made"] - before["made"]
    if asked and not quiet:
        say(f"embedded {made:,} of {asked:,} images")


# Results


def check_output(output: str | None, instead: str = "name a file with --output") -> None:
    """Check, before the work, that `write` can write there."""
    if output is None and sys.stdout is None:
        raise CommandError(f"stdout is closed: {instead}", WRONG_USAGE)
    try:
        if output is not None:
            check_writable(output)
    except OSError as error:
        raise CommandError(str(error), WRONG_USAGE) from error


def refuse_inputs(outputs: Mapping[str, StrPath | None], inputs: Iterable[StrPath]) -> None:
    """Refuse, before the work, to write over a file that is read.

    Args:
        outputs: the file that each option names; None where it is not given.
        inputs: files to be read. They are only looked at if an output exists.
    """
    existing = {}
    for option, path in outputs.items():
        if path is not None and file_id(path) is not None:
            existing[file_id(path)] = (option, os.fspath(path))
    if not existing:
        return

    for path in inputs:
        option, output = existing.get(file_id(path), ("", ""))
        if option:
            spelling = ""
            if output != os.fspath(path):
                spelling = f" ({os.fspath(path)!r})"
            message = f"{option} {output!r} is an input{spelling} and would be overwritten: name another file"
            raise OutputError(errno.EEXIST, message, output)


def files_among(values: Iterable[Any]) -> Iterator[StrPath]:
    """The paths among a command's options, those in lists too."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from files_among(value)
        elif isinstance(value, str | os.PathLike):
            yield value


def check_not_read(outputs: Mapping[str, StrPath | None], inputs: Iterable[StrPath]) -> None:
    """Check, before the work, that no output is an input."""
    try:
        refuse_inputs(outputs, inputs)
    except OSError as error:
        raise CommandError(str(error), WRONG_USAGE) from error


def write(text: str, output: str | None = None, instead: str = "name a file with --output") -> None:
    """Write to stdout, or atomically to a file; if the file fails after all the work, to stdout.

    Args:
        instead: what the user can do if stdout cannot be written.
    """
    if output is not None:
        try:
            with replacing(Path(output)) as temporary:
                temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # file names may not be UTF-8
        except OSError as error:
            write(text, instead=instead)
            raise CommandError(f"{error}; the result is on stdout instead") from error
        return
    _print(text, instead)


def write_with_page(text: str, output: str | None, write_page: Callable[[], object] | None) -> None:
    """Write results as `write` does, and then their page, if there is one, each even where the other fails."""
    try:
        write(text, output)
    finally:  # even if nobody reads stdout any more
        if write_page is not None:
            try:
                write_page()
            except OSError as error:
                place = f"are in {output}" if output else "were printed"
                raise CommandError(f"{error}; the results {place}") from error


def _print(text: str, instead: str) -> None:
    """Print on stdout, and see that it arrives."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"cannot write to stdout: {error}; {instead}") from error


def _flush() -> None:
    """Discard output that cannot be written, on which Python would otherwise fail at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
