"""Results that are kept on disk: bit for bit, for the same inputs alone, and never damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from idmetric.protocols.common import remembered as module
from idmetric.protocols.common.remembered import Arrays, remembered

INPUTS = {"features": np.arange(6.0).reshape(2, 3), "settings": "seed 0"}


class Counted:
    """A computation that counts its calls."""

    calls = 0

    def __call__(self) -> Arrays:
        self.calls += 1
        return {"a": np.array([0.1, np.nan]), "b": np.array([True, False]), "none": np.empty((0, 4))}


def same(found: Arrays, expected: Arrays) -> bool:
    return found.keys() == expected.keys() and all(
        np.array_equal(found[k], v, equal_nan=v.dtype.kind == "f") and found[k].dtype == v.dtype
        for k, v in expected.items()
    )


def test_the_second_call_reads_what_the_first_computed(tmp_path: Path) -> None:
    compute = Counted()
    first = remembered(tmp_path / "new" / "x.safetensors", INPUTS, compute)
    again = remembered(tmp_path / "new" / "x.safetensors", INPUTS, compute)
    assert compute.calls == 1
    assert same(again, first)


@pytest.mark.parametrize(
    "other",
    [
        {**INPUTS, "settings": "seed 1"},
        {**INPUTS, "features": np.arange(6.0).reshape(3, 2)},
        {**INPUTS, "features": np.arange(6).reshape(2, 3)},
        {**INPUTS, "features": np.nextafter(INPUTS["features"], 9)},
    ],
)
def test_other_inputs_are_computed(tmp_path: Path, other: dict[str, np.ndarray | str]) -> None:
    compute = Counted()
    for inputs in (INPUTS, other, INPUTS):
        remembered(tmp_path / "x.safetensors", inputs, compute)
    assert compute.calls == 3


def test_another_version_computes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Counted()
    remembered(tmp_path / "x.safetensors", INPUTS, compute)
    monkeypatch.setattr(module, "__version__", "0.0.1")
    remembered(tmp_path / "x.safetensors", INPUTS, compute)
    assert compute.calls == 2


@pytest.mark.parametrize("at", [4, -1, -9])
def test_a_flipped_byte_is_noticed(tmp_path: Path, at: int) -> None:
    compute, file = Counted(), tmp_path / "x.safetensors"
    first = remembered(file, INPUTS, compute)
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert same(remembered(file, INPUTS, compute), first)
    assert compute.calls == 2


def test_a_folder_that_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert same(remembered(tmp_path / "file" / "x.safetensors", INPUTS, Counted()), Counted()())
