"""Masks of other programs, attached to a manifest by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw

from idmetric.cli import data as cli
from idmetric.data.curate.external_masks import attach_masks
from idmetric.data.generate.compose import read_pair
from idmetric.data.manifest import checked, read, write
from tests.runner import Runner

SIZE = (60, 40)
NAMES = ("mug_a/1", "mug_a/2", "mug_b/1", "dog/rex")  # both mugs have a photo called 1


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """`idmetric data masks photos.csv --from masks -o out.csv ...` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Runner(cli.main, capsys, "masks", "photos.csv", "--from", "masks", "-o", "out.csv")


def disc(size: tuple[int, int], soft: bool = False) -> Image.Image:
    """An ellipse in the middle; soft: with a ramp around it."""
    large = Image.new("L", (size[0] * 8, size[1] * 8))
    box = (large.width // 4, large.height // 4, large.width * 3 // 4, large.height * 3 // 4)
    ImageDraw.Draw(large).ellipse(box, 255)
    small = large.resize(size, Image.Resampling.BOX)
    return small if soft else small.point(lambda value: 255 if value >= 128 else 0)


@pytest.fixture
def photos(tmp_path: Path) -> pd.DataFrame:
    """Four photos, and a text that needs no mask, also as photos.csv."""
    rows = [{"identity": "mug_a", "id": "asked", "text": "a mug with a blue rim", "group": "g", "slot": "query"}]
    for name in NAMES:
        path = tmp_path / "photos" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", SIZE, (250, 50, 250)).save(path)
        rows.append({"identity": path.parent.name, "path": f"photos/{name}.jpg", "id": name})
    table = checked(pd.DataFrame(rows, dtype=object), tmp_path)
    write(table, tmp_path / "photos.csv")
    return table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of masks, one for each photo."""
    for name in NAMES:
        put(tmp_path / "masks" / name, disc(SIZE))
    return tmp_path / "masks"


def put(path: Path, mask: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mask.save(f"{path}.png")


def pixels(path: str) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_masks_of_the_same_names_are_attached_as_they_are(run: Runner, photos: pd.DataFrame, folder: Path) -> None:
    run.fails("4 masks attached (0 scaled", "--quiet", status=0)
    table = read(folder.parent / "out.csv")
    assert table["mask"].tolist() == [None, *(f"{folder / name}.png" for name in NAMES)]
    assert table["id"].tolist() == photos["id"].tolist()
    assert not (folder.parent / "out_masks").exists()


def test_names_that_do_not_match_are_explained(run: Runner, photos: pd.DataFrame, tmp_path: Path) -> None:
    run.fails("masks: ")  # there is no such folder
    put(tmp_path / "masks" / "a", disc(SIZE))
    run.fails("masks/1.png")


def test_missing_masks_are_listed_or_left_out(run: Runner, photos: pd.DataFrame, folder: Path) -> None:
    for name in NAMES[2:]:
        (folder / f"{name}.png").unlink()
    put(folder / "mug_c/9", disc(SIZE))
    assert "dog/rex: " in run.fails("mug_b/1: ")
    assert not (folder.parent / "out.csv").exists()
    run.fails("mug_c/9.png", "--on-error", "skip", status=4)
    assert read(folder.parent / "out.csv")["id"].tolist() == ["asked", *NAMES[:2]]


def test_masks_of_another_size_are_scaled_and_of_another_shape_refused(photos: pd.DataFrame, folder: Path) -> None:
    double = (SIZE[0] * 2, SIZE[1] * 2)
    for name, size in zip(NAMES, (double, (30, 20), (40, 60)), strict=False):
        put(folder / name, disc(size))
    table, problems, notes = attach_masks(photos, folder, folder.parent / "copies")
    assert notes[0].startswith("3 masks attached (2 scaled")
    assert list(problems) == [3]
    assert "40x60" in problems[3]
    for path in table["mask"][1:3]:
        assert Path(path).is_relative_to(folder.parent / "copies")
        assert Image.open(path).size == SIZE
    # a pixel of the copy is the mean of 2 x 2 pixels of the mask
    blocks = np.asarray(disc(double), float).reshape(SIZE[1], 2, SIZE[0], 2).mean((1, 3))
    assert (pixels(table["mask"][1]) == np.rint(blocks)).all()
    read_pair(table["path"][1], table["mask"][1])  # generation takes it
    again, _, _ = attach_masks(photos, folder, folder.parent / "copies")
    assert again["mask"].tolist() == table["mask"].tolist()


def test_soft_masks_stay_soft_unless_cut(photos: pd.DataFrame, folder: Path) -> None:
    soft = disc(SIZE, soft=True)
    for name in NAMES:
        put(folder / name, soft)
    table, _, _ = attach_masks(photos, folder, folder.parent / "copies")
    assert table["mask"][1] == f"{folder / NAMES[0]}.png"
    for share in (0.25, 0.75):
        table, _, _ = attach_masks(photos, folder, folder.parent / "copies", threshold=share)
        assert (pixels(table["mask"][1]) == np.where(np.asarray(soft) / 255 >= share, 255, 0)).all()
    with pytest.raises(ValueError, match="threshold"):
        attach_masks(photos, folder, folder.parent / "copies", threshold=0)


def test_empty_and_damaged_masks_are_problems(photos: pd.DataFrame, folder: Path) -> None:
    put(folder / NAMES[0], Image.new("L", SIZE))
    (folder / f"{NAMES[3]}.png").write_bytes(b"no image")
    _, problems, _ = attach_masks(photos, folder, folder.parent / "copies")
    assert set(problems) == {1, 4}
    assert "empty" in problems[1]


def test_one_label_of_several_is_the_subject(run: Runner, photos: pd.DataFrame, folder: Path) -> None:
    labels = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    labels[4:20, 4:20], labels[22:36, 30:50] = 1, 2
    for name in NAMES:
        put(folder / name, Image.fromarray(labels))
    run.fails("mask_id")
    assert run("--mask-id", 2) == 0
    table = read(folder.parent / "out.csv")
    assert (pixels(table["mask"][1]) == np.where(labels == 2, 255, 0)).all()
