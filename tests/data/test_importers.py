from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from idmetric.data.importers.mtg import oracle_score
from idmetric.data.importers.run import ImportJob, import_dataset
from idmetric.data.importers.source import Source, open_source
from idmetric.data.old_manifest.check import faults
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.split import leaks
from idmetric.data.old_manifest.table import Manifest, Row, read
from idmetric.metric.images import read_image
from idmetric.metric.masks import read_mask
from tests.hub_server import COMMIT, HubServer
from tests.import_parts import encoded, png, put, put_all, refuses


def value_of(manifest: Manifest, row: int) -> int:
    red, green, _ = manifest.image(row).getpixel((0, 0))  # type: ignore[misc]
    return int(red + 256 * green)


def box(share: float, side: int = 10) -> bytes:
    """A mask whose first rows are white."""
    pixels = np.zeros((side, side), np.uint8)
    pixels[: round(share * side)] = 255
    return encoded(Image.fromarray(pixels))


def table(columns: dict[str, list[Any]], images: tuple[str, ...] = ()) -> datasets.Dataset:
    """A dataset as the Hub's are written; cells of image columns are bytes."""
    cells = {
        name: [None if v is None else {"bytes": v, "path": None} for v in values] if name in images else values
        for name, values in columns.items()
    }
    made = datasets.Dataset.from_dict(cells)
    for name in images:
        made = made.cast_column(name, datasets.Image())
    return made


def by_id(manifest: Manifest) -> dict[str, tuple[int, Row]]:
    return {row.id: (k, row) for k, row in enumerate(manifest)}


# Folders


def test_a_folder_per_identity(tmp_path: Path) -> None:
    root = tmp_path / "toys"
    put_all(root, "mug/1.jpg", "mug/2.PNG", "dogs/rex/1.webp")
    put_all(root, "mug/1_mask.png", "mug/masks/2.png", "masks/dogs/rex/1.png", data=box(1))
    put_all(root, ".hidden/1.jpg", "mug/.DS_Store", "mug/notes.txt", data=b"")
    manifest = import_dataset("folder", root)
    assert manifest.column("identity") == ["toys/dogs/rex", "toys/mug", "toys/mug"]
    assert manifest.column("id") == ["toys/dogs/rex/1.webp", "toys/mug/1.jpg", "toys/mug/2.PNG"]
    assert manifest.column("category") == ["dogs", None, None]
    assert {(row.dataset, row.split) for row in manifest} == {("toys", None)}
    manifest.write(tmp_path / "m.csv")
    again = read(tmp_path / "m.csv")
    assert again.column("path") == ["toys/dogs/rex/1.webp", "toys/mug/1.jpg", "toys/mug/2.PNG"]
    assert again.column("mask") == ["toys/masks/dogs/rex/1.png", "toys/mug/1_mask.png", "toys/mug/masks/2.png"]
    assert again.image(1).size == (6, 4)


def test_top_folders_that_are_splits_are_taken_as_such(tmp_path: Path) -> None:
    put_all(tmp_path / "set", "train/a/1.png", "train/b/1.png", "validation/a/2.png")
    put(tmp_path / "set" / "train_masks" / "a" / "1.png", box(1))
    manifest = import_dataset("folder", tmp_path / "set")
    assert manifest.column("split") == ["train", "train", "val"]
    assert manifest.column("identity") == ["set/a", "set/b", "set/a"]
    assert [m is not None for m in manifest.column("mask")] == [True, False, False]
    assert leaks(manifest) == {"set/a": ("train", "val")}  # as it is: the user sees it
    put(tmp_path / "set" / "other" / "a" / "1.png", png(1))
    refuses("set/train: this name is that of a split, but not every image", "folder", tmp_path / "set")


def test_folders_that_say_no_identity_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuses(r"empty: no images", "folder", tmp_path / "empty")
    put(tmp_path / "flat" / "1.png", png(1))
    refuses(r"flat/1\.png.*not in the folder of an identity.*flat/NAME/1\.png", "folder", tmp_path / "flat")
    put_all(tmp_path / "two/a", "1.png", "1_mask.png", "masks/1.png")
    refuses("two masks of one image", "folder", tmp_path / "two")
    (tmp_path / "two" / "a" / "masks" / "1.png").rename(tmp_path / "two" / "a" / "masks" / "9.png")
    with pytest.warns(UserWarning, match=r"1 masks belong to no image .*: a/masks/9\.png"):
        assert len(import_dataset("folder", tmp_path / "two")) == 1
    refuses("no such folder", "folder", tmp_path / "none")


def syncd(root: Path, records: list[dict[str, Any]]) -> Path:
    """SynCD's published folder: images of one color, which encodes their number, and JPEG masks of half their width."""
    for number, record in enumerate(records):
        for view, file in enumerate(record["filenames"]):
            put(root / file, png(10 * number + view, (8, 6)))
            gray = np.zeros((6, 8), np.uint8)
            gray[:, :4] = 90  # a rendering of the object: never white
            mask = Image.fromarray(gray).resize((16, 12))
            put((root / file).parent / "masks" / f"{Path(file).stem}.jpg", encoded(mask, "JPEG"))
    put(root / "metadata.json", json.dumps(records).encode())
    return root


def syncd_record(number: int, count: int = 3, **other: Any) -> dict[str, Any]:
    record = {
        "filenames": [f"{number}/{view}.png" for view in range(count)],
        "prompts": [f"a mug {number} in scene {view}" for view in range(3)],  # one too many for two files
        "category": "rigid", "category_description": f"a mug {number}", "objaverse_id": f"id{number}",
    }  # fmt: skip
    return {**record, **other}


