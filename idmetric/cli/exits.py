"""How commands end: exit codes, one line on stderr for an error, and the message after Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from idmetric.cli.output import LostOutputError, UsageError
from idmetric.cli.streams import drop_stdout
from idmetric.io.hints import MissingExtraError

CODES = {
    0: "done",
    1: "error",
    2: "wrong usage",
    3: "a distance exceeds --threshold",
    4: "done, but images were skipped",
    130: "stopped by Ctrl-C",
    143: "stopped by SIGTERM",
}
_running = ["idmetric"]  # names of the commands that run, the innermost last


class CommandError(Exception):
    """An error that the user can fix; the message says how."""


def codes(*numbers: int) -> str:
    """The line of --help that lists a command's exit codes."""
    return f"Exit status: {', '.join(f'{number} {CODES[number]}' for number in numbers)}."


def say(line: str) -> None:
    """Print a line on stderr, after the name of the running command."""
    print(f"{_running[-1]}: {line}", file=sys.stderr)


def failed(error: object) -> int:
    """Print an error as one line on stderr; returns exit status 1."""
    say(f"error: {' '.join(str(error).split())}")
    return 1


@contextmanager
def warnings_as_lines(quiet: bool = False, show: Callable[[str], object] = say) -> Iterator[None]:
    """Show each warning that is given in the block as a line on stderr, once."""
    shown: set[str] = set()

    def show_text(message: Warning | str, *_: object, **__: object) -> None:
        text = str(message)
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
    from idmetric.checkpoints.errors import CheckpointError

    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        if not isinstance(error, (CheckpointError, ImportError, ValueError, OSError, *more)):
            raise
        raise CommandError(" ".join(str(error).split()) if in_one_line else str(error)) from error


def ended(run: Callable[[], int], parser: argparse.ArgumentParser, kept: str = "nothing was written") -> int:
    """Run a command; returns its exit status. Wrong usage and Ctrl-C print one line, with status 2 and 130.

    Args:
        kept: printed when Ctrl-C stops the run: the results that are kept, and how the command resumes.
    """
    _running.append(parser.prog)
    try:
        return _interruptible(run, parser, kept)
    finally:
        _running.pop()


def _interruptible(run: Callable[[], int], parser: argparse.ArgumentParser, kept: str) -> int:
    with _interrupts() as seen:
        try:
            status = _ended(run, parser)
        except (Exception, KeyboardInterrupt) as error:
            # libraries may turn Ctrl-C into another error, even while they are imported
            if not seen and not isinstance(error, KeyboardInterrupt):
                raise
            seen.append(signal.SIGINT)
            status = 130
    if not (seen and status):
        return status
    say(f"stopped; {kept}")
    return 130


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Leave Ctrl-C as it is within the block, and record each one in a list."""
    seen: list[int] = []
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield seen
        return

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _ended(run: Callable[[], int], parser: argparse.ArgumentParser) -> int:
    try:
        return run()
    except UsageError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except (CommandError, LostOutputError, MissingExtraError) as error:
        say(f"error: {error}")
        return 1
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        drop_stdout()
        return 1
