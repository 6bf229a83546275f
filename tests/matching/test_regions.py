"""Regions in the forms in which users and tools give them, against pixels that are known; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as codec

from idmetric.matching.coco_masks import decode
from idmetric.matching.listed_paths import by_path
from idmetric.matching.region_files import region_finder
from idmetric.matching.regions import Region, cut
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError, read_image

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 80, 3), np.uint8))  # 80 x 40
BOX = (10.0, 5.0, 50.0, 35.0)
MASK = np.zeros((40, 80), bool)
MASK[5:35, 10:50] = True
RING = MASK.copy()
RING[15:25, 20:40] = False


def find(regions: Any, images: tuple[str, ...] = ("a.png",)) -> list[list[Region] | None]:
    """The regions of images; None for one that is not listed."""
    finder = region_finder(regions, [[name] for name in images])
    found = [finder(number, name) for number, name in enumerate(images)]
    return [None if regions is None else list(regions) for regions in found]


def only(regions: Any) -> Region:
    [[region]] = find(regions)
    return region


def shown(region: Region) -> NDArray[np.bool_]:
    """The pixels of PICTURE that a region selects: those of its mask, or of its box."""
    piece = cut(PICTURE, region, "a.png")
    left, top, right, bottom = (round(side) for side in piece.box)
    selected = np.zeros((40, 80), bool)
    selected[top:bottom, left:right] = True if piece.cover is None else piece.cover.numpy() > 0.5
    return selected


def coco(folder: Path, annotation: dict[str, Any], image: dict[str, Any] | None = None, **content: Any) -> str:
    """A file of one annotation of an image."""
    image = {"id": 1, "file_name": "a.png", "width": 80, "height": 40, **(image or {})}
    annotation = {"id": 7, "image_id": 1, "category_id": 3, "bbox": [10, 5, 40, 30], **annotation}
    whole = {"images": [image], "annotations": [annotation], "categories": [{"id": 3, "name": "dog"}], **content}
    path = folder / "boxes.json"
    path.write_text(json.dumps(whole))
    return str(path)


def table(folder: Path, text: str) -> str:
    path = folder / "boxes.csv"
    path.write_text(text)
    return str(path)


def runs(mask: NDArray[np.bool_]) -> list[int]:
    """The lengths of runs of 0 and 1 in turn, down the columns: COCO's code, by a slow loop."""
    lengths, is_inside = [0], False
    for value in mask.T.ravel().tolist():
        if value != is_inside:
            lengths.append(0)
            is_inside = value
        lengths[-1] += 1
    return lengths


# In Python


@pytest.mark.parametrize(
    "regions",
    [
        [BOX],
        [list(BOX)],
        [[list(BOX)]],
        np.array([BOX]),
        torch.tensor([BOX]),
        [Region(BOX)],
        {"a.png": [BOX]},
        {"./x/../a.png": [BOX]},
        [np.array(BOX, np.float32)],
    ],
    ids=str,
)
def test_a_box_in_any_form(regions: Any) -> None:
    assert only(regions) == Region(BOX)


def test_without_regions_each_image_is_one() -> None:
    assert find(None, ("a.png", "b.png")) == [[Region()], [Region()]]


def test_a_mask_is_a_region_and_cut_to_its_box() -> None:
    assert np.array_equal(shown(only([RING.astype(np.uint8) * 255])), RING)
    assert cut(PICTURE, only([RING]), "a.png").pixels.size == (40, 30)


@pytest.mark.parametrize("regions", [[5], [(1, 2, 3)], [None], [[None]], {"a.png": [(50, 5, 10, 35)]}], ids=str)
def test_other_objects_are_no_regions(regions: Any) -> None:
    with pytest.raises((RequestError, TypeError)):
        find(regions)


def test_regions_of_several_images_are_a_list_for_each() -> None:
    assert find([[BOX], []], ("a.png", "b.png")) == [[Region(BOX)], []]
    for regions in ([BOX, BOX], [[BOX]], ["mask.png", "mask.png"]):
        with pytest.raises(RequestError, match="list for each"):
            find(regions, ("a.png", "b.png"))


def test_fractions_may_be_off_by_a_pixel() -> None:
    assert cut(PICTURE, Region((0.5, -0.003, 1.004, 1.0)), "a.png").pixels.size == (40, 40)
    for box in ((0.5, 0.0, 1.3, 1.0), (80, 0, 81, 40), (-5, 0, 10, 10)):
        with pytest.raises(ImageReadError, match=r"a\.png"):
            cut(PICTURE, Region(box), "a.png")
    assert cut(PICTURE, Region((0, 0, 2, 2)), "a.png").pixels.size == (2, 2)


def test_outside_of_a_mask_is_painted() -> None:
    piece = cut(PICTURE, only([RING.astype(np.uint8) * 255]), "a.png", "white")
    expected = np.where(RING[..., None], np.asarray(PICTURE), 255)[5:35, 10:50]
    assert np.array_equal(np.asarray(piece.pixels), expected)