def test_syncd(tmp_path: Path) -> None:
    records = [syncd_record(7), syncd_record(3, 2, category="deformable", category_description="", objaverse_id="")]
    root = syncd(tmp_path / "syncd", records)
    manifest = import_dataset("syncd", root, images=tmp_path / "images")
    assert manifest.column("identity") == ["syncd/7"] * 3 + ["syncd/3"] * 2
    assert [value_of(manifest, k) for k in range(5)] == [0, 1, 2, 10, 11]
    assert manifest.column("x_partition") == ["rigid"] * 3 + ["deformable"] * 2
    assert manifest.column("category") == ["a mug 7"] * 3 + [None] * 2
    assert manifest.column("text")[1:4] == ["a mug 7 in scene 1", "a mug 7 in scene 2", "a mug 3 in scene 0"]
    assert manifest[0].parameters == {"file": "7/0.png", "objaverse_id": "id7"}
    assert manifest[3].parameters == {"file": "3/0.png"}
    for row in manifest:
        pixels = np.asarray(Image.open(str(row.mask)))
        assert pixels.shape == (6, 8)
        assert set(np.unique(pixels)) == {0, 255}
        assert pixels[:, :4].all()
    assert not faults(manifest)
    assert len(import_dataset("syncd", root, limit=1)) == 3


def test_syncd_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuses(r"no metadata.json; download nupurkmr9/syncd and unpack", "syncd", tmp_path / "empty")
    wrong = [
        ([{"prompts": []}], "record 1: 'filenames' must be a list"),
        ([syncd_record(0), syncd_record(1, filenames=[])], "record 2: 'filenames' must be a list"),
        ([syncd_record(0, filenames=["../x.png", "0/1.png"])], "outside the dataset's folder"),
    ]
    for number, (records, message) in enumerate(wrong):
        folder = put(tmp_path / str(number) / "metadata.json", json.dumps(records).encode()).parent
        refuses(message, "syncd", folder)
    root = syncd(tmp_path / "part", [syncd_record(0), syncd_record(1)])
    (root / "1" / "2.png").unlink()
    refuses(r"record 2: '1/2.png' is missing; unpack all archives", "syncd", root)
    assert len(import_dataset("syncd", root, on_error="skip")) == 3


def test_cute_finds_objects_above_their_scenes(tmp_path: Path) -> None:
    scenes = ("apple_01/in_the_wild/1.jpg", "apple_01/studio/lighting_2/1.jpg", "apple_02/studio/lighting_2/1.jpg")
    put_all(tmp_path / "cute", *scenes)
    manifest = import_dataset("cute", tmp_path / "cute")
    assert manifest.column("identity") == ["cute/apple_01", "cute/apple_01", "cute/apple_02"]
    assert manifest.column("background") == ["in_the_wild", "studio/lighting_2", "studio/lighting_2"]
    assert manifest.column("category") == ["apple"] * 3
    put(tmp_path / "cute" / "pear" / "pear_1" / "x" / "1.jpg", png(1, kind="JPEG"))
    refuses(r"pear_1/x/1\.jpg.*depth=1", "cute", tmp_path / "cute")
    deep = import_dataset("cute", tmp_path / "cute" / "pear", options={"depth": "1"})
    assert (deep[0].identity, deep[0].background) == ("cute/pear_1", "x")
    refuses("how many of the 2 folders", "cute", tmp_path / "cute", options={"depth": "9"})


# NearID


def nearid(rows: int = 3, split: bool = True) -> datasets.Dataset:
    """Positives: row k has the id 10 + 3 k, views of color 10 k + view, the last row two views."""
    own = range(rows)
    columns: dict[str, list[Any]] = {"id": [10 + 3 * k for k in own], "category": ["mug"] * rows}
    columns["objaverse_id"] = [f"o{k}" for k in own]
    for view in (1, 2, 3):
        there = [view < 3 or k < rows - 1 for k in own]
        columns[f"images{view}"] = [png(10 * k + view) if there[k] else None for k in own]
        columns[f"masks{view}"] = [box(view / 10) if there[k] else None for k in own]
        columns[f"prompts{view}"] = [f"view {view} of {k}" if there[k] else None for k in own]
    if split:
        columns["split"] = [*["train"] * (rows - 1), "test"]
    return table(columns, tuple(f"{c}{v}" for c in ("images", "masks") for v in (1, 2, 3)))


def distractors(rows: int = 3, start: int = 100) -> datasets.Dataset:
    columns: dict[str, list[Any]] = {"id": [10 + 3 * k for k in range(rows)]}
    columns |= {f"nimg{v}": [png(start + 10 * k + v) for k in range(rows)] for v in (1, 2, 3)}
    return table(columns, ("nimg1", "nimg2", "nimg3"))


def check_nearid(manifest: Manifest) -> None:
    rows = by_id(manifest)
    assert len(manifest) == 8 + 8  # nine views less one; its distractor has no scene and is left out
    at, positive = rows["nearid/13/view2"]
    assert (positive.identity, positive.role, positive.category) == ("nearid/13", "real", "mug")
    assert (positive.text, positive.split) == ("view 2 of 1", "train")
    assert value_of(manifest, at) == 12
    assert float(manifest.mask(at).mean()) == pytest.approx(0.2)  # type: ignore[union-attr]
    at, other = rows["nearid/13/view2/Flux_1024"]
    assert (other.identity, other.role) == ("nearid/13/view2/Flux_1024", "distractor")
    assert (other.parent, other.background, other.engine) == ("nearid/13/view2", positive.background, "Flux_1024")
    assert value_of(manifest, at) == 112
    assert other.mask == positive.mask
    assert manifest.column("x_view").count(3) == 4
    assert "nearid/16/view3/Flux_1024" not in rows
    parameters = positive.parameters or {}
    assert (parameters["source"], parameters["row"], parameters["objaverse_id"]) == ("NearID", 1, "o1")


