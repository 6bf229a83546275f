"""Galleries and caches that others made, that are damaged, or closed to the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric import IDSim
from idmetric.cli.main import main
from tests.embed_parts import pictures
from tests.permissions import permissions_count
from tests.runner import Runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(main, capsys)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    pictures(tmp_path / "photos", 3)
    return tmp_path / "photos"


@pytest.fixture
def model(metric: IDSim, tmp_path: Path) -> Path:
    metric.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def store_of(gallery: Path) -> Path:
    [store] = [path for path in gallery.iterdir() if path.is_dir()]
    return store


# Damage


def test_a_byte_flipped_in_a_gallery_is_found(metric: IDSim, photos: Path, run: Runner, model: Path) -> None:
    index = photos.parent / "index"
    words = ("--gallery", index, "--model", model, "--device", "cpu")
    assert run("gallery", "build", photos, *words, "--quiet") == 0
    first = sorted(photos.iterdir())[0]
    expected = run.prints("0001.png", "gallery", "query", first, *words)
    [shard] = store_of(index).glob("*.safetensors")
    damage(shard)
    error = run.fails("are missing", "gallery", "query", first, *words)
    assert f"{shard.name}' is damaged" in error
    error = run.fails("1 embedded", "gallery", "build", photos, *words, status=0)
    assert f"{shard.name}' is damaged" in error
    assert run.prints("0001.png", "gallery", "query", first, *words) == expected


def test_a_byte_flipped_in_a_cache_moves_no_score(run: Runner, photos: Path, model: Path) -> None:
    first, *others = sorted(photos.iterdir())
    words = ("score", first, *others, "--model", model, "--device", "cpu", "--cache", photos.parent / "cache",
             "--format", "csv")  # fmt: skip
    expected = run.prints("0001.png", *words)
    [shard] = store_of(photos.parent / "cache").glob("*.safetensors")
    damage(shard)
    status, out, error = run.all(*words)
    assert (status, out) == (0, expected)
    assert error.count(f"{shard.name}' is damaged") == 1
    assert run.prints("0001.png", *words) == expected


# Files that moved


def test_a_moved_gallery_says_so_in_one_line(run: Runner, photos: Path, model: Path) -> None:
    index, page = photos.parent / "index", photos.parent / "page.html"
    words = ("--gallery", index, "--model", model, "--device", "cpu")
    assert run("gallery", "build", photos, *words, "--quiet") == 0
    before = contents(index)
    photos.rename(photos.parent / "moved")
    query = photos.parent / "moved" / "0000.png"
    for command in (("query", query), ("dedupe",), ("cluster", "--threshold", 1),
                    ("report", "--threshold", 1, "--output", page)):  # fmt: skip
        error = run.fails("all 3 images of the gallery are missing, such as", "gallery", *command, *words)
        assert error.count("\n") == 1
        assert "if they were moved, name their folder: idmetric gallery build FOLDER" in error
    assert not page.exists()
    assert contents(index) == before
    run.fails("0 embedded", "gallery", "build", photos.parent / "moved", *words, status=0)


def test_missing_images_end_every_answer_with_status_4(run: Runner, photos: Path, model: Path) -> None:
    index, page = photos.parent / "index", photos.parent / "page.html"
    words = ("--gallery", index, "--model", model, "--device", "cpu")
    assert run("gallery", "build", photos, *words, "--quiet") == 0
    first, _, last = sorted(photos.iterdir())
    last.unlink()
    for command in (("query", first), ("dedupe",), ("cluster", "--threshold", 1),
                    ("report", "--threshold", 1, "--output", page)):  # fmt: skip
        error = run.fails(f"left out 1 of 3 images: {last} (missing)", "gallery", *command, *words, status=4)
        assert error.count("left out") == 1


# Closed and read-only ones


def test_a_read_only_gallery_answers(run: Runner, photos: Path, model: Path) -> None:
    index, page = photos.parent / "index", photos.parent / "page.html"
    words = ("--gallery", index, "--model", model, "--device", "cpu")
    assert run("gallery", "build", photos, *words, "--quiet") == 0
    before, first = contents(index), sorted(photos.iterdir())[0]
    for folder in (store_of(index), index):
        folder.chmod(0o500)
    with permissions_count():
        run.prints("0001.png", "gallery", "query", first, *words)
        run.prints("3 images", "gallery", "cluster", "--threshold", 1, *words)
        run.prints("3 images", "gallery", "dedupe", *words)
        run.fails("wrote", "gallery", "report", "--threshold", 1, "--output", page, *words, status=0)
        run.prints("images", "gallery", "info", "--gallery", index)
        error = run.fails("its folder is read-only for you: change its permissions", "gallery", "build", photos, *words)
        assert str(index) in error
        scored = run.all("score", *sorted(photos.iterdir()), "--model", model, "--device", "cpu", "--cache", index,
                         "--dtype", "bfloat16")  # fmt: skip
    assert scored[0] == 0
    assert "read-only for you" in scored[2]
    for folder in (store_of(index), index):
        folder.chmod(0o700)
    assert contents(index) == before
