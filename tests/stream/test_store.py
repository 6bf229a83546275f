"""Stores write shards of bounded size, and use no damaged or foreign ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from idmetric.metric.embedding import Embedding
from idmetric.store import ShardError, Store, _check
from tests.embed_parts import stored


def test_a_shard_is_written_once_enough_bytes_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idmetric.store._SAVE_BYTES", 100)
    store, counts = Store(tmp_path, patches=True), []
    for k in range(6):  # of 4 * (4 + 2 * 2 + 2) = 40 bytes
        one = Embedding(torch.ones(1, 4), torch.ones(1, 2, 2), (1, 2), torch.ones(1, 2))
        store.add([f"{k}"], one)
        counts.append(len(list(tmp_path.iterdir())))
    assert counts == [0, 0, 1, 1, 1, 2]
    assert store.unsaved == set()


def test_embeddings_of_several_shards_come_in_the_order_asked_for(tmp_path: Path) -> None:
    values = torch.rand(4, 3)
    stored(tmp_path, ["a", "b"], Embedding(values[:2]))
    stored(tmp_path, ["c", "d"], Embedding(values[2:]))
    store = Store(tmp_path)
    assert torch.equal(store.embedding(["d", "a", "c", "b"]).cls, values[[3, 0, 2, 1]])
    np.testing.assert_array_equal(store.vectors(["d", "a", "c", "b"]), values[[3, 0, 2, 1]])


# Damage


def flip(path: Path, position: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
    _check.cache_clear()  # the clock of the file system may not have moved since the file was checked


@pytest.mark.parametrize("patches", [False, True])
def test_no_embedding_of_a_shard_with_a_flipped_byte_is_used(tmp_path: Path, patches: bool) -> None:
    found = Embedding(torch.rand(2, 4))
    if patches:
        found = Embedding(torch.rand(2, 4), torch.rand(2, 6, 3), (2, 3), torch.rand(2, 6))
    stored(tmp_path, ["a", "b"], found, patches)
    [shard] = tmp_path.iterdir()
    whole = shard.read_bytes()
    assert Store(tmp_path, patches).readable(["a", "b"]).keys() == {"a", "b"}

    for position in range(0, len(whole), 3):
        flip(shard, position)
        for use in (Store.vectors, Store.embedding):
            with pytest.raises((ShardError, KeyError)):  # KeyError: its keys cannot be read
                use(Store(tmp_path, patches), ["a", "b"])
        with pytest.raises(ShardError, match=f"{shard.name}' is damaged"):
            Store(tmp_path, patches).check()
        shard.write_bytes(whole)


def test_embeddings_of_another_model_copied_into_the_folder_are_refused(tmp_path: Path) -> None:
    stored(tmp_path / "mine", ["a"], Embedding(torch.rand(1, 4)))
    stored(tmp_path / "theirs", ["b"], Embedding(torch.rand(1, 4)))
    [shard] = (tmp_path / "theirs").iterdir()
    shard.rename(tmp_path / "mine" / shard.name)
    with pytest.raises(ShardError, match=f"{shard.name}' holds embeddings of 'theirs', another model"):
        Store(tmp_path / "mine")
    assert (tmp_path / "mine" / shard.name).is_file()


@pytest.mark.parametrize(
    "error", [SafetensorError("Cannot allocate memory (os error 12)"), MemoryError(), OSError(5, "Input/output error")]
)
def test_no_memory_and_failing_disks_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stored(tmp_path, ["a"], Embedding(torch.rand(1, 4)))
    store = Store(tmp_path)

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("idmetric.store.safe_open", fail)
        for use in (lambda: store.vectors(["a"]), lambda: Store(tmp_path)):
            with pytest.raises((ShardError, MemoryError, OSError)) as raised:
                use()
            assert "is damaged" not in str(raised.value)
    store.check()


# Files of others


def test_files_with_other_names_are_not_read(tmp_path: Path) -> None:
    stored(tmp_path, ["a"], Embedding(torch.rand(1, 4)))
    others = ["model.safetensors", "cls-old.safetensors", "cls-1234.safetensors.bak", ".cls-notes.txt"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    store = Store(tmp_path)
    store.check()
    assert store.readable(["a", "b"]).keys() == {"a"}