def test_nearid_from_parquet_and_shards_of_save_to_disk(tmp_path: Path) -> None:
    nearid().to_parquet(put(tmp_path / "NearID/data/train-00000-of-00001.parquet", b""))
    (tmp_path / "NearID-Flux_1024").mkdir()
    distractors().to_parquet(tmp_path / "NearID-Flux_1024" / "train.parquet")
    sources = [tmp_path / "NearID-Flux_1024", tmp_path / "NearID"]  # in any order
    manifest = import_dataset("nearid", sources, images=tmp_path / "images")
    check_nearid(manifest)
    assert len(list((tmp_path / "images").rglob("*.png"))) == 8 + 8 + 3  # equal masks are one file
    nearid().save_to_disk(tmp_path / "disk/NearID/train", num_shards=2)
    datasets.DatasetDict({"train": distractors()}).save_to_disk(tmp_path / "disk/NearID-Flux_1024")
    folder = tmp_path / "disk/NearID/train"
    shutil.copy(folder / "data-00000-of-00002.arrow", folder / "cache-1.arrow")  # as `map` writes: not listed
    check_nearid(import_dataset("nearid", [tmp_path / "disk/NearID", tmp_path / "disk/NearID-Flux_1024"]))  # bytes


def test_nearid_splits_by_row_positions(tmp_path: Path) -> None:
    nearid(split=False).save_to_disk(tmp_path / "NearID")
    splits = tmp_path / "NearID/splits"
    assert set(import_dataset("nearid", tmp_path / "NearID").column("split")) == {None}
    for name, positions in (("train", [2]), ("val", [0]), ("test", [1])):  # positions, not ids
        put(splits / f"{name}.json", json.dumps(positions).encode())
    manifest = import_dataset("nearid", tmp_path / "NearID")
    found = {row.identity: row.split for row in manifest}
    assert found == {"nearid/10": "val", "nearid/13": "test", "nearid/16": "train"}
    put(splits / "val.json", b"[3]")
    refuses(r"splits: its lists are not positions of 3 rows, each of one split", "nearid", tmp_path / "NearID")
    put(splits / "val.json", b"[1]")
    refuses(r"each of one split", "nearid", tmp_path / "NearID")


def test_nearid_names_distractors_without_their_positive(tmp_path: Path) -> None:
    nearid(2).save_to_disk(tmp_path / "NearID")
    distractors(4).save_to_disk(tmp_path / "NearID-SDXL")
    sources = [tmp_path / "NearID", tmp_path / "NearID-SDXL"]
    refuses(r"2 rows cannot be imported.*\n.*NearID-SDXL: row 3: no positive 'nearid/16'", "nearid", sources)
    assert len(import_dataset("nearid", sources, on_error="skip")) == 5 + 5  # one view has no positive
    alone = import_dataset("nearid", tmp_path / "NearID-SDXL")  # nothing to match
    assert (len(alone), alone[0].parent) == (12, "nearid/10/view1")


def test_nearid_sets_have_ids_all_or_none(tmp_path: Path) -> None:
    nearid().remove_columns("id").save_to_disk(tmp_path / "NearID")
    distractors().save_to_disk(tmp_path / "NearID-SDXL")
    distractors().remove_columns("id").save_to_disk(tmp_path / "NearID-Flux")
    for without in ("NearID", "NearID-Flux"):
        with pytest.raises(ManifestError, match=rf"{without} has no column 'id', but other sets have.*--map id=NAME"):
            import_dataset("nearid", [tmp_path / without, tmp_path / "NearID-SDXL"])
    nearid().map(lambda row: {"id": None if row["id"] == 13 else row["id"]}).save_to_disk(tmp_path / "holes")
    refuses("holes: row 2: column 'id' is empty", "nearid", tmp_path / "holes")


# Pairs and triplets


