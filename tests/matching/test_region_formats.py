"""COCO files, tables and masks give the regions that were drawn; what cannot be used is refused by name."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.matching.region_files import regions_for
from idmetric.matching.regions import Cut, Region
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 80, 3), np.uint8))  # 80 x 40
BOX = (10, 5, 50, 35)
SQUARE = [10, 5, 50, 5, 50, 35, 10, 35]
MASK = np.zeros((40, 80), bool)
MASK[5:35, 10:50] = True


def read(regions, images=("a.png",), labels=("dog", "cat"), **options):
    source = regions_for(regions, list(images), "list", labels, **options)
    return [list(source.find(number, PICTURE)) for number in range(len(images))]


def shown(region: Region) -> np.ndarray:
    """The pixels of PICTURE that a region selects: those of its mask, or of its box."""
    piece = Cut().cut(PICTURE, region, "a.png")
    selected = np.zeros((40, 80), bool)
    left, top, right, bottom = (round(side) for side in piece.box)
    selected[top:bottom, left:right] = True if piece.cover is None else piece.cover.numpy() > 0.5
    return selected


def coco(annotation, image=(), **content):
    """A file of one image and annotation."""
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": 80, "height": 40, **dict(image)}],
        "annotations": [{"id": 7, "image_id": 1, "category_id": 3, "bbox": [10, 5, 40, 30], **annotation}],
        "categories": [{"id": 3, "name": "dog"}, {"id": 4, "name": "cat"}],
        **content,
    }


def png(array: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(array).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


RUNS = [10 * 40 + 5, *([30, 10] * 39), 30]
RUNS.append(80 * 40 - sum(RUNS))
FILES = {  # name -> files, and the path that is given as regions
    "COCO box": ({"r.json": coco({})}, "r.json"),
    "COCO polygon": ({"r.json": coco({"segmentation": [SQUARE]})}, "r.json"),
    "COCO polygon without brackets": ({"r.json": coco({"segmentation": SQUARE})}, "r.json"),
    "COCO without box": ({"r.json": coco({"segmentation": [SQUARE], "bbox": None})}, "r.json"),
    "COCO numbers of runs": ({"r.json": coco({"segmentation": {"size": [40, 80], "counts": RUNS}})}, "r.json"),
    "CVAT mask, which it calls a crowd": (
        {"r.json": coco({"iscrowd": 1, "segmentation": {"size": [40, 80], "counts": RUNS}, "area": 1200.0,
                         "attributes": {"occluded": False}}, licenses=[{"name": "", "id": 0, "url": ""}])}, "r.json"),
    "CVAT box, not turned": (
        {"r.json": coco({"iscrowd": 0, "segmentation": [], "attributes": {"occluded": False, "rotation": 0.0}})},
        "r.json"),
    "ids as text": (
        {"r.json": coco({"image_id": "1", "category_id": "3"}, categories=[{"id": 3.0, "name": "dog"}])},
        "r.json"),
    "category 0": (
        {"r.json": coco({"category_id": 0, "iscrowd": "0"}, categories=[{"id": 0, "name": "dog"}])}, "r.json"),
    "file with a byte order mark": ({"r.json": "\ufeff" + json.dumps(coco({}))}, "r.json"),
    "CSV": ({"r.csv": "path,x,y,w,h,label\na.png,10,5,40,30,dog\n"}, "r.csv"),
    "CSV of corners": ({"r.csv": "path,left,top,right,bottom,label\na.png,10,5,50,35,dog\n"}, "r.csv"),
    "masks": ({"masks/a/dog.png": png(MASK.astype(np.uint8) * 255)}, "masks"),
}  # fmt: skip


def write(folder: Path, files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".png"):
            content = base64.b64decode(content)
        elif not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("form", FILES)
def test_16_each_format_gives_the_region_that_was_drawn(tmp_path, form):
    """16 and 17: the formats that tools write; `iscrowd` is no reason to leave a region out."""
    files, given = FILES[form]
    write(tmp_path, files)
    ((region,),) = read(tmp_path / given)
    assert region.label == "dog"
    assert np.array_equal(shown(region), MASK)


def test_16_a_data_frame_is_a_table():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"path": ["a.png", "a.png"], "x": [10, 0], "y": [5, 0], "w": [40, 9], "h": [30, 9], "label": ["dog", None],
         "score": [0.5, np.nan]}
    )  # fmt: skip
    ((first, second),) = read(frame)
    assert (first.box, first.label, first.score) == (BOX, "dog", 0.5)
    assert (second.box, second.label, second.score) == ((0, 0, 9, 9), "", 1.0)


@pytest.mark.parametrize(
    "content",
    [
        {"_via_img_metadata": {}, "_via_settings": {}},
        {"videos": [], "annotations": [], "categories": []},
        [{"image_id": 1, "bbox": [0, 0, 5, 5]}],
        {"something": 1},
    ],
)
def test_16_other_formats_are_refused(tmp_path, content):
    write(tmp_path, {"r.json": content})
    with pytest.raises(RequestError, match=r"r\.json is not a COCO file of boxes"):
        read(tmp_path / "r.json")


@pytest.mark.parametrize("name", ["a.txt", "a.xml", "data.yaml"])
def test_16_other_endings_are_refused(tmp_path, name):
    write(tmp_path, {name: "0 .5 .5 .2 .2"})
    with pytest.raises(RequestError, match="give a COCO "):
        read(tmp_path / name)


def test_16_a_folder_without_masks_of_the_images_is_refused(tmp_path):
    write(tmp_path, {"a.txt": "0 .5 .5 .2 .2"})
    with pytest.raises(RequestError, match="no image has a mask in"):
        read(tmp_path)


# 17


def test_17_a_crowd_is_a_region_and_counts(tmp_path):
    for crowd in (1, "1", 0, "0", True, None):
        write(tmp_path, {"r.json": coco({"iscrowd": crowd})})
        assert read(tmp_path / "r.json") == [[Region(BOX, label="dog", image_size=(80, 40))]]


# 18


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": [{"id": 1, "file_name": "a.png"}, {"id": "1", "file_name": "b.png"}]}, "'a.png' and 'b.png'"),
        (
            {"images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "./a.png"}]},
            r"1 \('a.png'\) and 2 \('./a.png'",
        ),
        ({"categories": [{"id": 3, "name": "dog"}, {"id": 3, "name": "cat"}]}, "'dog' and 'cat'"),
    ],
    ids=["two images of one id", "two ids of one file", "two categories of one id"],
)
def test_18_ids_that_are_not_clear_are_refused_with_both_names(tmp_path, content, message):
    write(tmp_path, {"r.json": coco({}, **content)})
    with pytest.raises(RequestError, match=message):
        read(tmp_path / "r.json")


# 20


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ({"image_id": 2}, r"annotation 7 has the image_id 2, which `images` lacks"),
        ({"category_id": 9}, r"annotation 7 has the category_id 9, which `categories` lacks"),
        ({"image_id": None}, r"annotation 7 has no `image_id`"),
    ],
)
def test_20_ids_that_the_file_lacks_are_named(tmp_path, annotation, message):
    write(tmp_path, {"r.json": coco(annotation)})
    with pytest.raises(RequestError, match=message):
        read(tmp_path / "r.json")


def test_20_other_labels_show_how_to_name_the_word_of_a_subject():
    with pytest.raises(RequestError, match=r"--subject NAME:WORD=PATH, such as cat:bird=PATH"):
        read([[Region(BOX, label="bird"), Region(BOX, label="horse")]])


# 21


@pytest.mark.parametrize(
    "annotation",
    [
        {"bbox": [10, 5, 0, 30]},
        {"bbox": [10, 5, -1, 30]},
        {"bbox": [10, 5, 40]},
        {"bbox": [10, 5, 1e999, 30]},
        {"bbox": [10, 5, 10**400, 30]},
        {"bbox": [10, 5, True, 30]},
        {"bbox": [0.1, 0.1, 0.5, 0.5]},
        {"bbox": [0, 0, 1, 1]},
        {"bbox": "10"},
        {"bbox": None},
        {"segmentation": [[]]},
        {"segmentation": [[1, 2, 3, 4]]},
        {"segmentation": "abc"},
        {"segmentation": {"size": [40, 80]}, "bbox": {"x": 1}},
        {"segmentation": {"size": [20, 40], "counts": [800]}},
        {"attributes": {"rotation": 90.0}},
    ],
    ids=str,
)
def test_21_a_bad_annotation_concerns_its_image_alone(tmp_path, annotation):
    content = coco(annotation)
    content["images"].append({"id": 2, "file_name": "b.png", "width": 80, "height": 40})
    content["annotations"].append({"id": 8, "image_id": 2, "category_id": 3, "bbox": [10, 5, 40, 30]})
    write(tmp_path, {"r.json": content})
    path = tmp_path / "r.json"
    assert read(path, ["b.png"]) == [[Region(BOX, label="dog", image_size=(80, 40))]]
    source = regions_for(path, ["a.png", "b.png"], "list", ())
    assert len(source.find(1, PICTURE)) == 1
    with pytest.raises(ImageReadError, match=r"a\.png: .*r\.json, annotation 7: "):
        source.find(0, PICTURE)


@pytest.mark.parametrize("size", [(0, 0), (0, 40), (80.5, 40), ("x", 40), (80, None), (-80, -40)], ids=str)
def test_21_sizes_of_images_are_whole_numbers_above_0(tmp_path, size):
    write(tmp_path, {"r.json": coco({}, {"width": size[0], "height": size[1]})})
    with pytest.raises(ImageReadError, match=r"r\.json, annotation 7: "):
        read(tmp_path / "r.json")


@pytest.mark.parametrize("row", ["a.png,1,1,x,5", "a.png,1,1,0,5", "a.png,1,1", "a.png,1,1,1e999,5"])
def test_21_a_bad_row_concerns_its_image_alone(tmp_path, row):
    write(tmp_path, {"r.csv": f"path,x,y,w,h\n{row}\nb.png,1,1,5,5\nc.png,,,,\n"})
    source = regions_for(tmp_path / "r.csv", ["a.png", "b.png", "c.png"], "list", ())
    assert [len(source.find(number, PICTURE)) for number in (1, 2)] == [1, 0]
    with pytest.raises(ImageReadError, match=r"a\.png: .*r\.csv, row 2: "):
        source.find(0, PICTURE)
