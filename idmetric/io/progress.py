"""Progress on stderr: a line that is redrawn on a terminal, and a plain line every half minute in a log."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

_LOOK_BACK = 60.0  # seconds over which speed is taken: items that a resumed run skips say nothing about the rest
_REDRAW = 0.1  # seconds


class Progress:
    """Called with (done, total), or (done, None) where the total is unknown.

    On a terminal one line is redrawn. Elsewhere a line such as "embedded 1200 of 5000 images, 24 %, about 3 min left"
    is written whenever `every` seconds have passed, so that short work stays silent.

    Args:
        unit: of the counts, in the plural. verb: that the line begins with, such as "embedded".
        show: False silences it. every: seconds between lines in a log. stream: default stderr.
    """

    def __init__(
        self, unit: str, show: bool = True, *, verb: str = "", every: float = 30.0, stream: TextIO | None = None
    ) -> None:
        self.unit, self.verb, self.show, self.every, self._stream = unit, verb, show, every, stream
        self._terminal = self._file.isatty()
        self._seen: deque[tuple[float, int]] = deque()
        self._total: int | None = None
        self._written = time.monotonic()

    def __call__(self, done: int, total: int | None) -> None:
        """Write a line, now and then."""
        now = time.monotonic()
        if not self.show:
            return
        if self._seen and (total != self._total or done < self._seen[-1][1]):  # another piece of work
            self._seen.clear()
        if self._seen and now - self._seen[-1][0] < _REDRAW and done != total:
            return
        self._total = total
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > max(_LOOK_BACK, 2 * self.every):
            self._seen.popleft()
        if self._terminal:
            self._write(f"\r\033[K{self._short(done, total)}")
        elif now - self._written >= self.every:
            self._written = now
            self._write(f"{self._long(done, total)}\n")

    def over(self, items: Iterable[T], total: int | None = None) -> Iterator[T]:
        """The items; each counts as done when the next is asked for."""
        done = 0
        with self:
            for item in items:
                yield item
                done += 1
                self(done, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Clear the line on a terminal."""
        if self.show and self._terminal and self._seen:
            self._write("\r\033[K")

    def pause(self) -> None:
        """Count `every` from now: something else was written to the log."""
        self._written = time.monotonic()

    @property
    def _file(self) -> TextIO:
        return sys.stderr if self._stream is None else self._stream

    def _write(self, text: str) -> None:
        print(text, end="", file=self._file, flush=True)

    def _short(self, done: int, total: int | None) -> str:
        """For a terminal."""
        counts = f"{done} {self.unit}" if total is None else f"{done}/{total} {self.unit}"
        speed = self._speed()
        if not speed:
            return counts
        counts += f", {speed:.3g} a second"
        if total is None:
            return counts
        minutes, seconds = divmod(round((total - done) / speed), 60)
        return f"{counts}, {minutes // 60}:{minutes % 60:02}:{seconds:02} left"

    def _long(self, done: int, total: int | None) -> str:
        """For a log."""
        verb = f"{self.verb} " if self.verb else ""
        if total is None:
            return f"{verb}{done} {self.unit}"
        share = f"{verb}{done} of {total} {self.unit}, {100 * done // max(1, total)} %"
        speed = self._speed()
        return f"{share}, about {_duration((total - done) / speed)} left" if speed else share

    def _speed(self) -> float:
        """Counts in a second; 0 where too little has been seen."""
        (began, first), (now, done) = self._seen[0], self._seen[-1]
        return (done - first) / (now - began) if now - began >= min(1.0, self.every) and done > first else 0.0


def _duration(seconds: float) -> str:
    """In seconds below 90 s, minutes below 90 min, else hours."""
    if seconds < 90:
        return f"{round(seconds)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def check_writer(writer: Any) -> None:
    """Check that numbers can be logged to a writer.

    Raises:
        TypeError: for a writer of another kind than those of `log_scalars`.
    """
    if not (hasattr(writer, "add_scalar") or hasattr(writer, "log") or callable(writer)):
        raise TypeError(
            f"cannot log to a {type(writer).__name__}: give a SummaryWriter, a run of wandb, an Accelerator, or a "
            "function of (numbers, step)"
        )


def log_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Log numbers by name.

    Args:
        writer: TensorBoard's `SummaryWriter`; a run of Weights & Biases or an `Accelerator`, with
            `log(numbers, step=...)`; or a function of (numbers, step).
    """
    if hasattr(writer, "add_scalar"):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    elif hasattr(writer, "log"):
        writer.log(dict(values), step=step)
    else:
        writer(dict(values), step)
