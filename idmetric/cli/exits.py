"""How commands end: exit status, one line on stderr for wrong usage, and what is kept where Ctrl-C stops them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from idmetric.cli.score_format import LostOutputError, UsageError
from idmetric.io.hints import MissingExtraError


def ended(run: Callable[[], int], parser: argparse.ArgumentParser, kept: str = "nothing was written") -> int:
    """The exit status of a run; wrong usage exits with one line and status 2, Ctrl-C with one line and status 130.

    Args:
        kept: printed where Ctrl-C stops the run: what is kept, and how the command resumes.
    """
    with _interrupts() as seen:
        try:
            status = _ended(run, parser)
        except (Exception, KeyboardInterrupt) as error:
            # libraries may report Ctrl-C as an error of their own, even while they are imported
            if not seen and not isinstance(error, KeyboardInterrupt):
                raise
            seen.append(signal.SIGINT)
            status = 130
    if not (seen and status):
        return status
    print(f"{parser.prog}: stopped; {kept}", file=sys.stderr)
    return 130


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C as always within the block, and a list of the times that it came."""
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
    except (LostOutputError, MissingExtraError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        drop_stdout()
        return 1


def drop_stdout() -> None:
    """Let what is still to be printed vanish, so that Python does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