def test_a_cut_of_a_turned_photo_is_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x112] = 6
    PICTURE.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    turned = read_image(tmp_path / "turned.png")
    mask = Image.fromarray(MASK)
    expected = cut(PICTURE, Region((10, 5, 40, 35), mask), "a.png")
    for form in (mask, mask.transpose(Image.Transpose.ROTATE_90)):
        piece = cut(turned, Region((10, 5, 40, 35), form), "a.png")
        assert np.array_equal(piece.pixels, expected.pixels)
        assert torch.equal(piece.cover, expected.cover)
        assert "stored_orientation" not in piece.pixels.info  # else a square mask would be taken for a stored one


def test_keys_differ_by_box_mask_and_outside() -> None:
    pieces = [cut(PICTURE, region, "a.png") for region in (Region(BOX), Region(BOX, RING), Region(BOX, MASK))]
    keys = {piece.key(outside) for piece in pieces for outside in ("keep", "black")}
    assert len(keys) == 6


# Paths


def test_the_end_of_a_path_names_an_image_and_the_longest_end_counts() -> None:
    listed = {"01.png": [1], "b/01.png": [2], "./b\\01.png": [3]}
    assert by_path(listed, ["x/a/01.png", "x/b/01.png"], "regions") == {"x/a/01.png": [1], "x/b/01.png": [2, 3]}
    with pytest.raises(RequestError, match=r"01\.png"):
        by_path({"01.png": [1]}, ["a/01.png", "b/01.png"], "regions")


def test_images_that_are_not_listed_have_none_and_some_must_be() -> None:
    assert find({"a.png": [BOX]}, ("a.png", "b.png")) == [[Region(BOX)], None]
    with pytest.raises(RequestError, match=r"b\.png"):
        find({"a.png": [BOX]}, ("b.png",))


# COCO


@pytest.mark.parametrize(
    ("annotation", "mask"),
    [
        ({}, MASK),
        ({"segmentation": [[10, 5, 50, 5, 50, 35, 10, 35]]}, MASK),
        ({"segmentation": [10, 5, 50, 5, 50, 35, 10, 35]}, MASK),
        ({"segmentation": [[10, 5, 50, 5, 50, 35, 10, 35]], "bbox": None, "attributes": {"rotation": 30}}, MASK),
        ({"segmentation": {"size": [40, 80], "counts": runs(RING)}}, RING),
        ({"segmentation": codec.encode(np.asfortranarray(RING.astype(np.uint8))), "iscrowd": 1}, RING),
        ({"image_id": "1", "category_id": 3.0, "attributes": {"rotation": 0.0}, "bbox_mode": 1}, MASK),
    ],
    ids=["box", "polygon", "one polygon", "no box", "runs", "text of a crowd", "ids as text"],
)
def test_coco_files_of_tools(tmp_path: Path, annotation: dict[str, Any], mask: NDArray[np.bool_]) -> None:
    code = annotation.get("segmentation")
    if isinstance(code, dict) and isinstance(code["counts"], bytes):
        annotation = {**annotation, "segmentation": {**code, "counts": code["counts"].decode()}}
    region = only(coco(tmp_path, annotation))
    assert region.label == "dog"
    assert np.array_equal(shown(region), mask)


def test_coco_is_in_pixels_of_the_size_in_the_file(tmp_path: Path) -> None:
    double = {"width": 160, "height": 80}
    region = only(coco(tmp_path, {"bbox": [20, 10, 80, 60]}, double))
    assert cut(PICTURE, region, "a.png").pixels.tobytes() == PICTURE.crop((10, 5, 50, 35)).tobytes()
    outline = [20, 10, 100, 10, 100, 70, 20, 70]
    assert np.array_equal(shown(only(coco(tmp_path, {"bbox": None, "segmentation": [outline]}, double))), MASK)
    region = only(coco(tmp_path, {"bbox": [5, 10, 30, 40]}, {"width": 40, "height": 80}))
    with pytest.raises(ImageReadError, match=r"a\.png.*40 x 80"):
        cut(PICTURE, region, "a.png")


@pytest.mark.parametrize(
    "annotation",
    [
        {"bbox": [10, 5, 0, 30]},
        {"bbox": [10, 5, 40]},
        {"bbox": [10, 5, float("nan"), 30]},
        {"bbox": [0.1, 0.1, 0.5, 0.5]},
        {"bbox": "10"},
        {"bbox": None},
        {"bbox_mode": 0},
        {"bbox_mode": "XYXY_ABS"},
        {"rotation": 5},
        {"attributes": {"rotation": 90.0}},
        {"segmentation": {"size": [20, 40], "counts": [800]}},
        {"segmentation": {"counts": [3200]}},
        {"image_id": 2},
        {"category_id": 9},
        {"image_id": None},
    ],
    ids=str,
)
def test_a_bad_annotation_is_named(tmp_path: Path, annotation: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"boxes\.json, annotation 7"):
        find(coco(tmp_path, annotation))


