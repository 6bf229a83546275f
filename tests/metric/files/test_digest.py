"""A file that holds a digest of its bytes is refused if any of them has changed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from idmetric.metric.files import BLANK, save_sealed, seal, seal_problem
from tests.fuzz.flips import spread_flips


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sealed file whose text has a digest of its own."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"name": '"digest":"' + "1" * 32 + '"', **BLANK, "b": list(range(40))}))
    seal(path)
    return path


def test_the_digest_is_of_all_bytes_with_zeros_in_its_place(path: Path) -> None:
    assert seal_problem(path) == ""
    stored = json.loads(path.read_text())["digest"]
    blank = path.read_bytes().replace(stored.encode(), b"0" * 32)
    assert stored == hashlib.blake2b(blank, digest_size=16).hexdigest()


def test_every_flipped_bit_is_refused(path: Path) -> None:
    for damaged in spread_flips(path.read_bytes(), path.stat().st_size * 8):
        path.write_bytes(damaged)
        assert seal_problem(path)


def test_files_without_a_digest_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in ("", "{}", '{"digest": "1"}'):
        path.write_text(content)
        assert seal_problem(path) in ("it is empty", "it has no digest of its bytes")


def test_equal_tensors_and_metadata_give_equal_bytes(tmp_path: Path) -> None:
    """safetensors orders metadata at random."""
    metadata = {name: f'{name} "é\n\x1f\x7f/\\' for name in "zyxwvu"}
    contents = set()
    for number in range(8):
        path = tmp_path / f"{number}.safetensors"
        save_sealed({"b": torch.zeros(3), "a": torch.ones(2)}, path, metadata)
        assert seal_problem(path) == ""
        contents.add(path.read_bytes())
    assert len(contents) == 1
    with safe_open(path, framework="pt") as file:
        stored = file.metadata()
        assert file.get_tensor("a").equal(torch.ones(2))
    assert {name: stored[name] for name in metadata} == metadata


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe or a device"):
        seal_problem(tmp_path / "pipe")
