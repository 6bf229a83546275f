"""Progress of long work: a bar on stderr, and numbers for a writer of logs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
REDRAW = 0.1  # seconds


class _Stderr:
    """A stream that loses what it cannot write, as on a full disk, instead of stopping the work.

    tqdm keeps its lock if writing fails, and the bars of other threads would then wait forever.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write text, if possible."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, if possible."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress:
    """tqdm's bar on stderr, called with (done, total), or (done, None) where the total is unknown.

    In a log, where a bar cannot be redrawn, it is written every half minute, so that short work stays silent.

    Args:
        unit: of the counts, in the plural. show: False silences it. verb: that the line begins with, such as
            "embedded".
    """

    def __init__(self, unit: str, show: bool = True, *, verb: str = "") -> None:
        self.unit = unit
        self.show = show
        self.verb = verb
        self._bar: Any = None

    def __call__(self, done: int, total: int | None) -> None:
        """Show the counts, now and then."""
        if not self.show or sys.stderr is None:  # there is none in a program without a console
            return
        if self._bar is not None and (total != self._bar.total or done < self._bar.n):  # another piece of work
            self.clear()
        if self._bar is None:
            from tqdm import tqdm  # a command's --help does without

            seconds = 30.0  # in a log
            if sys.stderr.isatty():
                seconds = REDRAW
            self._bar = tqdm(
                desc=self.verb or None,
                unit=f" {self.unit}",
                total=total,
                leave=False,
                file=_Stderr(sys.stderr),
                mininterval=seconds,
                delay=seconds,
                dynamic_ncols=True,
            )
        self._bar.update(done - self._bar.n)

    def over(self, items: Iterable[T], total: int | None = None) -> Iterator[T]:
        """The items; each counts as done when the next is asked for."""
        with self:
            for done, item in enumerate(items, 1):
                yield item
                self(done, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Clear the line on a terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
