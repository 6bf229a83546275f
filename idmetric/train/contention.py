"""Notices that other processes use the cores that this one's threads need: then a step can take many times as long.

torch's threads (OpenMP) wait for each other by spinning. If one of them has lost its core to another process, the
others burn theirs until it returns, in each operation of a step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

_SECONDS = 5.0  # between two readings
_SHARE = 0.3  # of the time in which a thread waits for a core; 0.00 alone on a machine, 0.5 to 0.9 on one with a rival
_OTHERS = 0.3  # cores that others use; of less than that, this process's own threads and children are the rivals
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


def others_seconds() -> float | None:
    """CPU seconds that all but this process and its descendants have used on its cores (Linux); None if not known.

    Loading processes are descendants: what they use, the run can give back by --workers.
    """
    try:
        cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        table = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        ticks = sum(_busy_ticks(words) for words in table if words[0] in cores)
        return (ticks - _tree_ticks("self")) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError, IndexError):  # another system, a kernel without the numbers
        return None


def _busy_ticks(words: Sequence[str]) -> int:
    """Ticks that a core was not idle, from its line of /proc/stat: user, nice, system, irq, softirq, steal."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[1:9])
    return user + nice + system + irq + softirq + steal


def _tree_ticks(process: str) -> int:
    """Ticks that a process, its ended children and its descendants have used; 0 of one that has ended."""
    folder = Path("/proc", process)
    try:
        words = (folder / "stat").read_text().rpartition(")")[2].split()  # the name, before, may hold spaces
        children = [path.read_text().split() for path in folder.glob("task/*/children")]
    except OSError:
        return 0
    own_ticks = sum(int(word) for word in words[11:15])  # user and system, of the process and of ended children
    return own_ticks + sum(_tree_ticks(child) for child in chain.from_iterable(children))


def spins(threads: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torch's threads wait by spinning: there are several, and the environment does not forbid it."""
    is_passive = any(environment.get(name, "").lower() == value for name, value in _PASSIVE.items())
    return threads > 1 and not is_passive


@dataclass
class CoreWatch:
    """Looks between steps how long torch's threads wait for cores that other programs use, and says it once.

    Args:
        threads: of torch.
        waited: as `waited_seconds`. others: as `others_seconds`. clock: seconds that pass.
    """

    threads: int
    waited: Callable[[], float | None] = waited_seconds
    others: Callable[[], float | None] = others_seconds
    clock: Callable[[], float] = time.monotonic
    _start: float = field(init=False)
    _waited: float | None = field(init=False)
    _others: float | None = field(init=False)
    _slow_readings: int = field(init=False, default=0)
    _is_said: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._start = self.clock()
        self._waited = self.waited()
        self._others = self.others()

    def look(self) -> str:
        """The note for the user, the first time that two readings in a row call for it; otherwise ""."""
        seconds = self.clock() - self._start
        if self._is_said or self._waited is None or self._others is None or seconds < _SECONDS:
            return ""
        waited = self.waited() or self._waited
        others = self.others() or self._others
        share = (waited - self._waited) / (seconds * self.threads)
        others_cores = (others - self._others) / seconds
        self._start += seconds
        self._waited = waited
        self._others = others

        is_slow = share > _SHARE and others_cores > _OTHERS
        self._slow_readings = self._slow_readings + 1 if is_slow else 0
        if self._slow_readings < _READINGS:
            return ""
        self._is_said = True
        return (
            f"note: other processes use the cores: each of torch's {self.threads} threads waited for one in "
            f"{min(share, 1):.0%} of the last {seconds:.0f} s, and steps can take many times as long. Stop, and resume "
            "by the same command with OMP_WAIT_POLICY=PASSIVE, or a smaller OMP_NUM_THREADS, in the environment"
        )