def test_mtg_has_parents_parts_and_oracles(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {}
    for view in (1, 2):
        columns[f"image_{view}_original"] = [png(view), png(10 + view)]
        columns[f"image_{view}_inpainted"] = [png(100 + view), png(110 + view)]
        columns[f"image_{view}_object_mask"] = [box(0.8), box(0.5)]
        columns[f"image_{view}_part_mask"] = [box(0.2 * view), box(0)]
    images = tuple(columns)
    made = table(columns | {"prompt": ["a mug", "a boot"]}, images)
    datasets.DatasetDict({"train": made, "test": made.select([0])}).save_to_disk(tmp_path / "mtg")
    manifest = import_dataset("mtg", tmp_path / "mtg", images=tmp_path / "images")
    rows = by_id(manifest)
    assert len(manifest) == 12
    at, edit = rows["mtg/train/00000/view2/edit"]
    _, original = rows["mtg/train/00000/view2"]
    assert (edit.role, edit.parent, edit.engine) == ("part-edit", original.id, "SDXL")
    assert edit.oracle == pytest.approx(1 - 4 / 8)
    assert edit.identity != original.identity == "mtg/train/00000"
    assert value_of(manifest, at) == 102
    assert float(manifest.mask(at, column="part_mask").mean()) == pytest.approx(0.4)  # type: ignore[union-attr]
    assert edit.mask == original.mask
    assert rows["mtg/train/00001/view1/edit"][1].oracle == 1  # no part: nothing was changed
    assert (original.parameters or {})["prompt"] == "a mug"
    assert {row.split for row in manifest} == {"train", "test"}


def test_the_oracle_is_the_share_of_the_object_that_is_left() -> None:
    thing, part = read_mask(box(0.8)), read_mask(box(0.3))
    slow = 1 - sum(v > 0 for v in part.flatten().tolist()) / sum(v > 0 for v in thing.flatten().tolist())
    assert oracle_score(thing, part) == pytest.approx(slow) == pytest.approx(0.625)


def test_part_edits_without_masks_or_with_faint_ones_have_the_oracle_of_nearids_code(tmp_path: Path) -> None:
    """Pixels above 0 count, a part larger than its object gives less than 0, and missing or empty masks give 0."""
    faint = Image.new("L", (10, 10))
    faint.paste(1, (0, 0, 4, 10))
    objects = [box(0.8), box(0.2), box(0), box(0.5), None]
    parts = [encoded(faint), box(0.8), box(0.5), None, box(0.5)]
    columns: dict[str, list[Any]] = {}
    for view in (1, 2):
        columns[f"image_{view}_original"] = [png(20 * view + k) for k in range(5)]
        columns[f"image_{view}_inpainted"] = [png(100 + 20 * view + k) for k in range(5)]
        columns[f"image_{view}_object_mask"] = objects
        columns[f"image_{view}_part_mask"] = parts
    table(columns, tuple(columns)).save_to_disk(tmp_path / "mtg")

    manifest = import_dataset("mtg", tmp_path / "mtg", images=tmp_path / "images")
    oracles = [row.oracle for row in manifest if row.role == "part-edit"][::2]
    assert oracles == pytest.approx([1 - 4 / 8, 1 - 8 / 2, 0, 0, 0])


def write_nights(root: Path, header: str, rows: list[str]) -> None:
    for k in range(len(rows)):
        put(root / f"ref/000/{k:03d}.png", png(k))
        for side in (0, 1):
            put(root / f"distort/000/{k:03d}_{side}.png", png(100 + 10 * k + side))
    put(root / "data.csv", "\n".join([header, *rows, ""]).encode())


def test_nights_votes_become_labels_of_left_and_right(tmp_path: Path) -> None:
    path = "ref/000/{0}.png,distort/000/{0}_0.png,distort/000/{0}_1.png"
    rows = [
        f"0,0,1,6,{path.format('000')},An image of a cat,True,train",
        f"1,1,0,5,{path.format('001')},An image of a dog,False,train",
        f'2,1,0,10,{path.format("002")},"An image of a car, red",False,test',
    ]
    header = "id,left_vote,right_vote,votes,ref_path,left_path,right_path,prompt,is_imagenet,split"
    write_nights(tmp_path / "nights", header, rows)
    manifest = import_dataset("nights", tmp_path / "nights")
    assert manifest.column("slot") == ["anchor", "left", "right"] * 2  # five votes are too few
    assert manifest.column("label") == [None, 0, 1, None, 1, 0]
    assert manifest.column("group") == ["nights/0"] * 3 + ["nights/2"] * 3
    assert manifest.column("identity") == [None] * 6
    assert manifest.column("split") == ["train"] * 3 + ["test"] * 3
    assert manifest.column("x_imagenet") == ["true"] * 3 + ["false"] * 3
    assert manifest[4].text == "An image of a car, red"
    assert [value_of(manifest, k) for k in range(3)] == [0, 100, 101]


def test_subjects2k(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "reference_image": [png(1), png(2)], "test_image": [png(11), png(12)], "pair_id": ["000028", "000088"],
        "human_votes": [[1, 1, 1], [1, 0, 0]], "human_agreement": [1.0, 1 / 3], "binary_label": [1, 0],
        "gpt_score": [3, 5],
    }  # fmt: skip
    table(columns, ("reference_image", "test_image")).to_parquet(tmp_path / "test-00000-of-00001.parquet")
    manifest = import_dataset("subjects2k", tmp_path, images=tmp_path / "images")
    assert manifest.column("slot") == ["anchor", "candidate"] * 2
    assert manifest.column("label") == [None, 1, None, 0]
    one, two, three, four = manifest.column("identity")
    assert one == two == "subjects2k/000028"
    assert three == "subjects2k/000088" != four
    assert manifest.column("group") == ["subjects2k/000028"] * 2 + ["subjects2k/000088"] * 2
    assert [value_of(manifest, k) for k in range(4)] == [1, 11, 2, 12]
    assert (manifest[3].parameters or {})["human_votes"] == [1, 0, 0]
    assert manifest[3].split == "test"


# Evaluation sets


def test_pods_parts_are_not_splits(tmp_path: Path) -> None:
    labels = ["mug_1", "shoe_2"]
    for part, value in (("train", 0), ("test_dense", 50)):
        columns: dict[str, list[Any]] = {
            "image": [png(value + 1), png(value + 2)], "mask": [box(0.3), box(0.4)], "label": labels,
            "scene_type": ["pose", "distractors"],
        }  # fmt: skip
        made = table(columns, ("image", "mask"))
        made.to_parquet(put(tmp_path / "pods" / "data" / f"{part}-00000-of-00001.parquet", b""))
    info = {"class_to_sc": {"mug_1": "mug"}, "class_to_split": {"mug_1": "val", "shoe_2": "test"}}
    put(tmp_path / "pods" / "pods_info.json", json.dumps(info).encode())
    manifest = import_dataset("pods", tmp_path / "pods", images=tmp_path / "images")
    assert manifest.column("x_part") == ["test_dense"] * 2 + ["train"] * 2
    assert manifest.column("identity") == ["pods/mug_1", "pods/shoe_2"] * 2
    assert manifest.column("split") == ["val", "test"] * 2
    assert manifest.column("category") == ["mug", None] * 2
    assert not leaks(manifest)
    assert (manifest[0].parameters or {})["scene_type"] == "pose"
    assert value_of(manifest, 0) == 51
    assert float(manifest.mask(3).mean()) == pytest.approx(0.4)  # type: ignore[union-attr]


def test_class_labels_are_names(tmp_path: Path) -> None:
    made = table({"image": [png(1), png(2)], "label": [1, 0]}, ("image",))
    made = made.cast_column("label", datasets.ClassLabel(names=["shoe", "mug"]))
    made.to_parquet(put(tmp_path / "p" / "train.parquet", b""))
    made.save_to_disk(tmp_path / "a")
    for source in (tmp_path / "p", tmp_path / "a"):
        assert import_dataset("pods", source).column("identity") == ["pods/mug", "pods/shoe"]


def make_dreambench(root: Path) -> None:
    for category, number, subject in (("object", "00", "Motorcycle"), ("animal", "03", "Magic cube")):
        put(root / "images" / category / f"{number}.jpg", png(1, kind="JPEG"))
        lines = [subject, *(f"prompt {k}" for k in range(9))]
        put(root / "captions" / category / f"{number}.txt", "\n".join(lines).encode())


def test_dreambench_references_samples_and_ratings(tmp_path: Path) -> None:
    make_dreambench(tmp_path / "data")
    run = tmp_path / "samples" / "emu2_seed42" / "tgt_image"
    put_all(run, "object_00_motorcycle/4_0.jpg", "object_00_motorcycle/4_1.jpg")
    put_all(run, "live_subject_animal_03_rubik's_cube/0_0.jpg")  # another name, the same number
    for rater, value in (("group1", 3), ("group2", 2)):
        ratings = {"object_00_motorcycle-4": value, "live_subject_animal_03_magic_cube-0": value + 1}
        put(tmp_path / "ratings" / rater / "emu2-cp.json", json.dumps(ratings).encode())
        put(tmp_path / "ratings" / rater / "emu2-pf.json", b'{"object_00_motorcycle-4": 0}')
    put(tmp_path / "ratings" / "gpt" / "emu2.json", b'{"object_00_motorcycle-4": 4}')
    options = {"samples": str(tmp_path / "samples"), "ratings": str(tmp_path / "ratings")}
    manifest = import_dataset("dreambench_pp", tmp_path / "data", options=options)
    rows = by_id(manifest)
    _, reference = rows["dreambench_pp/object_00"]
    assert (reference.domain, reference.category) == ("object", "Motorcycle")
    assert (reference.parameters or {})["prompts"][4] == "prompt 4"
    _, candidate = rows["dreambench_pp/object_00/emu2_seed42/4_0/candidate"]
    assert (candidate.label, candidate.text, candidate.parent) == (2.5, "prompt 4", reference.id)
    assert (candidate.parameters or {})["ratings"] == {"group1": 3, "group2": 2, "gpt": 4}
    assert candidate.engine == "emu2_seed42"
    assert candidate.identity is None
    _, anchor = rows["dreambench_pp/object_00/emu2_seed42/4_0/anchor"]
    assert (anchor.path, anchor.group, anchor.identity) == (reference.path, candidate.group, reference.identity)
    assert rows["dreambench_pp/object_00/emu2_seed42/4_1/candidate"][1].label is None  # ratings are of the first image
    assert rows["dreambench_pp/live_subject_animal_03/emu2_seed42/0_0/candidate"][1].label == 3.5
    assert len(import_dataset("dreambench_pp", tmp_path / "data")) == 2


def test_dreambench_errors_name_the_file(tmp_path: Path) -> None:
    make_dreambench(tmp_path / "data")
    put(tmp_path / "samples" / "m" / "tgt_image" / "object_77_x" / "0_0.jpg", png(1))
    with pytest.raises(ManifestError, match=r"object_77_x.*no reference"):
        import_dataset("dreambench_pp", tmp_path / "data", options={"samples": str(tmp_path / "samples")})
    put(tmp_path / "ratings" / "group1" / "m-cp.json", b'{"object_00_motorcycle-0": "good"}')
    with pytest.raises(ManifestError, match=r"m-cp\.json: 'object_00_motorcycle-0': 'good' is not a rating"):
        import_dataset("dreambench_pp", tmp_path / "data", options={"ratings": str(tmp_path / "ratings")})
    refuses("no folder images/", "dreambench_pp", tmp_path)


# MVEB


def test_mveb_queries_targets_and_negatives(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "qry": ["Find the same car.", "Find the same car."], "qry_image_path": [png(1), png(2)],
        "pos_text": ["Represent the image."] * 2, "pos_image_path": [png(11), png(12)],
        "neg_image_path": [png(21), png(1)],
    }  # fmt: skip
    made = table(columns, ("qry_image_path", "pos_image_path", "neg_image_path"))
    made.to_parquet(put(tmp_path / "MVEB" / "sample" / "Cars196.parquet", b""))
    manifest = import_dataset("mveb", tmp_path / "MVEB", images=tmp_path / "images")
    assert manifest.column("slot") == ["query", "positive", "negative"] * 2
    assert manifest.column("dataset") == ["mveb/Cars196"] * 6
    assert manifest.column("group") == ["mveb/Cars196/all/000000"] * 3 + ["mveb/Cars196/all/000001"] * 3
    assert manifest.column("identity") == [None] * 6
    assert manifest[0].text == "Find the same car."
    assert manifest[1].text == "Represent the image."
    assert [value_of(manifest, k) for k in range(6)] == [1, 11, 21, 2, 12, 1]
    assert manifest[5].path == manifest[0].path  # equal images are one file
    assert len(list((tmp_path / "images").rglob("*.png"))) == 5


def test_mveb_candidates_are_ranked_and_the_first_is_right(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pics", 4)
    columns = {
        "qry_inst": ["Find it:"], "qry_text": ["in red"], "qry_img_path": ["pics/0.png"],
        "tgt_text": [["a", "b", "c"]], "tgt_img_path": [["pics/1.png", "pics/2.png", "pics/3.png"]], "label": [7],
    }  # fmt: skip
    write_table(columns, tmp_path / "IDMR.parquet")
    manifest = import_dataset("mveb", tmp_path / "IDMR.parquet")
    assert manifest.column("slot") == ["query"] + ["candidate"] * 3
    assert manifest.column("label") == [None, 1, 0, 0]
    assert manifest.column("text") == ["Find it: in red", "a", "b", "c"]
    assert [value_of(manifest, k) for k in range(4)] == [0, 1, 2, 3]
    assert manifest.column("identity") == [None] * 4  # `label` may be anything beside queries


# Any table


def write_table(columns: dict[str, list[Any]], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = datasets.Dataset.from_dict(columns)
    {".parquet": made.to_parquet, ".csv": made.to_csv, ".jsonl": made.to_json}[path.suffix](path)
    return path


def write_pictures(folder: Path, count: int) -> None:
    """Images 0.png, 1.png, ... of different colors."""
    for k in range(count):
        put(folder / f"{k}.png", png(k))


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_any_table_with_named_columns(tmp_path: Path, ending: str) -> None:
    write_pictures(tmp_path / "pics", 2)
    columns = {"photo": ["pics/0.png", "pics/1.png"], "who": ["ann", "bob"], "label": ["x", "y"], "seed": [3, 4]}
    path = write_table(columns, tmp_path / f"things{ending}")
    manifest = import_dataset("table", path, columns={"path": "photo", "identity": "who"})
    assert manifest.column("identity") == ["things/ann", "things/bob"]
    assert manifest.column("dataset") == ["things"] * 2
    assert manifest.column("seed") == [3, 4]
    assert [value_of(manifest, k) for k in range(2)] == [0, 1]
    assert (manifest[1].parameters or {})["label"] == "y"  # a name is no number: kept aside
    refuses(r"no column 'path'; there are photo, who", "table", path)
    refuses(r"no column 'identity'; there are .*--map identity=NAME", "table", path, columns={"path": "photo"})
    refuses("no column 'nobody'", "table", path, columns={"path": "photo", "identity": "nobody"})
    refuses("--map color", "table", path, columns={"path": "photo", "identity": "who", "color": "label"})
    with pytest.raises(ManifestError, match="row 1, column 'oracle': 'x' is not a number"):
        import_dataset("table", path, columns={"path": "photo", "identity": "who", "oracle": "label"})


# What all share


def test_rows_without_an_image_stop_with_the_list_or_are_left_out(tmp_path: Path) -> None:
    made = table({"image": [png(1), None, png(3), None], "label": ["a", "b", None, "d"]}, ("image",))
    made.to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ManifestError) as caught:
        import_dataset("pods", tmp_path)
    assert "3 rows cannot be imported" in str(caught.value)
    assert "row 2 of train: no image" in str(caught.value)
    assert "row 3 of train: no label" in str(caught.value)
    assert "--on-error skip" in str(caught.value)
    assert len(import_dataset("pods", tmp_path, on_error="skip")) == 1


def test_a_stopped_import_writes_only_what_is_missing(tmp_path: Path) -> None:
    nearid().save_to_disk(tmp_path / "NearID")
    dry = ImportJob("nearid", [tmp_path / "NearID"], images=tmp_path / "images", dry=True, limit=2)
    assert len(dry.run()) == 6  # of two rows
    assert not (tmp_path / "images").exists()
    first = import_dataset("nearid", tmp_path / "NearID", images=tmp_path / "images")
    files = sorted((tmp_path / "images").rglob("*.png"))
    times = [file.stat().st_mtime_ns for file in files]
    files[3].unlink()
    again = ImportJob("nearid", [tmp_path / "NearID"], images=tmp_path / "images")
    assert list(again.run()) == list(first)
    assert sorted(again.written) == files
    changed = [file for file, time in zip(files, times, strict=True) if file.stat().st_mtime_ns != time]
    assert changed == [files[3]]
    assert value_of(first, 1) == 2


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    refuses("unknown importer 'x'; there are folder, ", "x", tmp_path)
    refuses(r"folder: it takes one source.*--name.*merge", "folder", [tmp_path, tmp_path])
    refuses("unknown option 'depth' of nearid; there are none", "nearid", tmp_path, options={"depth": "1"})
    refuses(r"no \.parquet, .*unpack archives", "nearid", tmp_path)
    refuses("which has no revision", "nearid", tmp_path, revision="main")
    refuses("no such file or folder, and not the name of a Hub dataset", "nearid", tmp_path / "none")
    put(tmp_path / "x.parquet", b"PAR1 no")
    refuses(r"x\.parquet: not readable", "nearid", tmp_path)


def write_garments(root: Path) -> None:
    """Photos of DeepFashion2 with no, one and two garments that have a counterpart."""
    square, triangle = [2, 1, 6, 1, 6, 4, 2, 4], [0, 0, 3, 0, 0, 3]
    photos: dict[str, list[tuple[int, list[list[float]]]]] = {
        "train/1": [(1, [square])], "train/2": [(1, [square, triangle])], "train/3": [(0, [square])],
        "train/4": [(1, [square]), (2, [triangle])], "validation/1": [(3, [triangle])],
    }  # fmt: skip
    for name, items in photos.items():
        split, stem = name.split("/")
        about: dict[str, Any] = {"source": "shop", "pair_id": 7 if split == "train" else 8}
        for number, (style, polygons) in enumerate(items, 1):
            about[f"item{number}"] = {"style": style, "category_name": "skirt", "segmentation": polygons, "scale": 2}
        put(root / split / "annos" / f"00000{stem}.json", json.dumps(about).encode())
        put(root / split / "image" / f"00000{stem}.jpg", png(int(stem), (9, 7), "JPEG"))


def test_deepfashion2_has_masks_of_its_polygons(tmp_path: Path) -> None:
    write_garments(tmp_path)
    manifest = import_dataset("deepfashion2", tmp_path, name="DeepFashion2")
    assert manifest.column("identity") == ["DeepFashion2/7_1", "DeepFashion2/7_1", "DeepFashion2/8_3"]
    assert manifest.column("split") == ["train", "train", "val"]
    assert set(manifest.column("category")) == {"skirt"}
    assert (manifest[0].parameters or {})["source"] == "shop"
    mask = manifest.mask(1)
    assert mask is not None
    down, across = np.mgrid[:7, :9]  # pixels whose centers a polygon covers, as COCO draws them
    square = (across >= 2) & (across < 6) & (down >= 1) & (down < 4)
    triangle = (across + 0.5) + (down + 0.5) < 3
    assert (mask.numpy() > 0.5).tolist() == (square | triangle).tolist()
    assert not faults(manifest)


def test_damaged_garments_are_named(tmp_path: Path) -> None:
    write_garments(tmp_path)
    about = json.loads((tmp_path / "train/annos/000001.json").read_text())
    for polygons, message in (("abc", ""), ([[1, 2, 3]], ""), ([[12, 8, 15, 8, 15, 10]], "cover none of the 9x7")):
        about["item1"]["segmentation"] = polygons
        put(tmp_path / "train/annos/000001.json", json.dumps(about).encode())
        refuses(f"000001.json, item1: .*{message}", "deepfashion2", tmp_path)
        assert len(import_dataset("deepfashion2", tmp_path, on_error="skip")) == 2
    put(tmp_path / "train/annos/000001.json", b"{}")
    refuses("no pair_id", "deepfashion2", tmp_path)
    refuses("no annos", "deepfashion2", tmp_path / "train" / "image")


def write_animals(root: Path, *more: str) -> None:
    """A table of the wildlife-datasets toolkit: two sets with equal names, a box, a photo of an unknown animal."""
    photo = Image.fromarray(np.arange(8 * 6 * 3, dtype=np.uint8).reshape(6, 8, 3))
    for name in ("images/cats/1.png", "images/cats/2.png", "dogs/1.png"):
        put(root / name, encoded(photo))
    lines = (
        "identity,path,date,orientation,species,split,dataset,bbox,note",
        'Cats_7,images/cats/1.png,2020-01-02,left,cat,train,Cats,"[1.2, 2, 3, 2]",tame',
        'Cats_7,images/cats/2.png,2021-05-06,,cat,test,Cats,"[-2, 3, 5, 99]",',
        "7,dogs/1.png,,,dog,test,Dogs,,",
        "unknown,dogs/1.png,,,dog,test,Dogs,,",
        ",dogs/1.png,,,dog,query,Dogs,,",
        *more,
    )
    put(root / "metadata.csv", "\n".join(lines).encode())
    put(root / "other.csv", b"a,b\n1,2\n")  # not read


def test_wildlife_cuts_boxes_out_and_keeps_dates(tmp_path: Path) -> None:
    write_animals(tmp_path / "data")
    manifest = import_dataset("wildlife", tmp_path / "data", images=tmp_path / "cut")
    assert manifest.column("identity") == ["wildlife/Cats_7"] * 2 + ["wildlife/Dogs_7", None, None]
    assert manifest.column("dataset") == ["Cats", "Cats", "Dogs", "Dogs", "Dogs"]
    assert manifest.column("split") == ["train", "test", "test", "test", "query"]
    assert manifest.column("category") == ["cat", "cat", "dog", "dog", "dog"]
    assert manifest.column("x_date") == ["2020-01-02", "2021-05-06", None, None, None]
    assert manifest.column("x_orientation") == ["left", None, None, None, None]
    assert (manifest[0].parameters or {})["note"] == "tame"
    whole = np.asarray(read_image(tmp_path / "data/dogs/1.png"))
    for row, part in enumerate((whole[2:4, 1:4], whole[3:6, 0:3], whole)):
        assert np.array_equal(np.asarray(manifest.image(row)), part)
    assert not faults(manifest)
    manifest.write(tmp_path / "animals.csv")
    assert read(tmp_path / "animals.csv").column("x_date")[0] == "2020-01-02"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('A_1,dogs/1.png,,,dog,test,Dogs,"[1, 2, 3]",', r"row 6: bbox \[1, 2, 3\] is not \[x, y, width, height\]"),
        ("A_1,dogs/1.png,,,dog,test,Dogs,left,", "row 6: bbox left"),
        ('A_1,dogs/1.png,,,dog,test,Dogs,"[9, 2, 3, 3]",', "row 6: .* covers none of the 8x6 pixels of .*1.png"),
        ('A_1,absent.png,,,dog,test,Dogs,"[1, 2, 3, 3]",', "row 6: .*absent.png"),
        ("A_1,,,,dog,test,Dogs,,", "row 6: no path"),
    ],
)
def test_damaged_rows_of_wildlife_are_named(tmp_path: Path, line: str, message: str) -> None:
    write_animals(tmp_path, line)
    refuses(message, "wildlife", tmp_path)
    assert len(import_dataset("wildlife", tmp_path, on_error="skip")) == 5