@pytest.mark.parametrize(
    "segmentation",
    [
        [[1, 2, 3, 4]],
        [["a"] * 6],
        [[1, 2, 3, 4, 5, float("inf")]],
        [[0, 0, 1e9, 0, 0, 9]],
        {"size": [40, 80], "counts": [0, 5]},
        {"size": [40, 80], "counts": [3205, -5]},
        {"size": [40, 80], "counts": "##"},
        {"size": [40, 80], "counts": codec.encode(np.asfortranarray(RING.astype(np.uint8)))["counts"][:-4].decode()},
        {"size": [40, 80], "counts": [3200]},
    ],
    ids=["short", "text", "infinite", "far", "too few", "negative", "no code", "cut", "empty"],
)
def test_a_damaged_mask_names_its_image(tmp_path: Path, segmentation: Any) -> None:
    region = only(coco(tmp_path, {"segmentation": segmentation}))
    with pytest.raises(ImageReadError, match=r"a\.png"):
        cut(PICTURE, region, "a.png")


def test_a_code_of_more_pixels_than_images_may_have_is_refused() -> None:
    with pytest.raises(ValueError, match="counts"):
        decode({"size": [10**5, 10**5], "counts": [10**10]})


@pytest.mark.parametrize(
    "content",
    [
        {"images": [{"id": 1, "file_name": "a.png"}, {"id": "1", "file_name": "b.png"}]},
        {"images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "a.png"}]},
        {"categories": [{"id": 3, "name": "dog"}, {"id": 3, "name": "cat"}]},
        {"images": [{"id": 1, "file_name": "a.png", "width": "x", "height": 1}]},
        {"images": None},
        {"annotations": 5},
    ],
    ids=str,
)
def test_files_whose_ids_are_not_clear_are_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"boxes\.json"):
        find(coco(tmp_path, {}, **content))


# Tables


@pytest.mark.parametrize(
    "text",
    [
        "path,x,y,w,h,label\na.png,10,5,40,30,dog",
        "path;left;top;right;bottom;label\na.png;10;5;50;35;dog",
        "path,x,y,w,h,label,width,height,rotation\na.png,20,10,80,60,dog,160,80,0",
    ],
)
def test_tables_of_boxes(tmp_path: Path, text: str) -> None:
    region = only(table(tmp_path, text))
    assert region.label == "dog"
    assert np.array_equal(shown(region), MASK)


def test_a_data_frame_is_a_table_and_a_row_without_sides_has_no_region() -> None:
    frame = pd.DataFrame({"path": ["a.png", "b.png"], "x": [10, np.nan], "y": [5, None], "w": [40, None]})
    frame["h"] = [30, np.nan]
    assert find(frame, ("a.png", "b.png")) == [[Region(BOX)], []]


@pytest.mark.parametrize(
    "row",
    ["a.png,1,1,x,5,,", "a.png,1,1,0,5,,", "a.png,1,1,,5,,", "a.png,1,1,5,5,,90", ",1,1,5,5,,", "a.png,1,1,5,5,80,"],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str) -> None:
    with pytest.raises(RequestError, match=r"boxes\.csv.* row 2"):
        find(table(tmp_path, f"path,x,y,w,h,width,rotation\n{row}\n"))


def test_boxes_of_an_image_of_another_shape_are_refused(tmp_path: Path) -> None:
    region = only(table(tmp_path, "path,x,y,w,h,width,height\na.png,1,1,5,5,40,80\n"))
    with pytest.raises(ImageReadError, match=r"a\.png.*40 x 80"):
        cut(PICTURE, region, "a.png")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"{"),
        ("a.json", b"[" * 100_000),
        ("a.json", b"\xff\xfe\xff"),
        ("a.json", b'[{"image_id": 1, "bbox": [0, 0, 5, 5]}]'),
        ("a.json", b'{"videos": [], "annotations": []}'),
        ("a.csv", b"path,x,y,w,h\n\xff,1,1,1,1"),
        ("a.csv", b"file,left\na.png,1"),
        ("a.xml", b"<annotation>"),
        ("a.txt", b"0 .5 .5 .2 .2"),
    ],
)
def test_damaged_files_and_other_formats_are_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(RequestError, match=name):
        find(str(path))
    with pytest.raises(RequestError, match=r"gone\.csv"):
        find(str(tmp_path / "gone.csv"))


# Files of masks


def test_folders_of_masks_follow_the_folders_of_the_images(tmp_path: Path) -> None:
    for name in ("a/01/ann.png", "a/01/rex.png", "b/01.png", "clip.mp4 @ 3/ann.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(MASK).save(tmp_path / name)
    first, second, frame = find(str(tmp_path), ("images/a/01.png", "images/b/01.jpg", "clip.mp4 @ 3"))
    assert [region.label for region in first or ()] == ["ann", "rex"]
    assert [region.label for region in second or ()] == [""]
    assert [region.label for region in frame or ()] == ["ann"]
    assert np.array_equal(shown((first or [])[1]), MASK)
    with pytest.raises(RequestError, match=r"c/02\.png"):
        find(str(tmp_path), ("c/02.png",))
    with pytest.raises(RequestError, match="01"):
        find(str(tmp_path / "b"), ("a/01.png", "b/01.png"))


def test_one_file_is_the_mask_of_each_image(tmp_path: Path) -> None:
    Image.fromarray(MASK).save(tmp_path / "mask.png")
    assert np.array_equal(shown(only(str(tmp_path / "mask.png"))), MASK)
