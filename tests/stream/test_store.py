"""Stores write shards of bounded size, use no damaged or foreign ones, and delete no files of others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from idmetric.gallery.prune import prune_shards, remove_store
from idmetric.metric.distance.embedding import Embedding
from idmetric.stream import shards
from idmetric.stream.shards import ShardError
from idmetric.stream.store import Store
from tests.embed_parts import stored


def test_a_shard_is_written_once_enough_bytes_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idmetric.stream.store._SAVE_BYTES", 100)
    store, counts = Store(tmp_path, patches=True), []
    for k in range(6):  # of 4 * (4 + 2 * 2 + 2) = 40 bytes
        one = Embedding(torch.ones(1, 4), torch.ones(1, 2, 2), (1, 2), torch.ones(1, 2))
        store.add([f"{k}"], one)
        counts.append(len(store.files()))
    assert counts == [0, 0, 1, 1, 1, 2]
    assert store.unsaved == set()


def test_embeddings_of_several_shards_come_in_the_order_asked_for(tmp_path: Path) -> None:
    values = torch.rand(4, 3)
    stored(tmp_path, ["a", "b"], Embedding(values[:2]))
    stored(tmp_path, ["c", "d"], Embedding(values[2:]))
    store = Store(tmp_path)
    assert torch.equal(store.embedding(["d", "a", "c", "b"]).cls, values[[3, 0, 2, 1]])
    np.testing.assert_array_equal(store.vectors(["d", "a", "c", "b"]), values[[3, 0, 2, 1]])


def test_pruning_removes_no_shard_that_it_cannot_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(["a", "b"], Embedding(torch.ones(2, 4)))
    store.save()
    [shard] = store.files()
    flip(shard, 9)
    with pytest.raises(ShardError, match=shard.name) as raised:
        prune_shards(tmp_path, {"a", "b"})
    assert raised.value.is_damaged
    assert shard.is_file()


def test_pruning_keeps_a_shard_that_holds_exactly_the_wanted_rows_of_another(tmp_path: Path) -> None:
    found = Embedding(torch.rand(2, 4))
    stored(tmp_path, ["a", "b"], found)
    stored(tmp_path, ["a"], found[[0]])
    assert prune_shards(tmp_path, {"a"}) == 1
    np.testing.assert_array_equal(Store(tmp_path).vectors(["a"]), found.cls[:1])


# Damage


def flip(path: Path, position: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
    shards._check.cache_clear()  # the clock of the file system may not have moved since the file was checked


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
        store = Store(tmp_path, patches)
        assert not store.readable(["a", "b"])  # embedded again
        with pytest.raises((ShardError, KeyError)):  # KeyError: its keys cannot be read
            Store(tmp_path, patches).vectors(["a", "b"])
        store.check()
        assert list(store.damaged) == [shard]
        shard.write_bytes(whole)


def test_a_damaged_shard_is_deleted_and_a_whole_one_stays(tmp_path: Path) -> None:
    stored(tmp_path, ["a"], Embedding(torch.rand(1, 4)))
    [shard] = tmp_path.iterdir()
    stored(tmp_path, ["b"], Embedding(torch.rand(1, 4)))
    flip(shard, -1)
    store = Store(tmp_path)
    store.check()
    assert [shard.name in line for line in store.drop_damaged()] == [True]
    assert not shard.exists()
    assert "a" not in store
    assert store.vectors(["b"]).shape == (1, 4)


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
    [shard] = tmp_path.iterdir()
    store = Store(tmp_path)

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("idmetric.stream.store.safe_open", fail)
        for use in (lambda: store.vectors(["a"]), lambda: Store(tmp_path)):
            with pytest.raises((ShardError, MemoryError, OSError)) as raised:
                use()
            assert not getattr(raised.value, "is_damaged", False)
    store.check()
    assert (store.damaged, store.drop_damaged()) == ({}, [])
    assert shard.is_file()


# Files of others


def test_files_with_other_names_are_neither_read_nor_deleted(tmp_path: Path) -> None:
    stored(tmp_path, ["a"], Embedding(torch.rand(1, 4)))
    others = ["model.safetensors", "cls-old.safetensors", "cls-1234.safetensors.bak", ".cls-notes.txt"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
        os.utime(tmp_path / name, (0, 0))
    store = Store(tmp_path)
    store.check()
    assert store.drop_damaged() == []
    assert prune_shards(tmp_path, set()) == 1
    remove_store(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_damaged_file_is_not_deleted_through_a_link(tmp_path: Path, link: str) -> None:
    mine = tmp_path / "mine" / "model"
    stored(mine, ["a"], Embedding(torch.rand(1, 4)))
    [shard] = mine.iterdir()
    flip(shard, -1)
    received = tmp_path / "received" / "model"
    received.parent.mkdir()
    if link == "folder":
        received.symlink_to(mine)
    else:
        received.mkdir()
        (received / shard.name).symlink_to(shard)

    store = Store(received)
    store.check()
    with pytest.raises(ShardError, match=f"received/model/{shard.name}' is reached through a link"):
        store.drop_damaged()
    with pytest.raises(ShardError, match="nothing is deleted through links"):
        remove_store(received)
    assert shard.is_file()
