"""Pickled tensors are read as torch reads them; files that would take more memory than their size are refused."""

from __future__ import annotations

import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from idmetric.checkpoints.pth_file import load_pickled_tensors
from tests.fuzz import forget_peak, status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "head.pth"


def rewritten(path: Path, compression: int, change: Callable[[str, bytes], bytes] = lambda _, data: data) -> None:
    """The same zip members, stored otherwise."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path.with_suffix(".new"), "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    shutil.move(path.with_suffix(".new"), path)


class Call:
    """Pickled as a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def test_files_of_torch_save_are_read_as_torch_reads_them(path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    views = torch.arange(12.0).reshape(3, 4)
    for saved in (
        model.state_dict(),
        {"a": torch.ones(3).bfloat16(), "b": nn.Parameter(torch.ones(2, 2)), "c": torch.ones(2) > 0},
        OrderedDict(a=torch.zeros(0), b=views.T),
    ):
        torch.save(saved, path)
        found = load_pickled_tensors(path)
        assert list(found) == list(saved)
        assert all(found[name].equal(saved[name]) and found[name].dtype == saved[name].dtype for name in saved)


def test_a_deflated_file_is_refused_before_memory_is_taken(path: Path) -> None:
    torch.save({"fc1.weight": torch.zeros(2**25)}, path)
    rewritten(path, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**20
    before = forget_peak()
    with pytest.raises(ValueError, match="compressed"):
        load_pickled_tensors(path)
    assert status("VmHWM") - before < 50 * 2**20


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pickles_that_ask_for_memory_are_refused(path: Path) -> None:
    rebuild = torch._utils._rebuild_tensor_v2
    small: Any = torch.zeros(4).storage()
    for value, message in (
        (Call(bytearray, 2**31), "bytearray"),
        (torch.zeros(1).expand(2**16, 2**16), "claim"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (Call(rebuild, small, 0, (2**16, 2**14), (2**14, 1), False, OrderedDict()), "torch cannot read it"),
    ):
        torch.save({"fc1.weight": torch.ones(3), "x": value}, path)
        before = forget_peak()
        with pytest.raises(ValueError, match=message):
            load_pickled_tensors(path)
        assert status("VmHWM") - before < 50 * 2**20


def test_files_of_another_layout_are_refused(path: Path) -> None:
    saved = {"a": torch.ones(300)}
    torch.save(saved, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"torch before 1\.6"):
        load_pickled_tensors(path)
    torch.save({"model": saved}, path)
    with pytest.raises(ValueError, match="table of tensors"):
        load_pickled_tensors(path)
    torch.save(saved, path)
    rewritten(path, zipfile.ZIP_STORED, lambda name, data: data[:8] if "/data/" in name else data)
    with pytest.raises(ValueError, match="torch cannot read it"):
        load_pickled_tensors(path)
    with pytest.raises(OSError, match="No such file"):
        load_pickled_tensors(path.parent / "none.pth")


def test_only_one_zip_directory_can_be_found(path: Path) -> None:
    """Python and torch read zip files by code of their own: a file with two directories could show each another."""
    torch.save({"a": torch.ones(3)}, path)
    data = path.read_bytes()
    for altered in (b"x" + data, data + b"x", data + data[-22:], data[:-22]):
        path.write_bytes(altered)
        with pytest.raises(ValueError, match=r"zip|damaged"):
            load_pickled_tensors(path)


def test_damaged_files_end_in_an_error_or_a_table(path: Path) -> None:
    torch.save({"a": torch.ones(3), "b": torch.ones(2, 2)}, path)
    data, rng, refused = path.read_bytes(), Random(0), 0
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            assert all(isinstance(value, torch.Tensor) for value in load_pickled_tensors(path).values())
        except (OSError, ValueError):
            refused += 1
    assert 200 < refused < 400
