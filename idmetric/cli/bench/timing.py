"""Times of functions: repeated, warmed up, the garbage collector off, and taken in turns where they are compared."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

Run = Callable[[], Any]
LEAST = 3  # counted runs, however long they take


@dataclass(frozen=True)
class Timing:
    """The runs of one function.

    Args:
        seconds: of each counted run, in order.
        items: images or pairs that one run deals with.
        peak: bytes taken beyond what was held before, at the highest; None where that cannot be told.
        cpu: seconds of processor time of each run, all threads and child processes together; empty where another
            device computes. Other programs change them far less than `seconds`.
    """

    seconds: tuple[float, ...]
    items: int = 1
    peak: int | None = None
    cpu: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Seconds of one run."""
        return statistics.median(self.seconds)

    @property
    def p90(self) -> float:
        """Seconds that nine runs in ten do not exceed (nearest rank)."""
        return sorted(self.seconds)[math.ceil(0.9 * len(self.seconds)) - 1]

    @property
    def rate(self) -> float:
        """Items per second, by the median."""
        return self.items / self.median


@dataclass(frozen=True)
class Ratio:
    """How many times as long a takes as b: the median over the rounds, and the lowest and highest round."""

    median: float
    low: float
    high: float
    rounds: int


def ratio(a: Timing, b: Timing) -> Ratio:
    """Time of an item of a over that of an item of b, round by round: `alternate` has measured them side by side.

    Raises:
        ValueError: if they have not equally many rounds.
    """
    return _ratio(a.seconds, b.seconds, a.items / b.items)


def cpu_ratio(a: Timing, b: Timing) -> Ratio | None:
    """`ratio` of their processor time; None where it was not taken."""
    return _ratio(a.cpu, b.cpu, a.items / b.items) if a.cpu and b.cpu else None


def _ratio(a: Sequence[float], b: Sequence[float], items: float) -> Ratio:
    # the clock of processor time may stand still over the shortest runs
    found = [x / max(y, 1e-9) / items for x, y in zip(a, b, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found), len(found))


@dataclass(frozen=True)
class Clock:
    """How to measure.

    Args:
        device: where the functions compute: CUDA and MPS are waited for.
        repeats: counted runs of each function, at least 3.
        warmup: runs before them that do not count.
        budget: seconds after which a measurement of several functions starts no further round, once it has 3.
    """

    device: torch.device
    repeats: int = 10
    warmup: int = 1
    budget: float = math.inf

    def time(self, run: Run, items: int = 1, memory: bool = True) -> Timing:
        """Times of one function, and its peak of memory, taken in a run of its own after the others."""
        timing = self.alternate({"": run}, {"": items})[""]
        return replace(timing, peak=self.peak(run)) if memory else timing

    def alternate(self, runs: Mapping[str, Run], items: Mapping[str, int] | None = None) -> dict[str, Timing]:
        """Times of several functions in turns, A B B A A B ..., so that a drift of the machine meets all alike.

        Args:
            runs: name -> function without arguments.
            items: name -> what one call of it deals with; 1 where it is not named.
        """
        names = list(runs)
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        with quiet():
            for name in names * self.warmup:
                self._once(runs[name])
            start = time.perf_counter()
            for k in range(max(LEAST, self.repeats)):
                if k >= LEAST and time.perf_counter() - start > self.budget:
                    break
                for name in names if k % 2 == 0 else reversed(names):
                    seconds[name].append(self._once(runs[name]))
        found = {}
        for name in names:
            wall, cpu = zip(*seconds[name], strict=True)
            used = cpu if self.device.type == "cpu" else ()
            found[name] = Timing(wall, (items or {}).get(name, 1), cpu=used)
        return found

    def _once(self, run: Run) -> tuple[float, float]:
        self.wait()
        start, busy = time.perf_counter(), _processor_time()
        run()
        self.wait()
        return time.perf_counter() - start, _processor_time() - busy

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def peak(self, run: Run) -> int | None:
        """Bytes that a run holds at most beyond what was held before: on the GPU, or else of this process."""
        with quiet():
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
                before = torch.cuda.memory_allocated(self.device)
                self._once(run)
                return torch.cuda.max_memory_allocated(self.device) - before
            return _peak_resident(run) if self.device.type == "cpu" else None


def _processor_time() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No graph, and no garbage collection but one at the start."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            yield
    finally:
        if was:
            gc.enable()


def _peak_resident(run: Run) -> int | None:
    """Bytes that this process grows by at the highest, as Linux counts them; None elsewhere."""
    try:
        _give_back()
        Path("/proc/self/clear_refs").write_text("5")  # the highest is counted from here
        before = _status("VmRSS")
        run()
        return max(0, _status("VmHWM") - before)
    except OSError:
        return None


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def _give_back() -> None:
    """Memory that was freed but is kept for later goes back to the system: its use again would not be seen."""
    with contextlib.suppress(OSError, AttributeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)
