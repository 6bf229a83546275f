"""Regions of photos that EXIF turns, drawn on the upright photo or on its stored pixels."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from PIL import Image

from idmetric.matching.codes import Polygons, RunLengths
from idmetric.matching.region_files import regions_for
from idmetric.matching.regions import Cut, Region
from idmetric.metric.errors import RequestError
from idmetric.metric.images.kinds import ImageReadError
from idmetric.metric.images.masks import Labeled
from idmetric.metric.images.read import read_image

STORED = np.random.default_rng(0).integers(0, 255, (40, 80, 3), np.uint8)  # 80 x 40
BOX = (10.0, 5.0, 50.0, 30.0)
INSIDE = np.zeros((40, 80), bool)
INSIDE[5:30, 10:50] = True
L_SHAPE = INSIDE.copy()
L_SHAPE[5:15, 30:50] = False
OUTLINE = [10, 5, 30, 5, 30, 15, 50, 15, 50, 30, 10, 30]
# EXIF's definition: which side of the upright photo the stored rows and columns begin at
UPRIGHT = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x[::-1].swapaxes(0, 1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x[:, ::-1].swapaxes(0, 1),
}


def photo(folder, orientation, pixels=STORED):
    exif = Image.Exif()
    exif[0x112] = orientation
    path = folder / "a.png"
    Image.fromarray(pixels).save(path, exif=exif)
    return read_image(path)


FORMS = {
    "pixels": Region(BOX),
    "fractions": Region((10 / 80, 5 / 40, 50 / 80, 30 / 40)),
    "pixels of a size": Region(BOX, image_size=(80, 40)),
    "pixels of another size": Region((20, 10, 100, 60), image_size=(160, 80)),
    "polygons": Region(BOX, Polygons([OUTLINE]), image_size=(80, 40)),
    "polygons without a size": Region(BOX, Polygons([OUTLINE])),
    "polygons in fractions": Region(BOX, Polygons([(np.reshape(OUTLINE, (-1, 2)) / (80, 40)).ravel().tolist()], True)),
    "run lengths": Region(BOX, RunLengths.of(L_SHAPE), image_size=(80, 40)),
    "mask": Region(BOX, Image.fromarray(L_SHAPE)),
    "mask of floats": Region(BOX, L_SHAPE.astype(np.float32)),
    "mask of labels": Region(BOX, Labeled(L_SHAPE.astype(np.uint8) * 3 + INSIDE, 4)),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("form", FORMS)
def test_23_stored_regions_are_turned_as_their_photo(tmp_path, orientation, form):
    picture = photo(tmp_path, orientation)
    source = regions_for([[FORMS[form]]], ["a.png"], "image", (), "stored")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (region,) = source.find(0, picture)
        pixels, cover, _ = Cut().cut(picture, region)
    expected = UPRIGHT[orientation](STORED[5:30, 10:50])
    assert np.array_equal(np.asarray(pixels), expected)
    if region.mask is None:
        return
    assert np.array_equal(cover.numpy() > 0.5, UPRIGHT[orientation](L_SHAPE[5:30, 10:50]))


@pytest.mark.parametrize("orientation", [3, 6])
@pytest.mark.parametrize("kind", ["square", "oblong"])
def test_23_mask_files_are_of_the_stored_pixels_too(tmp_path, orientation, kind):
    width = 40 if kind == "square" else 80
    picture = photo(tmp_path, orientation, STORED[:, :width])
    Image.fromarray(L_SHAPE[:, :width]).save(tmp_path / "mask.png")
    source = regions_for([[Region(mask=str(tmp_path / "mask.png"))]], ["a.png"], "image", (), "stored")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (region,) = source.find(0, picture)
        piece = Cut().cut(picture, region)
    rows, columns = np.nonzero(UPRIGHT[orientation](L_SHAPE[:, :width]))
    assert piece.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


def boxes(folder, **size):
    content = {
        "images": [{"id": 1, "file_name": "a.png", **size}],
        "annotations": [{"id": 7, "image_id": 1, "bbox": [10, 5, 20, 20]}],
    }
    path = folder / "boxes.json"
    path.write_text(json.dumps(content))
    return path


def test_23_a_file_of_the_other_size_names_the_way_of_its_tool(tmp_path):
    picture = photo(tmp_path, 6)
    stored = boxes(tmp_path, width=80, height=40)
    with pytest.raises(
        ImageReadError, match=r"as this photo is stored, and EXIF turns it to 40 x 80.*--regions-of stored"
    ):
        regions_for(stored, ["a.png"], "image", ()).find(0, picture)
    (region,) = regions_for(stored, ["a.png"], "image", (), "stored").find(0, picture)
    assert region.box == (15, 10, 35, 30)
    assert region.image_size == (40, 80)
    upright = boxes(tmp_path, width=40, height=80)
    with pytest.raises(ImageReadError, match="this photo upright, as annotation tools show it: leave out"):
        regions_for(upright, ["a.png"], "image", (), "stored").find(0, picture)


@pytest.mark.parametrize(
    ("orientation", "size", "is_clear"),
    [(6, {}, False), (6, {"width": 40, "height": 80}, True), (3, {"width": 80, "height": 40}, False), (1, {}, True)],
)
def test_23_what_nothing_shows_is_a_warning(tmp_path, orientation, size, is_clear):
    picture = photo(tmp_path, orientation)
    path = boxes(tmp_path, **size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regions_for(path, ["a.png"], "image", ()).find(0, picture)
        messages = [str(warning.message) for warning in caught]
        regions_for(path, ["a.png"], "image", (), "upright").find(0, picture)
    assert len(caught) == len(messages) == 1 - is_clear
    assert is_clear or "--regions-of stored" in messages[0]


def test_23_detectors_see_the_upright_photo():
    with pytest.raises(RequestError, match="detectors see the upright photo"):
        regions_for(lambda picture: [BOX], ["a.png"], "image", (), "stored")