def test_a_folder_without_wildlifes_table_is_not_looked_up_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "animals").mkdir()
    monkeypatch.chdir(tmp_path)
    refuses("animals/metadata.csv: no such file", "wildlife", "animals")


def test_splits_come_from_names_of_files(tmp_path: Path) -> None:
    names = {
        "data/train-00000-of-00002.parquet": "train", "data/train-00001-of-00002.parquet": "train",
        "data/test_dense-00000-of-00001-0a1b2c3d.parquet": "test_dense",
        "default/validation/0000.parquet": "validation",
        "sample/Cars196.parquet": None, "test.parquet": "test",
    }  # fmt: skip
    for name in names:
        write_table({"a": [1]}, tmp_path / name)
    found = {s.path.relative_to(tmp_path).as_posix(): s.split for s in open_source(tmp_path).shards}
    assert found == names
    only = open_source(tmp_path, files="data/train-*")
    assert [s.split for s in only.shards] == ["train", "train"]
    with pytest.raises(ManifestError, match=r"that matches 'none\*'"):
        open_source(tmp_path, files="none*")


# The Hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the dataset owner/set on a server that the Hub's client asks."""
    from huggingface_hub import constants

    served = tmp_path / "served"
    with HubServer({"owner/set": served}) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield served


def test_a_dataset_of_the_hub_is_downloaded_and_its_commit_recorded(hub: Path, tmp_path: Path) -> None:
    nearid().save_to_disk(hub / "train", num_shards=2)  # as NearID-PowerPaint is stored
    put(hub / "README.md", b"---\ndataset_info: broken: [\n---\n")
    source = open_source("owner/set")
    assert source.revision == COMMIT
    assert source.count == 3
    manifest = import_dataset("nearid", "owner/set", images=tmp_path / "images", revision="main")
    assert len(manifest) == 8
    assert (manifest[0].parameters or {})["source"] == f"owner/set@{COMMIT}"
    assert not list((tmp_path / "cache").rglob("README.md"))


