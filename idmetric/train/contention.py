"""Notices that other processes use the cores that this one's threads need: then a step can take many times as long.

torch's threads (OpenMP) wait for each other by spinning. If one of them has lost its core to another process, the
others burn theirs until it returns, in each operation of a step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SECONDS = 5.0  # between two readings
_SHARE = 0.3  # of the time in which a thread waits for a core; 0.00 alone on a machine, 0.5 to 0.9 on one with a rival
_READINGS = 2  # in a row

_PASSIVE = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}  # settings without spinning


def waited_seconds() -> float | None:
    """Seconds that the threads of this process have been ready to run without a core (Linux); None if not known."""
    nanoseconds = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            nanoseconds += int(path.read_text().split()[1])
        except (OSError, ValueError, IndexError):  # a thread that has ended, a kernel without the numbers
            continue
    return nanoseconds / 1e9 if nanoseconds else None


def spins(threads: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torch's threads wait by spinning: there are several, and the environment does not forbid it."""
    is_passive = any(environment.get(name, "").lower() == value for name, value in _PASSIVE.items())
    return threads > 1 and not is_passive


@dataclass
class CoreWatch:
    """Looks between steps how long torch's threads wait for a core, and says it once.

    Args:
        threads: of torch.
        waited: as `waited_seconds`. clock: seconds that pass.
    """

    threads: int
    waited: Callable[[], float | None] = waited_seconds
    clock: Callable[[], float] = time.monotonic
    _start: float = field(init=False)
    _waited: float | None = field(init=False)
    _slow_readings: int = field(init=False, default=0)
    _is_said: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._start = self.clock()
        self._waited = self.waited()

    def look(self) -> str:
        """The note for the user, the first time that two readings in a row call for it; otherwise ""."""
        seconds = self.clock() - self._start
        if self._is_said or self._waited is None or seconds < _SECONDS:
            return ""
        waited = self.waited() or self._waited
        share = (waited - self._waited) / (seconds * self.threads)
        self._start += seconds
        self._waited = waited
        self._slow_readings = self._slow_readings + 1 if share > _SHARE else 0
        if self._slow_readings < _READINGS:
            return ""
        self._is_said = True
        return (
            f"note: other processes use the cores: each of torch's {self.threads} threads waited for one in "
            f"{min(share, 1):.0%} of the last {seconds:.0f} s, and steps can take many times as long. Stop, and resume "
            "by the same command with OMP_WAIT_POLICY=PASSIVE, or a smaller OMP_NUM_THREADS, in the environment"
        )
