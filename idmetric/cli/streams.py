"""Robust stdout and stderr: closed by the shell, strict about names, or read by nobody any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec

Options = ParamSpec("Options")


def guarded(main: Callable[Options, int]) -> Callable[Options, int]:
    """Keep a command running until its results are written, whatever happens to its streams.

    - Descriptors 0 to 2 that the shell has closed (`>&-`) are opened on the null device, since the next file opened
      would otherwise receive their output. `sys.stdout` stays None, and a command can refuse to print results.
    - Messages that cannot be written to stderr are dropped.
    - Bytes of file names that are not text are written to stdout as `\\udcXX`, as JSON writes them.
    - Output for a stdout that nobody reads any more is dropped, and the status is 1.
    """

    @wraps(main)
    def run(*args: Options.args, **options: Options.kwargs) -> int:
        _open_closed()
        broken = False
        with _escaping_names(), _messages():
            try:
                status = main(*args, **options)
            finally:
                broken = _is_broken()
        return status or int(broken)

    return run


class _Messages:
    """A text stream on which writing never fails."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


@contextmanager
def _messages() -> Iterator[None]:
    kept, null = sys.stderr, None
    if kept is None:
        null = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # closed below
    sys.stderr = _Messages(kept or null)
    try:
        yield
    finally:
        sys.stderr = kept
        if null is not None:
            null.close()


@contextmanager
def _escaping_names() -> Iterator[None]:
    stream: Any = sys.stdout
    before = getattr(stream, "errors", None)
    if before not in ("strict", "surrogateescape") or not hasattr(stream, "reconfigure"):
        yield
        return
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            stream.reconfigure(errors=before)


def drop_stdout() -> None:
    """Discard pending output, on which Python would otherwise fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _is_broken() -> bool:
    """Whether stdout cannot take the rest of the output, which is then dropped."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            drop_stdout()
        return True
    return False
