"""A line on stderr: how many are done, how fast, how long it will take."""

from __future__ import annotations

import sys
import time
from collections import deque

_LOOK_BACK = 60.0  # seconds that the speed is that of: what a resumed run passes over says nothing about the rest
_REDRAW = 0.1  # seconds


class Progress:
    """Called with (done, total); silent unless `show` and stderr is a terminal."""

    def __init__(self, unit: str, show: bool = True) -> None:
        self.unit, self.show = unit, show and sys.stderr.isatty()
        self._seen: deque[tuple[float, int]] = deque()
        self._drawn = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Redraw the line, now and then."""
        now = time.monotonic()
        if not self.show or (now - self._drawn < _REDRAW and done < total):
            return
        self._drawn = now
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _LOOK_BACK:
            self._seen.popleft()
        print(f"\r\033[K{done}/{total} {self.unit}{self._left(total)}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the line away."""
        if self.show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _left(self, total: int) -> str:
        """Speed and time left, once there is something to tell them from."""
        (began, first), (now, done) = self._seen[0], self._seen[-1]
        if now - began < 1 or done <= first:
            return ""
        speed = (done - first) / (now - began)
        minutes, seconds = divmod(round((total - done) / speed), 60)
        return f", {speed:.3g} a second, {minutes // 60}:{minutes % 60:02}:{seconds:02} left"
