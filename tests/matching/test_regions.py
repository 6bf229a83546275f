"""Regions in the forms in which users give them, and what is refused or stated instead of scored wrongly."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric.matching.region_files import regions_for
from idmetric.matching.regions import Cut, Polygons, Region
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError, read_image

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 80, 3), np.uint8))  # 80 x 40
BOX = (10.0, 5.0, 50.0, 35.0)


def read(regions, images=(PICTURE,), kind="image", labels=("ann", "rex")):
    source = regions_for(regions, images, kind, labels)
    return [list(source.find(number, PICTURE)) for number in range(len(images))]


def size(region: Region, picture=PICTURE) -> tuple[int, int]:
    pixels = Cut().cut(picture, region).pixels
    return pixels.size


@pytest.mark.parametrize(
    "regions",
    [
        BOX,
        list(BOX),
        [BOX],
        [list(BOX)],
        [[list(BOX)]],
        np.array(BOX),
        np.array([BOX]),
        torch.tensor([BOX]),
        [tuple(np.array(BOX).astype(np.int64))],
        [tuple(np.array(BOX, np.float32))],
        Region(BOX),
        lambda picture: [BOX],
    ],
    ids=["tuple", "list", "tuples", "lists", "lists of an image", "array", "arrays", "tensors", "integers", "floats",
         "region", "detector"],
)  # fmt: skip
def test_a_box_in_any_form(regions):
    assert read(regions) == [[Region(BOX)]]


def test_an_array_of_two_axes_is_one_mask_and_of_four_columns_boxes():
    mask = np.zeros((40, 80), np.uint8)
    mask[5:35, 10:50] = 255
    ((region,),) = read(mask)
    assert size(region) == (40, 30)
    assert len(read(np.array([BOX, BOX]))[0]) == 2


@pytest.mark.parametrize("region", [5, (1, 2, 3), None, {}], ids=str)
def test_other_objects_are_no_regions(region):
    with pytest.raises(RequestError, match="is not a region"):
        read([region, BOX])


def test_regions_of_several_images_are_lists():
    with pytest.raises(RequestError, match="a list for each image"):
        read([BOX, BOX], (PICTURE, PICTURE), kind="list")


@pytest.mark.parametrize("box", [(50, 35, 10, 5), (10, 5, 10, 35), (float("nan"), 5, 50, 35)], ids=str)
def test_a_region_with_an_empty_box_is_refused_also_by_a_detector(box):
    with pytest.raises(RequestError, match="is empty"):
        Region(box, label="ann")


def test_fractions_may_be_off_by_rounding():
    assert size(Region((0.5, -0.003, 1.004, 1.0))) == (40, 40)
    with pytest.raises(ImageReadError, match="lies outside"):
        size(Region((0.5, 0.0, 1.3, 1.0)))  # not pixels, of which it would be the first one
    assert size(Region((0, 0, 2, 2))) == (2, 2)


def test_a_box_beside_the_image_is_not_its_last_column():
    with pytest.raises(ImageReadError, match="lies outside"):
        size(Region((80, 0, 81, 40)))


def test_a_cut_of_a_turned_photo_is_upright(tmp_path):
    exif = Image.Exif()
    exif[0x112] = 6
    PICTURE.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    turned = read_image(tmp_path / "turned.png")
    mask = Image.new("L", PICTURE.size)
    mask.paste(255, (10, 5, 40, 20))
    region = Region((10, 5, 40, 35), mask)
    expected, expected_cover, _ = Cut().cut(PICTURE, region)
    for form in (mask, mask.transpose(Image.Transpose.ROTATE_90)):
        pixels, cover, _ = Cut().cut(turned, Region(region.box, form))
        assert np.array_equal(pixels, expected)
        assert torch.equal(cover, expected_cover)
        assert "stored_orientation" not in pixels.info  # else the square mask would be taken for a stored one


def coco(folder, boxes, **image):
    annotations = [{"id": 7, "image_id": 1, **annotation} for annotation in boxes]
    content = {"images": [{"id": 1, "file_name": "a.png", **image}], "annotations": annotations}
    path = folder / "boxes.json"
    path.write_text(json.dumps(content))
    return path


def test_coco_boxes_are_pixels_of_the_size_in_the_file(tmp_path):
    corner = [{"bbox": [1, 0, 1, 1]}]
    ((region,),) = read(coco(tmp_path, corner, width=80, height=40), ["a.png"])
    assert size(region) == (1, 1)
    ((region,),) = read(coco(tmp_path, [{"bbox": [20, 10, 80, 60]}], width=160, height=80), ["a.png"])
    assert Cut().cut(PICTURE, region)[0].tobytes() == PICTURE.crop((10, 5, 50, 35)).tobytes()
    ((region,),) = read(coco(tmp_path, [{"bbox": [5, 10, 30, 40]}], width=40, height=80), ["a.png"])
    with pytest.raises(ImageReadError, match="regions of the upright image"):
        Cut().cut(PICTURE, region)


def test_coco_polygons_are_drawn_at_the_size_of_the_image(tmp_path):
    outline = [20, 10, 100, 10, 100, 70, 20, 70]
    annotation = {"bbox": [20, 10, 80, 60], "segmentation": [outline]}
    ((region,),) = read(coco(tmp_path, [annotation], width=160, height=80), ["a.png"])
    assert isinstance(region.mask, Polygons)  # a drawn mask for each annotation of a large file fills the memory
    cover = Cut().cut(PICTURE, region).cover
    assert cover.shape == (30, 40)
    assert float(cover.mean()) == 1
    ((region,),) = read(coco(tmp_path, [annotation | {"bbox": [20, 10, 60, 30]}]), ["a.png"])  # no size in the file
    assert size(region) == (60, 30)


@pytest.mark.parametrize("polygon", [[1, 2, 3], [1, 2, 3, 4], ["a"] * 6, [1, 2, 3, 4, 5, float("inf")]], ids=str)
def test_bad_polygons_name_their_annotation(tmp_path, polygon):
    path = coco(tmp_path, [{"bbox": [0, 0, 9, 9], "segmentation": [polygon]}], width=80, height=40)
    with pytest.raises(ImageReadError, match=r"a\.png: .*boxes\.json, annotation 7: "):
        read(path, ["a.png"])


def test_files_may_have_the_scores_of_a_detector(tmp_path):
    boxes = [{"bbox": [0, 0, 9, 9], "score": 0.25}, {"bbox": [0, 0, 9, 9]}]
    (regions,) = read(coco(tmp_path, boxes), ["a.png"])
    assert [region.score for region in regions] == [0.25, 1]
    table = tmp_path / "boxes.csv"
    table.write_text("path,x,y,w,h,score\na.png,0,0,9,9,0.5\na.png,0,0,9,9,\n")
    (regions,) = read(table, ["a.png"])
    assert [region.score for region in regions] == [0.5, 1]
    for score, said in (("high", "'high'"), ("97", "97.0")):
        table.write_text(f"path,x,y,w,h,score\na.png,0,0,9,9,{score}\n")
        with pytest.raises(ImageReadError, match=rf"a\.png: .*boxes\.csv, row 2: its score is {said}"):
            read(table, ["a.png"])


MASK = np.zeros((40, 80), bool)  # a ring
MASK[5:35, 10:50] = True
MASK[15:25, 20:40] = False


def runs(mask):
    """The lengths of runs of 0 and 1 in turn, down the columns: COCO's code, by a slow loop."""
    lengths, is_inside = [0], False
    for value in mask.T.ravel().tolist():
        if value != is_inside:
            lengths.append(0)
            is_inside = value
        lengths[-1] += 1
    return lengths


