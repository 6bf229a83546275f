"""How the commands that print results end."""

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


def ended(run: Callable[[], int], parser: argparse.ArgumentParser) -> int:
    """The exit status of a run; wrong usage ends with the parser's own message and status 2."""
    with _interrupts() as seen:
        status = _ended(run, parser)
    return 130 if seen and status else status  # C code can tell Ctrl-C as an error of its own: torch, loading weights


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
        parser.error(str(error))
    except LostOutputError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        drop_stdout()
        return 1
    except KeyboardInterrupt:
        return 130


def drop_stdout() -> None:
    """Let what is still to be printed vanish, so that Python does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
