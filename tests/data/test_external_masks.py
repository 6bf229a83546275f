"""Masks of other programs, attached to a manifest by name, and masks made by a remover."""

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


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """`idmetric data ...` in a folder of its own; paths are relative to it."""
    monkeypatch.chdir(tmp_path)
    return Runner(cli.main, capsys)


def disc(size: tuple[int, int], soft: bool = False) -> Image.Image:
    """An ellipse in the middle; soft: with a ramp around it."""
    large = Image.new("L", (size[0] * 8, size[1] * 8))
    ImageDraw.Draw(large).ellipse(
        (large.width // 4, large.height // 4, large.width * 3 // 4, large.height * 3 // 4), 255
    )
    small = large.resize(size, Image.Resampling.BOX)
    return small if soft else small.point(lambda v: 255 if v >= 128 else 0)


@pytest.fixture
def photos(tmp_path: Path) -> pd.DataFrame:
    """Two mugs and a dog; both mugs have a photo called 1."""
    rows = []
    for i, name in enumerate(("mug_a/1", "mug_a/2", "mug_b/1", "dog/rex")):
        path = tmp_path / "photos" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", SIZE, (250, 250, 250))
        box = (SIZE[0] // 4, SIZE[1] // 4, SIZE[0] * 3 // 4, SIZE[1] * 3 // 4)
        ImageDraw.Draw(image).ellipse(box, (20 * i, 60, 90))
        image.save(path, quality=95)
        rows.append({"identity": name.split("/")[0], "path": f"photos/{name}.jpg"})
    table = checked(pd.DataFrame(rows), tmp_path)
    write(table, tmp_path / "photos.csv")
    return table


def put(folder: Path, names: dict[str, Image.Image]) -> Path:
    for name, mask in names.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        mask.save(folder / name)
    return folder


ALL = ("mug_a/1.png", "mug_a/2.png", "mug_b/1.png", "dog/rex.png")


def test_masks_of_the_same_names_are_attached_as_they_are(run: Runner, photos: pd.DataFrame, tmp_path: Path) -> None:
    put(tmp_path / "masks", dict.fromkeys(ALL, disc(SIZE)))
    run.prints("4 masks attached (0 scaled to their images)",
               "masks photos.csv --from masks -o out/masked.parquet")  # fmt: skip
    made = read(tmp_path / "out/masked.parquet")
    assert made["mask"].tolist() == [str(tmp_path / "masks" / name) for name in ALL]
    assert made["id"].tolist() == photos["id"].tolist()
    assert not (tmp_path / "out/masked_masks").exists()
    for k in range(4):
        cover = np.asarray(read_pair(made["path"][k], made["mask"][k])[1]) > 0
        assert cover.mean() == pytest.approx(np.pi / 16, abs=0.01)


def test_names_that_do_not_match_are_explained(run: Runner, photos: pd.DataFrame, tmp_path: Path) -> None:
    put(tmp_path / "masks", {"a.png": disc(SIZE), "b.png": disc(SIZE)})
    run.fails("masks/1.png", "masks photos.csv --from masks -o out.csv")
    run.fails("nowhere", "masks photos.csv --from nowhere -o out.csv")


def test_missing_masks_are_listed_or_left_out(run: Runner, photos: pd.DataFrame, tmp_path: Path) -> None:
    put(tmp_path / "masks", dict.fromkeys((*ALL[:2], "mug_c/9.png"), disc(SIZE)))
    run.fails("2 images cannot be used", "masks photos.csv --from masks -o out.csv")
    assert not (tmp_path / "out.csv").exists()
    assert run("masks photos.csv --from masks -o out.csv --on-error skip") == 4
    assert read(tmp_path / "out.csv")["path"].tolist() == photos["path"].tolist()[:2]


def test_masks_of_another_size_are_scaled_and_of_another_shape_refused(photos: pd.DataFrame, tmp_path: Path) -> None:
    double = (SIZE[0] * 2, SIZE[1] * 2)
    masks = put(tmp_path / "masks", {ALL[0]: disc(double), ALL[1]: disc((30, 20)), ALL[2]: disc((40, 60)),
                                     ALL[3]: disc(SIZE)})  # fmt: skip
    done = attach_masks(photos, masks, tmp_path / "copies")
    assert (done.attached, done.scaled) == (3, 2)
    assert list(done.problems) == [photos["id"][2]]
    assert "40x60" in done.problems[photos["id"][2]]
    for k in (0, 1):
        path = Path(done.table["mask"][k])
        assert path.is_relative_to(tmp_path / "copies")
        assert Image.open(path).size == SIZE
    # a pixel of the copy is the mean of 2 x 2 pixels of the mask
    blocks = np.asarray(disc(double), float).reshape(SIZE[1], 2, SIZE[0], 2).mean((1, 3))
    assert (np.asarray(Image.open(done.table["mask"][0])) == np.rint(blocks)).all()
    read_pair(done.table["path"][0], done.table["mask"][0])  # generation takes it
    again = attach_masks(photos, masks, tmp_path / "copies")
    assert again.table["mask"].tolist() == done.table["mask"].tolist()


def test_soft_masks_stay_soft_unless_cut(photos: pd.DataFrame, tmp_path: Path) -> None:
    soft = disc(SIZE, soft=True)
    masks = put(tmp_path / "masks", dict.fromkeys(ALL, soft))
    done = attach_masks(photos, masks, tmp_path / "copies")
    assert (done.attached, done.scaled) == (4, 0)
    assert done.table["mask"][0] == str(masks / ALL[0])
    for share in (0.25, 0.75):
        cut = attach_masks(photos, masks, tmp_path / "copies", threshold=share)
        pixels = np.asarray(Image.open(cut.table["mask"][0]))
        assert (pixels == np.where(np.asarray(soft) / 255 >= share, 255, 0)).all()
    with pytest.raises(ValueError, match="threshold"):
        attach_masks(photos, masks, tmp_path / "copies", threshold=0)


def test_empty_and_damaged_masks_are_problems(photos: pd.DataFrame, tmp_path: Path) -> None:
    masks = put(tmp_path / "masks", {**dict.fromkeys(ALL[:3], disc(SIZE)), ALL[0]: Image.new("L", SIZE)})
    (masks / "dog").mkdir()
    (masks / ALL[3]).write_bytes(b"no image")
    done = attach_masks(photos, masks, tmp_path / "copies")
    assert set(done.problems) == {photos["id"][0], photos["id"][3]}
    assert "empty" in done.problems[photos["id"][0]]


def test_one_label_of_several_is_the_subject(run: Runner, photos: pd.DataFrame, tmp_path: Path) -> None:
    labels = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    labels[4:20, 4:20], labels[22:36, 30:50] = 1, 2
    put(tmp_path / "masks", dict.fromkeys(ALL, Image.fromarray(labels)))
    run.fails("4 images cannot be used", "masks photos.csv --from masks -o out.csv")
    assert run("masks photos.csv --from masks --mask-id 2 -o out.csv") == 0
    made = np.asarray(Image.open(read(tmp_path / "out.csv")["mask"][0]))
    assert (made == np.where(labels == 2, 255, 0)).all()


def test_texts_without_an_image_stay_as_they_are(run: Runner, photos: pd.DataFrame, tmp_path: Path) -> None:
    put(tmp_path / "masks", dict.fromkeys(ALL, disc(SIZE)))
    text = {"identity": "mug_a", "id": "asked", "text": "a mug with a blue rim", "group": "g", "slot": "query"}
    write(pd.concat([pd.DataFrame([text]), photos], ignore_index=True), tmp_path / "mixed.csv")
    assert run("masks mixed.csv --from masks -o out.csv --quiet") == 0
    made = read(tmp_path / "out.csv")
    assert made["mask"].isna().tolist() == [True, False, False, False, False]
    assert made["text"][0] == text["text"]
