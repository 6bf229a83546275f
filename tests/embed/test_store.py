"""Stores write shards of bounded size, and adding to them takes the same time however much waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from idmetric.distance.embedding import Embedding
from idmetric.embed.store import DamagedShardError, Store
from idmetric.gallery.prune import prune_shards


def test_a_shard_is_written_once_enough_bytes_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idmetric.embed.store._SAVE_BYTES", 100)
    store, shards = Store(tmp_path, patches=True), []
    for k in range(6):  # of 4 * (4 + 2 * 2 + 2) = 40 bytes
        one = Embedding(torch.ones(1, 4), torch.ones(1, 2, 2), (1, 2), torch.ones(1, 2))
        store.add([f"{k}"], one)
        shards.append(len(store.files()))
    assert shards == [0, 0, 1, 1, 1, 2]
    assert store.unsaved == set()


def test_a_shard_that_the_system_cannot_open_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.add(["a"], Embedding(torch.ones(1, 4)))
    store.save()
    [shard] = store.files()

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            Store(tmp_path)
    assert shard.is_file()
    assert "a" in Store(tmp_path)


def test_pruning_removes_no_shard_that_it_cannot_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(["a", "b"], Embedding(torch.ones(2, 4)))
    store.save()
    [shard] = store.files()
    data = bytearray(shard.read_bytes())
    data[9] ^= 0x10
    shard.write_bytes(data)
    with pytest.raises(DamagedShardError, match=shard.name):
        prune_shards(tmp_path, {"a", "b"})
    assert shard.is_file()
