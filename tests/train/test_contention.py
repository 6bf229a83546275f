"""Steps on a machine whose cores others use: noticed from readings, and said once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from idmetric.train import loop
from idmetric.train.contention import CoreWatch, _tree_ticks, others_seconds, spins, waited_seconds
from idmetric.train.loop import TrainSettings, fit
from idmetric.train.processes import Processes
from tests.train_parts import Config, PairRecipe


def notes(readings: list[tuple[float, float]], threads: int = 2, others_cores: float = 1.0) -> list[str]:
    """What is said after each reading of the clock and of the seconds that threads have waited.

    Args:
        others_cores: cores that other programs use all the time.
    """
    clock: Iterator[float] = iter([seconds for seconds, _ in readings])
    waited: Iterator[float] = iter([seconds for _, seconds in readings])
    others: Iterator[float] = iter([100 + others_cores * seconds for seconds, _ in readings])
    watch = CoreWatch(threads, waited=waited.__next__, others=others.__next__, clock=clock.__next__)
    return [watch.look() for _ in readings[1:]]


def test_threads_that_wait_for_cores_are_said_once_after_two_readings() -> None:
    """2 threads that waited 8 of 5 s x 2 (80 %), then 12 of 8 s x 2 (75 %)."""
    said = notes([(0, 1), (5, 9), (13, 21), (18, 29), (23, 37)])
    assert [bool(text) for text in said] == [False, True, False, False]
    assert "each of torch's 2 threads waited for one in 75% of the last 8 s" in said[1]
    assert "OMP_WAIT_POLICY=PASSIVE, or a smaller OMP_NUM_THREADS" in said[1]


def test_a_quiet_machine_or_a_short_rival_is_not_spoken_of() -> None:
    assert notes([(0, 1), (5, 1.1), (10, 1.2), (15, 1.2)]) == ["", "", ""]
    assert notes([(0, 1), (5, 9), (10, 9.1), (15, 17), (20, 17.1)]) == [""] * 4  # one reading at a time
    assert notes([(0, 0), (5, 2.9), (10, 5.8)]) == ["", ""]  # 29 % each


def test_threads_that_wait_for_their_own_loading_processes_are_not_put_down_to_others() -> None:
    """40 % of the time waited on a quiet machine, where others use 0.1 of a core; and with a neighbor, who uses 0.5."""
    readings = [(0.0, 0.0), (5.0, 4.0), (10.0, 8.0)]
    assert notes(readings, others_cores=0.1) == ["", ""]
    assert "in 40% of the last 5 s" in notes(readings, others_cores=0.5)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_child_at_work_counts_as_the_process_itself(tmp_path: Path) -> None:
    """A child burns half a second of CPU time: it is in the tree's ticks while it lives, and after it has ended."""
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = _tree_ticks("self")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()  # type: ignore[union-attr]
        assert _tree_ticks(str(child.pid)) >= 48
        living = _tree_ticks("self")
    assert living - before >= 48
    assert _tree_ticks("self") >= living
    assert others_seconds() is not None


def test_nothing_is_said_where_the_kernel_counts_nothing() -> None:
    watch = CoreWatch(2, waited=lambda: None, others=lambda: 0.0, clock=iter([0.0, 9.0, 18.0]).__next__)
    assert watch.look() == watch.look() == ""
    waited = iter([0.0, 9.0, 18.0])
    watch = CoreWatch(2, waited=waited.__next__, others=lambda: None, clock=iter([0.0, 9.0, 18.0]).__next__)
    assert watch.look() == watch.look() == ""


def test_threads_spin_unless_there_is_one_or_the_environment_forbids_it() -> None:
    assert spins(2, {})
    assert spins(8, {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "100"})
    assert not spins(1, {})
    for name, value in {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}.items():
        assert not spins(2, {name: value})


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/task")
def test_the_kernel_counts_seconds_that_never_become_fewer() -> None:
    first = waited_seconds()
    if first is None:
        pytest.skip("this kernel keeps no run queue statistics")
    assert first <= waited_seconds()


def test_a_run_prints_the_note_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Noticing(CoreWatch):
        def look(self) -> str:
            self.looks = getattr(self, "looks", 0) + 1
            return "note: other processes use the cores" if self.looks == 2 else ""

    monkeypatch.setattr(loop, "CoreWatch", Noticing)
    monkeypatch.setattr(loop, "spins", lambda threads: True)
    processes = Processes(cpu=True)
    fit(PairRecipe(Config(steps=4), processes), tmp_path / "run", TrainSettings(workers=0), processes)
    assert capsys.readouterr().out.count("note: other processes use the cores") == 1