def coded(folder, segmentation, **image):
    return coco(folder, [{"bbox": [10, 5, 40, 30], "segmentation": segmentation}], **image)


@pytest.mark.parametrize("form", ["numbers", "text"])
@pytest.mark.parametrize("sides", [{}, {"width": 80, "height": 40}], ids=["without size", "with size"])
def test_coco_run_length_codes_are_masks(tmp_path, form, sides):
    code = {"size": [40, 80], "counts": runs(MASK)}
    if form == "text":
        mask = pytest.importorskip("pycocotools.mask")
        code["counts"] = mask.encode(np.asfortranarray(MASK.astype(np.uint8)))["counts"].decode()
    ((region,),) = read(coded(tmp_path, code, **sides), ["a.png"])
    cover = Cut().cut(PICTURE, region).cover
    assert np.array_equal(cover.numpy() > 0.5, MASK[5:35, 10:50])
    cover = Cut().cut(PICTURE.resize((160, 80)), region).cover
    assert np.array_equal(cover.numpy() > 0.5, MASK.repeat(2, 0).repeat(2, 1)[10:70, 20:100])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ({"counts": [0, 3200]}, "its mask cannot be used: 'size'"),
        ({"size": [40], "counts": [0, 3200]}, "its mask cannot be used"),
        ({"size": [20, 40], "counts": [0, 800]}, "its run-length code is of 40 x 20"),
        ("0 5", "its mask cannot be used"),
    ],
)
def test_bad_run_length_codes_name_their_annotation(tmp_path, code, message):
    with pytest.raises(ImageReadError, match="annotation 7.*" + message):
        read(coded(tmp_path, code, width=80, height=40), ["a.png"])


