"""Stores keep each row in a part, use no damaged or foreign one, and lose none if a process is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric import IDSim, score
from idmetric import store as module
from idmetric.metric.embedding import Embedding
from idmetric.metric.files import OutputError
from idmetric.store import Store
from tests.embed_parts import stored
from tests.permissions import permissions_count


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.safetensors"))


def numbered(keys: list[str]) -> Embedding:
    """Vectors that name their keys, which are numbers."""
    return Embedding(torch.tensor([[float(key), 1.0] for key in keys]))


def test_a_part_is_written_once_enough_bytes_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 100)
    store, counts = Store(tmp_path / "s", patches=True), []
    for k in range(6):  # of 4 * (4 + 2 * 2 + 2) bytes, and 16 of the grid
        store.add([f"{k}"], Embedding(torch.ones(1, 4), torch.ones(1, 2, 2), (1, 2), torch.ones(1, 2)))
        counts.append(len(parts(tmp_path / "s")))
    assert counts == [0, 1, 1, 2, 2, 3]


def test_embeddings_of_any_grid_come_in_the_order_asked_for(tmp_path: Path) -> None:
    grids = {"a": (1, 2), "b": (2, 1), "c": (1, 3), "d": None}
    saved = {}
    for key, grid in grids.items():
        patches = None if grid is None else torch.rand(1, grid[0] * grid[1], 2)
        weights = torch.rand(1, 2) if key == "b" else None
        saved[key] = Embedding(torch.rand(1, 3), patches, grid, weights)
        stored(tmp_path, [key], saved[key], patches=True)
    store = Store(tmp_path, "m", patches=True)
    found = store.readable("dabc")
    assert found.keys() == set("abc")  # of "d" there are none
    for key, embedding in found.items():
        assert (embedding.grid, embedding.model) == (grids[key], "m")
        for name in ("cls", "patches", "weights"):
            value, expected = getattr(embedding, name), getattr(saved[key], name)
            assert value is expected is None or torch.equal(value, expected)
    np.testing.assert_array_equal(store.vectors("cabc"), torch.cat([saved[key].cls for key in "cabc"]))
    assert list(Store(tmp_path).readable("x")) == []
    several = Store(tmp_path).embedding(["d", "a", "d"])
    assert several.patches is None
    assert torch.equal(several.cls, torch.cat([saved[key].cls for key in "dad"]))


def test_many_parts_are_joined_and_stores_that_were_open_find_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_PARTS", 8)
    keys = [str(number) for number in range(24)]
    with_patches = Embedding(torch.ones(1, 2), torch.ones(1, 1, 2), (1, 1))
    stored(tmp_path, ["0"], with_patches, patches=True)
    for key in keys[:8]:
        stored(tmp_path, [key], numbered([key]))
    early = Store(tmp_path)
    for key in keys[8:]:
        stored(tmp_path, [key], numbered([key]))
    assert len(parts(tmp_path)) <= 1 + 8 + 1
    for store in (early, Store(tmp_path)):
        np.testing.assert_array_equal(store.vectors(keys[:8])[:, 0], range(8))
    assert Store(tmp_path).vectors(keys)[:, 0].tolist() == list(range(24))
    assert Store(tmp_path, patches=True).embedding(["0"]).patches is not None


def test_a_part_that_cannot_be_read_for_a_moment_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PARTS", 4)
    keys = [str(number) for number in range(6)]
    for key in keys[:4]:
        stored(tmp_path, [key], numbered([key]))

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(module.PartFile, "row", fails)
        for key in keys[4:]:
            stored(tmp_path, [key], numbered([key]))
    assert Store(tmp_path).vectors(keys)[:, 0].tolist() == list(range(6))


# Damage


@pytest.mark.parametrize("patches", [False, True])
def test_no_row_with_a_flipped_bit_is_used_and_no_other_is_lost(tmp_path: Path, patches: bool) -> None:
    keys = ["a" * 32, "b" * 32]
    saved = Embedding(torch.rand(2, 4))
    if patches:
        saved = Embedding(torch.rand(2, 4), torch.rand(2, 6, 3), (2, 3), torch.rand(2, 6))
    stored(tmp_path, keys, saved, patches)
    [part] = parts(tmp_path)
    whole = part.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        part.write_bytes(damaged)
        with pytest.warns(UserWarning, match="part-") if position >= header else contextlib.nullcontext():
            found = Store(tmp_path, patches=patches).readable(keys)
        assert position < header or len(found) == 1
        for key, embedding in found.items():
            row = keys.index(key)
            assert torch.equal(embedding.cls[0], saved.cls[row])
            if patches:
                assert embedding.grid == saved.grid
                assert torch.equal(embedding.patches[0], saved.patches[row])
                assert torch.equal(embedding.weights[0], saved.weights[row])


@pytest.mark.parametrize("content", [b"", b"no part", (2**62).to_bytes(8, "little") + b"{}"])
def test_a_part_that_cannot_be_read_is_left_out_with_a_warning(tmp_path: Path, content: bytes) -> None:
    stored(tmp_path, ["1"], numbered(["1"]))
    (tmp_path / "part-0-0.safetensors").write_bytes(content)
    for name in ("model.safetensors", "part-old.safetensors", ".part-1-1.safetensors"):  # not ours
        (tmp_path / name).write_bytes(b"mine")
    with pytest.warns(UserWarning, match=r"part-0-0\.safetensors"):
        store = Store(tmp_path)
    assert store.readable(["1", "2"]).keys() == {"1"}


def test_embeddings_of_another_model_copied_into_the_folder_are_left_out(tmp_path: Path) -> None:
    stored(tmp_path / "theirs", ["2"], numbered(["2"]))
    [part] = parts(tmp_path / "theirs")
    (tmp_path / "mine").mkdir()
    part.rename(tmp_path / "mine" / part.name)
    with pytest.warns(UserWarning, match="another model"):
        assert "2" not in Store(tmp_path / "mine")
    assert (tmp_path / "mine" / part.name).is_file()


# Folders that cannot be written, and processes


def test_a_read_only_folder_is_read_and_one_warning_says_that_nothing_is_added(tmp_path: Path) -> None:
    stored(tmp_path / "s", ["1"], numbered(["1"]))
    (tmp_path / "s").chmod(0o500)
    with permissions_count():
        store = Store(tmp_path / "s")
        store.add(["2"], numbered(["2"]))
        with pytest.warns(UserWarning, match="read-only"):
            store.save()
        store.add(["3"], numbered(["3"]))
        store.save()
        assert store.readable(["1", "2", "3"]).keys() == {"1"}
        needed = Store(tmp_path / "s", is_needed=True)
        needed.add(["2"], numbered(["2"]))
        with pytest.raises(OutputError, match="read-only"):
            needed.save()
    (tmp_path / "s").chmod(0o700)


def test_a_folder_that_cannot_be_read_costs_a_warning_and_no_scores(tmp_path: Path, metric: IDSim) -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    Image.fromarray(image[::-1]).save(tmp_path / "b.png")
    names = str(tmp_path / "a.png"), str(tmp_path / "b.png")
    expected = score(metric, *names)[0]["distance"]
    cache = tmp_path / "cache"
    score(metric, *names, cache=cache)
    [folder] = cache.iterdir()
    for closed in (cache, folder, *folder.glob("part-*")):
        mode = closed.stat().st_mode
        closed.chmod(0)
        with permissions_count(), pytest.warns(UserWarning, match=cache.name) as given:
            assert score(metric, *names, cache=cache)[0]["distance"] == pytest.approx(expected, abs=1e-6)
        assert len(given) == 1
        closed.chmod(mode)
    folder.chmod(0)
    with permissions_count(), pytest.raises(PermissionError):
        Store(folder, is_needed=True)
    folder.chmod(0o700)


WRITER = """
import sys, pathlib, torch
from idmetric import store
from idmetric.metric.embedding import Embedding
store._SAVE_SECONDS = -1.0
store._MOST_PARTS = 4
kept = store.Store(pathlib.Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 1_000_000, 2):
    kept.add([str(number)], Embedding(torch.tensor([[float(number), 1.0]])))
    print(number, flush=True)
"""


def test_a_killed_writer_loses_no_row_of_its_own_or_of_another_process(tmp_path: Path) -> None:
    writers = []
    for first in (0, 1):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "s"), str(first)]
        writers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    for number in range(6):
        assert writers[1].stdout.readline() == f"{2 * number + 1}\n"
    time.sleep(0.3 * float(np.random.default_rng(os.getpid()).random()))  # at any moment
    written = []
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        written += writer.communicate()[0].split()
    written += [str(2 * number + 1) for number in range(6)]
    assert len(written) > 6
    store = Store(tmp_path / "s")
    np.testing.assert_array_equal(store.vectors(written)[:, 0], np.array(written, dtype=float))
