"""benchmarks/faults.toml: each named fault can still be made in the code as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import faults

ROOT = Path(__file__).parents[2]
TABLE = faults.read_table()


@pytest.mark.parametrize("fault", TABLE, ids=lambda fault: fault.name)
def test_a_fault_fits_its_file_once(fault: faults.Fault) -> None:
    patched = fault.patch.applied(ROOT)
    compile(patched, fault.patch.file, "exec")


def test_names_of_faults_differ() -> None:
    names = [fault.name for fault in TABLE]
    assert len(names) == len(set(names)) >= 80


def test_a_patch_that_no_longer_fits_is_stale(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n", encoding="utf-8")
    patch = faults.Patch("a.py", "x = 1", "x = 2", ())
    outcome = faults.outcome_of(TABLE[0], patch, tmp_path)
    assert outcome.verdict == faults.STALE
    assert not outcome.is_good
