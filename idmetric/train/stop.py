"""Reasons for a run to stop before its end: a signal, or a batch with a loss that is not finite."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from idmetric.train.state import TrainError


class NotFinite(TrainError):
    """A loss or gradient that is NaN or infinite."""


class Stopped(Exception):
    """Training was asked to stop (SIGTERM, Ctrl-C) and has written a checkpoint.

    Attributes:
        step: steps done. signal: number of the signal.
    """

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"stopped after step {step}, which is saved: the same command resumes from there")
        self.step, self.signal = step, number


class Interrupts:
    """Within the block, SIGTERM and Ctrl-C only set `number`; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.number = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self.before = {n: signal.signal(n, self._ask) for n in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
