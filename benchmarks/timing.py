"""Timing of functions, with repeats, warm-up and the garbage collector off; compared functions take turns."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        seconds: duration of each counted run, in order.
        items: number of images or pairs in one run.
        peak: most bytes allocated during a run; None if unknown.
        cpu: seconds of processor time of each run, of all threads and child processes; empty if another device
            computes. Other programs change it far less than `seconds`.
    """

    seconds: tuple[float, ...]
    items: int = 1
    peak: int | None = None
    cpu: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Median seconds of one run."""
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
    """The time of a over the time of b: the median over the rounds, and the lowest and highest round."""

    median: float
    low: float
    high: float
    rounds: int


def ratio(a: Timing, b: Timing) -> Ratio:
    """Return the time per item of a over that of b, round by round, as `alternate` has measured them.

    Raises:
        ValueError: if their numbers of rounds differ.
    """
    return _ratio(a.seconds, b.seconds, a.items / b.items)


def cpu_ratio(a: Timing, b: Timing) -> Ratio | None:
    """Return the `ratio` of their processor times; None if they were not measured."""
    return _ratio(a.cpu, b.cpu, a.items / b.items) if a.cpu and b.cpu else None


def _ratio(a: Sequence[float], b: Sequence[float], items: float) -> Ratio:
    # the clock of processor time may stand still over the shortest runs
    found = [x / max(y, 1e-9) / items for x, y in zip(a, b, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found), len(found))


@dataclass(frozen=True)
class Clock:
    """Measures the times of functions.

    Args:
        device: the device on which the functions compute; CUDA and MPS are synchronized.
        repeats: number of counted runs of each function, at least 3.
        warmup: number of runs before them that are not counted.
        budget: seconds after which no further round starts, once there are 3.
    """

    device: torch.device
    repeats: int = 10
    warmup: int = 1
    budget: float = math.inf

    def time(self, run: Run, items: int = 1, memory: bool = True) -> Timing:
        """Measure one function, and its peak memory in one more run."""
        timing = self.alternate({"": run}, {"": items})[""]
        return replace(timing, peak=self.peak(run)) if memory else timing

    def alternate(self, runs: Mapping[str, Run], items: Mapping[str, int] | None = None) -> dict[str, Timing]:
        """Measure several functions in turns, A B B A A B ..., so a drift of the machine affects all of them equally.

        Args:
            runs: name -> function without arguments.
            items: name -> number of items in one call; default 1.
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
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def peak(self, run: Run) -> int | None:
        """Return the most bytes that a run allocates, on the GPU, or else in this process."""
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
    """Build no graph, and collect garbage only once, at the start."""
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
    """Return the most bytes by which this process grows during a run, as Linux counts them; None elsewhere."""
    try:
        _give_back()
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        before = _status("VmRSS")
        run()
        return max(0, _status("VmHWM") - before)
    except OSError:
        return None


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def _give_back() -> None:
    """Return freed memory to the system, as its reuse would not be counted."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def parser_of(description: str | None, sections: Iterable[str], seconds: float) -> argparse.ArgumentParser:
    """A parser with the options that timed comparisons share.

    Args:
        sections: what --only chooses from. seconds: after which no further round begins.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(sections), help="may be repeated (default: all)")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--random-weights", action="store_true", help="published architectures without a download")
    parser.add_argument("--device")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--seconds", type=float, default=seconds, help="no further round after this time")
    return parser


def add_counts(parser: argparse.ArgumentParser, **defaults: int) -> None:
    """Add options that are whole numbers."""
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