@pytest.mark.parametrize("counts", [[0, 5], "##", None], ids=["too short", "no code", "null"])
def test_damaged_run_length_codes_name_image_and_region(tmp_path, counts):
    ((region,),) = read(coded(tmp_path, {"size": [40, 80], "counts": counts}), ["a.png"])
    with pytest.raises(ImageReadError, match=r"a\.png: the mask of region \(10, 5, 50, 35\): not a run-length code"):
        Cut().cut(PICTURE, region, "a.png")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "{"),
        ("a.json", "[" * 100_000),
        ("a.json", b"\xff\xfe\xff"),
        ("a.json", '[{"image_id": 1, "bbox": [0, 0, 5, 5]}]'),
        ("a.json", '{"images": [{"id": 1, "file_name": "a.png", "width": "x", "height": 1}], "annotations": '
                   '[{"image_id": 1, "bbox": [0, 0, 5, 5]}]}'),
        ("a.csv", b"path,x,y,w,h\n\xff,1,1,1,1"),
        ("a.csv", "path,x,y,w,h\na.png,1,1"),
        ("a.csv", "path,x,y,w,h\na.png,nan,1,5,5"),
    ],
    ids=["cut", "deep", "bytes", "results", "size", "no text", "short row", "nan"],
)  # fmt: skip
def test_damaged_files_are_refused_by_name(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((RequestError, ImageReadError), match=rf"a\.{name[2:]}"):
        read(path, ["a.png"])


def test_a_detector_that_returns_none_gets_a_sentence():
    with pytest.raises(RequestError, match=r"returned None for a\.png: let it return a list, which is empty"):
        read(lambda picture: None, ["a.png"])


def test_two_images_do_not_share_regions_by_an_equal_name():
    with pytest.raises(RequestError, match="more folders"):
        read({"01.png": [BOX]}, ["a/01.png", "b/01.png"], kind="list")
    by_folder = {"a/01.png": [BOX], "b/01.png": []}
    assert read(by_folder, ["a/01.png", "b/01.png"], kind="list") == [[Region(BOX)], []]
    assert read({"01.png": [BOX]}, ["a/01.png", "a/01.png"], kind="list") == [[Region(BOX)]] * 2


def test_paths_that_are_written_differently_are_one_image():
    assert len(read({"./a.png": [BOX], "a.png": [BOX]}, ["a.png"])[0]) == 2


def test_images_that_are_not_listed_are_stated():
    with pytest.warns(UserWarning, match=r"1 of 2 images are not listed .* b\.png"):
        assert read({"a.png": [BOX]}, ["a.png", "b.png"], kind="list") == [[Region(BOX)], []]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read({"a.png": [BOX], "b.png": []}, ["a.png", "b.png"], kind="list")


def test_labels_that_no_subject_has_are_stated():
    with pytest.warns(UserWarning, match="labeled cat are compared with no subject"):
        read([Region(BOX, label="cat"), Region(BOX, label="ann")])


def test_folders_of_masks_follow_the_folders_of_the_images(tmp_path):
    mask = Image.new("L", PICTURE.size)
    mask.paste(255, (10, 5, 50, 35))
    for name in ("a/01/ann.png", "b/01.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        mask.save(tmp_path / name)
    (first,), (second,) = read(tmp_path, ["images/a/01.png", "images/b/01.png"], kind="list")
    assert first.label == "ann"
    assert first.mask == str(tmp_path / "a/01/ann.png")
    assert second.label == ""
    assert second.mask == str(tmp_path / "b/01.png")


@pytest.mark.parametrize("name", ["01/ann.png", "01.png"])
def test_two_images_do_not_share_masks(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    Image.new("L", PICTURE.size, 255).save(tmp_path / name)
    with pytest.raises(RequestError, match=r"a/01\.png and b/01\.png"):
        read(tmp_path, ["a/01.png", "b/01.png"], kind="list")