@pytest.mark.parametrize("kind", ["table", "pods", "mtg"])
def test_tables_of_the_hub_name_no_files_outside(hub: Path, kind: str) -> None:
    columns: dict[str, list[Any]] = {"image": ["../../secret.png"], "identity": ["a"], "label": ["a"]}
    for view in (1, 2):
        parts = ("original", "inpainted", "object_mask", "part_mask")
        columns |= {f"image_{view}_{part}": ["../../secret.png"] for part in parts}
    write_table(columns, hub / "train.parquet")
    refuses(r"owner/set: '\.\./\.\./secret\.png' is outside the dataset's folder", kind, "owner/set")


def test_paths_that_lead_out_of_a_dataset_are_told_on_every_system(tmp_path: Path) -> None:
    online, local = Source("owner/set", tmp_path, (), COMMIT), Source("set", tmp_path, ())
    outside = ("/etc/hostname", "..", "a/../../b.png", "\\\\server\\share\\a.png", "//server/share/a", "C:\\a", "..\\a")
    for path in outside:
        with pytest.raises(ManifestError, match="is outside the dataset's folder"):
            online.locate(path)
        path_of_any_system = path if path.startswith("\\\\") or ":" in path else path.replace("\\", "/")
        assert local.locate(path) == tmp_path / path_of_any_system  # the user's own table
    for path in ("a.png", "./a.png", "a/../b.png", "a/b..png"):
        assert online.locate(path) == tmp_path / path


def test_a_dry_run_says_what_it_would_download(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from idmetric.cli.data import main

    put(hub / "data" / "train.parquet", bytes(3_000_000))
    put(hub / "data" / "test.parquet", bytes(20_000_000))
    put(hub / "video.mp4", b"x")
    arguments = ["import", "nearid", "owner/set", "-o", str(tmp_path / "m.csv"), "--dry-run"]
    assert main(arguments) == 0
    assert f"would download 2 files of owner/set@{COMMIT}, 0.02 GB" in capsys.readouterr().out
    assert main([*arguments, "--files", "data/train*"]) == 0
    assert "would download 1 files" in capsys.readouterr().out
    assert not list(tmp_path.glob("m*"))
    assert not list((tmp_path / "cache").rglob("*.parquet"))
