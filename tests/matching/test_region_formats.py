"""The files of annotation tools, in the words of each tool, give the regions that were drawn."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.matching.region_files import read_regions, regions_for
from idmetric.matching.regions import Cut, Region
from idmetric.metric.errors import RequestError
from idmetric.metric.images.kinds import ImageReadError

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


VOC = """<?xml version="1.0" encoding="utf-8"?>
<annotation><folder>JPEGImages</folder><filename>a.png</filename><size><width>80</width><height>40</height>
<depth>3</depth></size><segmented>0</segmented><object><name>dog</name><pose>Unspecified</pose><truncated>0</truncated>
<difficult>0</difficult><bndbox><xmin>10</xmin><ymin>5</ymin><xmax>50.0</xmax><ymax>35</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>
</annotation>"""


def labelme(**shape):
    shape = {"label": "dog", "group_id": None, "shape_type": "polygon", "flags": {}, **shape}
    return {"version": "5.4", "shapes": [shape], "imagePath": "..\\a.png", "imageHeight": 40, "imageWidth": 80}


CORNERS = [[10, 5], [50, 5], [50, 35], [10, 35]]
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
    "CVAT box, turned by 90 degrees": (
        {"r.json": coco({"bbox": [15, 0, 30, 40], "segmentation": [], "attributes": {"rotation": 90.0}})}, "r.json"),
    "Label Studio, uploaded file": (
        {"r.json": coco({"iscrowd": 0, "ignore": 0, "segmentation": []}, {"file_name": "images\\3fa8b1c2-a.png"})},
        "r.json"),
    "Label Studio, local storage": (
        {"r.json": coco({}, {"file_name": "/data/local-files/?d=a.png"})}, "r.json"),
    "ids as text": (
        {"r.json": coco({"image_id": "1", "category_id": "3"}, categories=[{"id": 3.0, "name": "dog"}])},
        "r.json"),
    "category 0": (
        {"r.json": coco({"category_id": 0, "iscrowd": "0"}, categories=[{"id": 0, "name": "dog"}])}, "r.json"),
    "file with a byte order mark": ({"r.json": "\ufeff" + json.dumps(coco({}))}, "r.json"),
    "CSV": ({"r.csv": "path,x,y,w,h,label\na.png,10,5,40,30,dog\n"}, "r.csv"),
    "CSV of corners": (
        {"r.csv": "filename,width,height,class,xmin,ymin,xmax,ymax\na.png,80,40,dog,10,5,50,35\n"}, "r.csv"),
    "YOLO box": ({"data.yaml": "names: [cat, dog]\n", "labels/a.txt": "1 0.375 0.5 0.5 0.75\n"}, "."),
    "YOLO box by data.yaml": (
        {"data.yaml": "names:\n  0: cat\n  1: dog\n", "labels/a.txt": "1 0.375 0.5 0.5 0.75 0.9\n"}, "data.yaml"),
    "YOLO segment": (
        {"classes.txt": "cat\ndog\n", "labels/a.txt": "1 0.125 0.125 0.625 0.125 0.625 0.875 0.125 0.875\n"}, "labels"),
    "YOLO keypoints": (
        {"data.yaml": "kpt_shape: [2, 2]\nnames: [dog]\n", "labels/a.txt": "0 .375 .5 .5 .75 .1 .1 .2 .2\n"}, "."),
    "YOLO of CVAT": ({"obj.names": "dog\n", "obj_train_data/a.txt": "0 0.375 0.5 0.5 0.75\n"}, "."),
    "one YOLO file": ({"classes.txt": "dog\n", "a.txt": "0 0.375 0.5 0.5 0.75\n"}, "a.txt"),
    "Pascal VOC": ({"Annotations/a.xml": VOC}, "."),
    "one Pascal VOC file": ({"a.xml": VOC}, "a.xml"),
    "Pascal VOC in UTF-16": ({"a.xml": VOC.replace("utf-8", "utf-16").encode("utf-16")}, "."),
    "Pascal VOC of Roboflow, polygon": (
        {"a.xml": VOC.replace("<part>", "<polygon><x1>10</x1><y1>5</y1><x2>50</x2><y2>5</y2><x3>50</x3><y3>35</y3>"
                              "<x4>10</x4><y4>35</y4></polygon><part>")}, "."),
    "LabelMe rectangle": ({"a.json": labelme(shape_type="rectangle", points=[[50, 35], [10, 5]])}, "."),
    "LabelMe polygon": ({"a.json": labelme(points=CORNERS)}, "."),
    "one LabelMe file": ({"a.json": labelme(points=CORNERS)}, "a.json"),
    "LabelMe mask": (
        {"a.json": labelme(shape_type="mask", points=[[10, 5], [49, 34]], mask=png(np.full((30, 40), 255, np.uint8)))},
        "."),
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


def test_16_folders_of_images_and_of_labels_correspond(tmp_path):
    """images/train/a.jpg has labels/train/a.txt (Ultralytics), train/images/a.jpg has train/labels/a.txt (Roboflow)."""
    labels = {"labels/train/a.txt": "0 .5 .5 .2 .2", "labels/val/a.txt": "1 .5 .5 .4 .4", "classes.txt": "dog\ncat\n"}
    write(tmp_path, labels)
    (train,), (val,) = read(tmp_path, ["x/images/train/a.jpg", "x/images/val/a.jpg"])
    assert (train.label, val.label) == ("dog", "cat")
    write(tmp_path / "r", {"train/labels/a.txt": "0 .5 .5 .2 .2", "classes.txt": "dog\n"})
    ((region,),) = read(tmp_path / "r", ["y/train/images/a.jpg"])
    assert region.label == "dog"
    with pytest.raises(RequestError, match=r"both .*a\.jpg and .*a\.png"):
        read(tmp_path / "r", ["y/train/images/a.jpg", "y/train/images/a.png"])


def test_16_an_empty_file_of_labels_is_of_an_image_without_objects(tmp_path):
    write(tmp_path, {"a.txt": "", "b.txt": "0 .5 .5 .2 .2"})
    source = regions_for(tmp_path, ["a.png", "b.png"], "list", ())
    assert [len(source.find(number, PICTURE)) for number in range(2)] == [0, 1]
    assert source.unlisted == ()


def test_16_polygons_of_one_group_are_one_object(tmp_path):
    content = labelme(points=CORNERS, group_id=1)
    content["shapes"].append({**content["shapes"][0], "points": [[60, 0], [70, 0], [70, 10], [60, 10]]})
    write(tmp_path, {"a.json": content})
    ((region,),) = read(tmp_path)
    assert shown(region).sum() == 30 * 40 + 10 * 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"_via_img_metadata": {}, "_via_settings": {}}, "VIA.*export it as COCO"),
        ({"a.png123": {"filename": "a.png", "size": 123, "regions": []}}, "VIA.*export it as COCO"),
        ({"image": {"image_id": 1, "file_name": "a.png"}, "annotations": [{"bbox": [0, 0, 1, 1]}]}, "SA-1B"),
        ({"videos": [], "annotations": [], "categories": []}, "YouTube-VIS.*data frames --masks"),
        ([{"id": 1, "data": {"image": "a.png"}, "annotations": []}], "Label Studio's own JSON: export .* as COCO"),
        ([{"image_id": 1, "bbox": [0, 0, 5, 5]}], "COCO results, which names no files"),
        ([{"image": "a.png", "annotations": []}], "Create ML"),
        (coco({"segments_info": []}), "COCO's panoptic masks"),
        ({"something": 1}, "not a COCO file of boxes"),
    ],
)
def test_16_other_formats_are_named_with_what_to_do(tmp_path, content, message):
    write(tmp_path, {"r.json": content})
    with pytest.raises(RequestError, match=r"r\.json is .*" + message):
        read(tmp_path / "r.json")


def test_16_cvats_own_xml_is_named(tmp_path):
    write(tmp_path, {"a.xml": "<annotations><version>1.1</version><image/></annotations>"})
    with pytest.raises(RequestError, match=r"a\.xml: it is CVAT's own XML: export the task as COCO"):
        read(tmp_path / "a.xml", ["b.png"])


def test_16_a_folder_of_two_kinds_is_refused(tmp_path):
    write(tmp_path, {"a.txt": "0 .5 .5 .2 .2", "a.xml": VOC})
    with pytest.raises(RequestError, match=r"\.txt and \.xml of these images"):
        read(tmp_path)


@pytest.mark.parametrize(
    "head",
    [
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE a [<!ENTITY x "y"><!ENTITY z "&x;&x;&x;&x;">]>',
        "<!doctype annotation>",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_xml_with_entities_is_refused(tmp_path, head, encoding):
    declaration, _, rest = VOC.partition("\n")
    declaration = declaration.replace("utf-8", encoding)
    text = declaration + head + rest.replace("<pose>Unspecified", "<pose>&x;")
    write(tmp_path, {"a.xml": text.encode(encoding)})
    with pytest.raises(ImageReadError, match=r"a\.xml: it defines types or entities of XML"):
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
            {"images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "./A.png"}]},
            r"1 \('a.png'\) and 2 \('./A.png'",
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


def test_20_one_label_of_all_regions_that_no_subject_has_is_no_label(tmp_path):
    write(tmp_path, {"r.json": coco({}, categories=[{"id": 3, "name": "object"}])})
    with pytest.warns(UserWarning, match="all regions are labeled object"):
        ((region,),) = read(tmp_path / "r.json")
    assert region.label == ""


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
        {"attributes": {"rotation": "half"}},
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


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"a.txt": "0 .5 .5 .2"}, r"a\.txt, line 1: "),
        ({"a.txt": "0 .5 .5 .2 .2\n0 50 50 20 20"}, r"a\.txt, line 2: .* in fractions"),
        ({"a.txt": "-1 .5 .5 .2 .2"}, r"a\.txt, line 1: its class is -1"),
        ({"a.txt": "2 .5 .5 .2 .2", "classes.txt": "dog\ncat"}, r"line 1: its class is 2, which .*classes\.txt lacks"),
        ({"a.txt": "0 .5 .5 .2 .2", "data.yaml": "names: 5"}, r"data\.yaml has no `names`"),
        ({"a.txt": "0 .5 .5 .2 .2", "data.yaml": "{"}, r"data\.yaml is not YAML"),
        ({"a.txt": b"\xff\xfe\xff"}, r"a\.txt: "),
        ({"a.xml": VOC.replace("<xmin>10</xmin>", "")}, r"a\.xml, object 1: "),
        ({"a.xml": VOC.replace("<width>80", "<width>0")}, r"a\.xml, object 1: .*0"),
        ({"a.xml": VOC[:-20]}, r"a\.xml: it is not XML"),
        ({"a.xml": "<html/>"}, r"a\.xml: it is not an annotation of Pascal VOC"),
        ({"a.json": labelme(shape_type="point", points=[[1, 2]])}, r"a\.json, shapes\[0\]: a point is no region"),
        ({"a.json": labelme(points=[[1, 2], [3, 4]])}, r"a\.json, shapes\[0\]: "),
        ({"a.json": labelme(shape_type="mask", points=[[70, 5], [99, 34]], mask=png(MASK))}, r"\[0\]: .*leaves its"),
        ({"a.json": {"shapes": 5}}, r"a\.json: it is not an annotation of LabelMe"),
    ],
)  # fmt: skip
def test_21_a_bad_file_concerns_its_image_alone(tmp_path, files, where):
    write(tmp_path, files)
    other = {".txt": "0 .5 .5 .2 .2", ".xml": VOC, ".json": labelme(points=CORNERS)}
    ending = Path(next(iter(files))).suffix
    write(tmp_path, {f"b{ending}": other[ending]})
    source = regions_for(tmp_path, ["a.png", "b.png"], "list", ())
    if "data.yaml" not in files:
        assert len(source.find(1, PICTURE)) == 1
    with pytest.raises(ImageReadError, match=r"a\.png: .*" + where):
        source.find(0, PICTURE)


@pytest.mark.parametrize("row", ["a.png,1,1,x,5", "a.png,1,1,0,5", "a.png,1,1", "a.png,1,1,1e999,5"])
def test_21_a_bad_row_concerns_its_image_alone(tmp_path, row):
    write(tmp_path, {"r.csv": f"path,x,y,w,h\n{row}\nb.png,1,1,5,5\nc.png,,,,\n"})
    source = regions_for(tmp_path / "r.csv", ["a.png", "b.png", "c.png"], "list", ())
    assert [len(source.find(number, PICTURE)) for number in (1, 2)] == [1, 0]
    with pytest.raises(ImageReadError, match=r"a\.png: .*r\.csv, row 2: "):
        source.find(0, PICTURE)


def test_of_a_folder_only_the_files_of_the_images_are_read(tmp_path):
    write(tmp_path, {"a.txt": "0 .5 .5 .2 .2", "b.txt": "damaged"})
    assert list(read_regions(tmp_path, ["a.png"])) == ["a.png"]
