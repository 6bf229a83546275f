"""Importers of published sets, on small files in their published layouts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from idmetric.data.check import faults
from idmetric.data.importers.run import ImportJob, import_dataset
from idmetric.data.importers.sets import oracle_score
from idmetric.data.manifest import ManifestError, read, write
from idmetric.data.split import leaks
from idmetric.metric.images import read_image
from idmetric.metric.masks import read_mask
from tests.import_parts import (
    box,
    by_id,
    column,
    encoded,
    hub_table,
    png,
    put,
    put_all,
    put_json,
    refuses,
    value_of,
)


def share_of(mask: str) -> float:
    return float(read_mask(mask).mean())


# SynCD and CUTE


def syncd(root: Path, records: list[dict[str, Any]]) -> Path:
    """SynCD's published folder: images of one color, which encodes their number, and JPEG masks of half their width."""
    for number, record in enumerate(records):
        for view, file in enumerate(record["filenames"]):
            put(root / file, png(10 * number + view, (8, 6)))
            gray = np.zeros((6, 8), np.uint8)
            gray[:, :4] = 90  # a rendering of the object: never white
            mask = Image.fromarray(gray).resize((16, 12))
            put((root / file).parent / "masks" / f"{Path(file).stem}.jpg", encoded(mask, "JPEG"))
    put_json(root / "metadata.json", records)
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
    table = import_dataset("syncd", root, images=tmp_path / "images")
    assert column(table, "identity") == ["syncd/7"] * 3 + ["syncd/3"] * 2
    assert [*map(value_of, table["path"])] == [0, 1, 2, 10, 11]
    assert column(table, "x_partition") == ["rigid"] * 3 + ["deformable"] * 2
    assert column(table, "category") == ["a mug 7"] * 3 + [None] * 2
    assert column(table, "text")[1:4] == ["a mug 7 in scene 1", "a mug 7 in scene 2", "a mug 3 in scene 0"]
    assert json.loads(table["parameters"][0]) == {"file": "7/0.png", "objaverse_id": "id7"}
    assert json.loads(table["parameters"][3]) == {"file": "3/0.png"}
    for mask in table["mask"]:
        pixels = np.asarray(Image.open(mask))
        assert (pixels[:, :4] == 255).all()
        assert set(np.unique(pixels)) == {0, 255}
    assert not faults(table)
    assert len(import_dataset("syncd", root, images=tmp_path / "images", limit=1)) == 3


def test_syncd_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuses("metadata.json", "syncd", tmp_path / "empty")
    wrong: list[tuple[Any, str]] = [
        ([{"prompts": []}], "'filenames'"),
        ([syncd_record(0, filenames="abc", prompts=["a"])], "'prompts'"),
        ([syncd_record(0, filenames=["../x.png", "0/1.png"])], "outside the dataset's folder"),
    ]
    for number, (records, message) in enumerate(wrong):
        put_json(tmp_path / str(number) / "metadata.json", records)
        refuses(message, "syncd", tmp_path / str(number))
    root = syncd(tmp_path / "part", [syncd_record(0), syncd_record(1)])
    (root / "1" / "2.png").unlink()
    refuses("1/2.png", "syncd", root, images=tmp_path / "images")
    assert len(import_dataset("syncd", root, images=tmp_path / "images", on_error="skip")) == 3


def test_cute_finds_objects_above_their_scenes(tmp_path: Path) -> None:
    scenes = ("apple_01/in_the_wild/1.jpg", "apple_01/studio/lighting_2/1.jpg", "apple_02/studio/lighting_2/1.jpg")
    put_all(tmp_path / "cute", *scenes)
    table = import_dataset("cute", tmp_path / "cute")
    assert column(table, "identity") == ["cute/apple_01", "cute/apple_01", "cute/apple_02"]
    assert column(table, "background") == ["in_the_wild", "studio/lighting_2", "studio/lighting_2"]
    assert column(table, "category") == ["apple"] * 3
    put(tmp_path / "cute" / "pear" / "pear_1" / "x" / "1.jpg", png(1, kind="JPEG"))
    refuses(r"pear_1/x/1\.jpg.*depth=1", "cute", tmp_path / "cute")
    deep = import_dataset("cute", tmp_path / "cute" / "pear", options={"depth": "1"})
    assert (deep["identity"][0], deep["background"][0]) == ("cute/pear_1", "x")
    refuses("--option depth", "cute", tmp_path / "cute", options={"depth": "9"})


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
    return hub_table(columns, tuple(f"{name}{view}" for name in ("images", "masks") for view in (1, 2, 3)))


def distractors(rows: int = 3, start: int = 100) -> datasets.Dataset:
    columns: dict[str, list[Any]] = {"id": [10 + 3 * k for k in range(rows)]}
    columns |= {f"nimg{v}": [png(start + 10 * k + v) for k in range(rows)] for v in (1, 2, 3)}
    return hub_table(columns, ("nimg1", "nimg2", "nimg3"))


def check_nearid(table: pd.DataFrame) -> None:
    rows = by_id(table)
    assert len(table) == 8 + 8  # nine views less one; its distractor has no scene and is left out
    positive = rows["nearid/13/view2"]
    assert (positive.identity, positive.role, positive.category) == ("nearid/13", "real", "mug")
    assert (positive.text, positive.split) == ("view 2 of 1", "train")
    assert value_of(positive.path) == 12
    assert share_of(positive.mask) == pytest.approx(0.2)
    other = rows["nearid/13/view2/Flux_1024"]
    assert (other.identity, other.role) == ("nearid/13/view2/Flux_1024", "distractor")
    assert (other.parent, other.background, other.engine) == ("nearid/13/view2", positive.background, "Flux_1024")
    assert value_of(other.path) == 112
    assert other.mask == positive.mask
    assert column(table, "x_view").count(3) == 4
    assert "nearid/16/view3/Flux_1024" not in rows
    origin = positive.parameters
    assert (origin["source"], origin["row"], origin["objaverse_id"]) == ("NearID", 1, "o1")


def test_nearid_from_parquet_and_shards_of_save_to_disk(tmp_path: Path) -> None:
    nearid().to_parquet(put(tmp_path / "NearID/data/train-00000-of-00001.parquet", b""))
    (tmp_path / "NearID-Flux_1024").mkdir()
    distractors().to_parquet(tmp_path / "NearID-Flux_1024" / "train.parquet")
    sources = [tmp_path / "NearID-Flux_1024", tmp_path / "NearID"]  # in any order
    with pytest.warns(UserWarning, match="NearID-Flux_1024: distractors of views without a positive"):
        check_nearid(import_dataset("nearid", sources, images=tmp_path / "images"))
    assert len(list((tmp_path / "images").rglob("*.png"))) == 8 + 8 + 3  # equal masks are one file
    nearid().save_to_disk(tmp_path / "disk/NearID/train", num_shards=2)
    datasets.DatasetDict({"train": distractors()}).save_to_disk(tmp_path / "disk/NearID-Flux_1024")
    folder = tmp_path / "disk/NearID/train"
    shutil.copy(folder / "data-00000-of-00002.arrow", folder / "cache-1.arrow")  # as `map` writes: not listed
    sources = [tmp_path / "disk/NearID", tmp_path / "disk/NearID-Flux_1024"]
    check_nearid(import_dataset("nearid", sources, images=tmp_path / "images"))
    refuses("images=FOLDER", "nearid", sources)


def test_nearid_splits_by_row_positions(tmp_path: Path) -> None:
    nearid(split=False).save_to_disk(tmp_path / "NearID")
    splits, images = tmp_path / "NearID/splits", tmp_path / "images"
    assert set(import_dataset("nearid", tmp_path / "NearID", images=images)["split"]) == {None}
    for name, positions in (("train", [2]), ("val", [0]), ("test", [1])):  # positions, not ids
        put_json(splits / f"{name}.json", positions)
    table = import_dataset("nearid", tmp_path / "NearID", images=images)
    assert dict(zip(table["identity"], table["split"], strict=True)) == {
        "nearid/10": "val", "nearid/13": "test", "nearid/16": "train",
    }  # fmt: skip
    for wrong in ([3], [1]):
        put_json(splits / "val.json", wrong)
        refuses("splits: .* 3 rows", "nearid", tmp_path / "NearID", images=images)


def test_nearid_names_distractors_without_their_positive(tmp_path: Path) -> None:
    nearid(2).save_to_disk(tmp_path / "NearID")
    distractors(4).save_to_disk(tmp_path / "NearID-SDXL")
    sources, images = [tmp_path / "NearID", tmp_path / "NearID-SDXL"], tmp_path / "images"
    refuses(r"2 rows cannot be imported.*\n.*NearID-SDXL: row 3: .*'nearid/16'", "nearid", sources, images=images)
    kept = import_dataset("nearid", sources, images=images, on_error="skip")
    assert len(kept) == 5 + 5  # one view has no positive
    alone = import_dataset("nearid", tmp_path / "NearID-SDXL", images=images)  # nothing to match
    assert (len(alone), alone["parent"][0]) == (12, "nearid/10/view1")


def test_nearid_sets_have_ids_all_or_none(tmp_path: Path) -> None:
    nearid().remove_columns("id").save_to_disk(tmp_path / "NearID")
    distractors().save_to_disk(tmp_path / "NearID-SDXL")
    refuses(r"NearID has no column 'id'.*--map id=NAME", "nearid", [tmp_path / "NearID", tmp_path / "NearID-SDXL"])
    nearid().map(lambda row: {"id": None if row["id"] == 13 else row["id"]}).save_to_disk(tmp_path / "holes")
    refuses("holes: row 2: column 'id'", "nearid", tmp_path / "holes", images=tmp_path / "images")


# Pairs and triplets


def test_mtg_has_parents_parts_and_oracles(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {}
    for view in (1, 2):
        columns[f"image_{view}_original"] = [png(view), png(10 + view)]
        columns[f"image_{view}_inpainted"] = [png(100 + view), png(110 + view)]
        columns[f"image_{view}_object_mask"] = [box(0.8), box(0.5)]
        columns[f"image_{view}_part_mask"] = [box(0.2 * view), box(0)]
    made = hub_table(columns | {"prompt": ["a mug", "a boot"]}, tuple(columns))
    datasets.DatasetDict({"train": made, "test": made.select([0])}).save_to_disk(tmp_path / "mtg")
    table = import_dataset("mtg", tmp_path / "mtg", images=tmp_path / "images")
    rows = by_id(table)
    assert len(table) == 12
    edit, original = rows["mtg/train/00000/view2/edit"], rows["mtg/train/00000/view2"]
    assert (edit.role, edit.parent, edit.engine) == ("part-edit", original.id, "SDXL")
    assert edit.oracle == pytest.approx(1 - 4 / 8)
    assert edit.identity != original.identity == "mtg/train/00000"
    assert value_of(edit.path) == 102
    assert share_of(edit.part_mask) == pytest.approx(0.4)
    assert edit.mask == original.mask
    assert rows["mtg/train/00001/view1/edit"].oracle == 1  # no part: nothing was changed
    assert original.parameters["prompt"] == "a mug"
    assert set(table["split"]) == {"train", "test"}


def test_oracles_of_part_edits_are_those_of_nearids_code(tmp_path: Path) -> None:
    """Pixels above 0 count, a part larger than its object gives less than 0, and missing or empty masks give 0."""
    thing, part = (put(tmp_path / name, box(share)) for name, share in (("a.png", 0.8), ("b.png", 0.3)))
    areas = [sum(value > 0 for value in read_mask(mask).flatten().tolist()) for mask in (thing, part)]
    assert oracle_score(thing, part) == pytest.approx(1 - areas[1] / areas[0]) == pytest.approx(0.625)
    assert oracle_score(thing, put(tmp_path / "c.png", b"damaged")) is None

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
    hub_table(columns, tuple(columns)).save_to_disk(tmp_path / "mtg")
    table = import_dataset("mtg", tmp_path / "mtg", images=tmp_path / "images")
    oracles = table["oracle"][table["role"] == "part-edit"].tolist()[::2]
    assert oracles == pytest.approx([1 - 4 / 8, 1 - 8 / 2, 0, 0, 0])


def test_nights_votes_become_labels_of_left_and_right(tmp_path: Path) -> None:
    root = tmp_path / "nights"
    for k in range(3):
        for name, value in (("ref", k), ("left", 100 + 10 * k), ("right", 101 + 10 * k)):
            put(root / f"{name}/{k}.png", png(value))
    lines = [
        "id,left_vote,right_vote,votes,ref_path,left_path,right_path,prompt,is_imagenet,split",
        "0,0,1,6,ref/0.png,left/0.png,right/0.png,An image of a cat,True,train",
        "1,1,0,5,ref/1.png,left/1.png,right/1.png,An image of a dog,False,train",
        '2,6,2,10,ref/2.png,left/2.png,right/2.png,"An image of a car, red",False,test',
    ]
    put(root / "data.csv", "\n".join(lines).encode())
    table = import_dataset("nights", root)
    assert column(table, "slot") == ["anchor", "left", "right"] * 2  # five votes are too few
    assert column(table, "label") == [None, 0, 1, None, 0.75, 0.25]
    assert column(table, "group") == ["nights/0"] * 3 + ["nights/2"] * 3
    assert column(table, "identity") == [None] * 6
    assert column(table, "split") == ["train"] * 3 + ["test"] * 3
    assert column(table, "x_imagenet") == ["true"] * 3 + ["false"] * 3
    assert table["text"][4] == "An image of a car, red"
    assert [*map(value_of, table["path"][:3])] == [0, 100, 101]
    put(root / "data.csv", "\n".join([*lines, "3,0,0,9,ref/0.png,left/0.png,right/0.png,,,test"]).encode())
    refuses("row 4: left_vote", "nights", root)


def test_subjects2k(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "reference_image": [png(1), png(2)], "test_image": [png(11), png(12)], "pair_id": ["000028", "000088"],
        "human_votes": [[1, 1, 1], [1, 0, 0]], "human_agreement": [1.0, 1 / 3], "binary_label": [1, 0],
        "gpt_score": [3, 5],
    }  # fmt: skip
    made = hub_table(columns, ("reference_image", "test_image"))
    made.to_parquet(put(tmp_path / "set" / "test-00000-of-00001.parquet", b""))
    table = import_dataset("subjects2k", tmp_path / "set", images=tmp_path / "images")
    assert column(table, "slot") == ["anchor", "candidate"] * 2
    assert column(table, "label") == [None, 1, None, 0]
    one, two, three, four = column(table, "identity")
    assert one == two == "subjects2k/000028"
    assert three == "subjects2k/000088" != four
    assert column(table, "group") == ["subjects2k/000028"] * 2 + ["subjects2k/000088"] * 2
    assert [*map(value_of, table["path"])] == [1, 11, 2, 12]
    assert json.loads(table["parameters"][3])["human_votes"] == [1, 0, 0]
    assert table["split"][3] == "test"


def test_subjects2k_names_the_cell(tmp_path: Path) -> None:
    put_all(tmp_path, "a.png", "b.png")
    row = {"reference_image": "a.png", "test_image": "b.png", "binary_label": None, "human_votes": [1, 0]}
    file = put_json(tmp_path / "pairs.jsonl", row)
    refuses("row 1, column 'binary_label'", "subjects2k", file)
    put_json(file, {**row, "binary_label": 1, "pair_id": None})
    assert len(import_dataset("subjects2k", file)) == 2


# Evaluation sets


def test_pods_parts_are_not_splits(tmp_path: Path) -> None:
    for part, value in (("train", 0), ("test_dense", 50)):
        columns: dict[str, list[Any]] = {
            "image": [png(value + 1), png(value + 2)], "mask": [box(0.3), box(0.4)], "label": ["mug_1", "shoe_2"],
            "scene_type": ["pose", "distractors"],
        }  # fmt: skip
        made = hub_table(columns, ("image", "mask"))
        made.to_parquet(put(tmp_path / "pods" / "data" / f"{part}-00000-of-00001.parquet", b""))
    info = {"class_to_sc": {"mug_1": "mug"}, "class_to_split": {"mug_1": "val", "shoe_2": "test"}}
    put_json(tmp_path / "pods" / "pods_info.json", info)
    table = import_dataset("pods", tmp_path / "pods", images=tmp_path / "images")
    assert column(table, "x_part") == ["test_dense"] * 2 + ["train"] * 2
    assert column(table, "identity") == ["pods/mug_1", "pods/shoe_2"] * 2
    assert column(table, "split") == ["val", "test"] * 2
    assert column(table, "category") == ["mug", None] * 2
    assert not len(leaks(table))
    assert json.loads(table["parameters"][0])["scene_type"] == "pose"
    assert value_of(table["path"][0]) == 51
    assert share_of(table["mask"][3]) == pytest.approx(0.4)


def test_class_labels_are_names(tmp_path: Path) -> None:
    made = hub_table({"image": [png(1), png(2)], "label": [1, 0]}, ("image",))
    made = made.cast_column("label", datasets.ClassLabel(names=["shoe", "mug"]))
    made.to_parquet(put(tmp_path / "p" / "train.parquet", b""))
    made.save_to_disk(tmp_path / "a")
    for source in (tmp_path / "p", tmp_path / "a"):
        table = import_dataset("pods", source, images=tmp_path / "images")
        assert column(table, "identity") == ["pods/mug", "pods/shoe"]


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
        put_json(tmp_path / "ratings" / rater / "emu2-cp.json", ratings)
        put_json(tmp_path / "ratings" / rater / "emu2-pf.json", {"object_00_motorcycle-4": 0})
    put_json(tmp_path / "ratings" / "gpt" / "emu2.json", {"object_00_motorcycle-4": 4})
    options = {"samples": str(tmp_path / "samples"), "ratings": str(tmp_path / "ratings")}
    rows = by_id(import_dataset("dreambench_pp", tmp_path / "data", options=options))
    reference = rows["dreambench_pp/object_00"]
    assert (reference.domain, reference.category) == ("object", "Motorcycle")
    assert reference.parameters["prompts"][4] == "prompt 4"
    candidate = rows["dreambench_pp/object_00/emu2_seed42/4_0/candidate"]
    assert (candidate.label, candidate.text, candidate.parent) == (2.5, "prompt 4", reference.id)
    assert candidate.parameters["ratings"] == {"group1": 3, "group2": 2, "gpt": 4}
    assert (candidate.engine, candidate.identity) == ("emu2_seed42", None)
    anchor = rows["dreambench_pp/object_00/emu2_seed42/4_0/anchor"]
    assert (anchor.path, anchor.group, anchor.identity) == (reference.path, candidate.group, reference.identity)
    second = rows["dreambench_pp/object_00/emu2_seed42/4_1/candidate"]
    assert np.isnan(second.label)  # ratings are of the first image
    assert rows["dreambench_pp/live_subject_animal_03/emu2_seed42/0_0/candidate"].label == 3.5
    assert len(import_dataset("dreambench_pp", tmp_path / "data")) == 2


def test_dreambench_errors_name_the_file(tmp_path: Path) -> None:
    make_dreambench(tmp_path / "data")
    put(tmp_path / "samples" / "m" / "tgt_image" / "object_77_x" / "0_0.jpg", png(1))
    refuses("object_77_x", "dreambench_pp", tmp_path / "data", options={"samples": str(tmp_path / "samples")})
    put_json(tmp_path / "ratings" / "group1" / "m-cp.json", {"object_00_motorcycle-0": "good"})
    options = {"samples": str(tmp_path / "samples"), "ratings": str(tmp_path / "ratings")}
    refuses(r"m-cp\.json: 'object_00_motorcycle-0': 'good'", "dreambench_pp", tmp_path / "data", options=options)
    del options["samples"]
    refuses("--option samples", "dreambench_pp", tmp_path / "data", options=options)
    refuses("images/", "dreambench_pp", tmp_path)


# MVEB and any other table


def write_table(columns: dict[str, list[Any]], path: Path) -> Path:
    """A table in the format of its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = datasets.Dataset.from_dict(columns)
    {".parquet": made.to_parquet, ".csv": made.to_csv, ".jsonl": made.to_json}[path.suffix](path)
    return path


def write_pictures(folder: Path, count: int) -> None:
    """Images 0.png, 1.png, ... of different colors."""
    for k in range(count):
        put(folder / f"{k}.png", png(k))


def test_mveb_queries_targets_and_negatives(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "qry": ["Find the same car."] * 2, "qry_image_path": [png(1), png(2)],
        "pos_text": ["Represent the image."] * 2, "pos_image_path": [png(11), png(12)],
        "neg_image_path": [png(21), png(1)],
    }  # fmt: skip
    made = hub_table(columns, ("qry_image_path", "pos_image_path", "neg_image_path"))
    made.to_parquet(put(tmp_path / "MVEB" / "sample" / "Cars196.parquet", b""))
    table = import_dataset("mveb", tmp_path / "MVEB", images=tmp_path / "images")
    assert column(table, "slot") == ["query", "positive", "negative"] * 2
    assert column(table, "dataset") == ["mveb/Cars196"] * 6
    assert column(table, "group") == ["mveb/Cars196/all/000000"] * 3 + ["mveb/Cars196/all/000001"] * 3
    assert column(table, "identity") == [None] * 6
    assert column(table, "text")[:2] == ["Find the same car.", "Represent the image."]
    assert [*map(value_of, table["path"])] == [1, 11, 21, 2, 12, 1]
    assert table["path"][5] == table["path"][0]  # equal images are one file
    assert len(list((tmp_path / "images").rglob("*.png"))) == 5


def test_mveb_candidates_are_ranked_and_the_first_is_right(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pics", 4)
    columns = {
        "qry_inst": ["Find it:"], "qry_text": ["in red"], "qry_img_path": ["pics/0.png"],
        "tgt_text": [["a", "b", "c"]], "tgt_img_path": [["pics/1.png", "pics/2.png", "pics/3.png"]], "label": [7],
    }  # fmt: skip
    file = write_table(columns, tmp_path / "IDMR.parquet")
    table = import_dataset("mveb", file)
    assert column(table, "slot") == ["query"] + ["candidate"] * 3
    assert column(table, "label") == [None, 1, 0, 0]
    assert column(table, "text") == ["Find it: in red", "a", "b", "c"]
    assert [*map(value_of, table["path"])] == [0, 1, 2, 3]
    assert column(table, "identity") == [None] * 4  # `label` may be anything next to queries
    named = import_dataset("mveb", file, columns={"identity": "label"})
    assert column(named, "identity") == ["mveb/IDMR/7"] * 2 + [None] * 2
    refuses("--map query=NAME", "mveb", file, columns={"picture": "label"})


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_any_table_with_named_columns(tmp_path: Path, ending: str) -> None:
    write_pictures(tmp_path / "pics", 2)
    columns = {"photo": ["pics/0.png", "pics/1.png"], "who": ["ann", "bob"], "label": ["x", "y"], "seed": [3, 4]}
    path = write_table(columns, tmp_path / f"things{ending}")
    names = {"path": "photo", "identity": "who"}
    table = import_dataset("table", path, columns=names)
    assert column(table, "identity") == ["things/ann", "things/bob"]
    assert column(table, "dataset") == ["things"] * 2
    assert column(table, "seed") == [3, 4]
    assert [*map(value_of, table["path"])] == [0, 1]
    assert json.loads(table["parameters"][1])["label"] == "y"  # a name is no number: kept aside
    assert column(import_dataset("table", path, columns={**names, "shop": "label"}), "shop") == ["x", "y"]
    refuses(r"'path'.*photo, who", "table", path)
    refuses("'identity'.*--map identity=NAME", "table", path, columns={"path": "photo"})
    refuses("'nobody'", "table", path, columns={"path": "photo", "identity": "nobody"})
    refuses("row 1, column 'oracle': 'x'", "table", path, columns={**names, "oracle": "label"})


def test_a_named_table_keeps_the_sets_that_it_joins(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    columns = {"identity": ["a", "b"], "image": ["0.png", "1.png"], "dataset": ["Cats", "Dogs"]}
    file = write_table(columns, tmp_path / "t.csv")
    assert column(import_dataset("table", file), "dataset") == ["Cats", "Dogs"]
    named = import_dataset("table", file, name="zoo")
    assert (column(named, "dataset"), column(named, "x_subset")) == (["zoo", "zoo"], ["Cats", "Dogs"])


@pytest.mark.parametrize("names", [["bbox"], ["x_1", "y_1", "x_2", "y_2"], ["xmin", "ymin", "xmax", "ymax"]])
def test_tables_of_boxes_are_refused(tmp_path: Path, names: list[str]) -> None:
    write_pictures(tmp_path, 1)
    columns: dict[str, list[Any]] = {"identity": ["a"], "path": ["0.png"], **{name: [1] for name in names}}
    refuses(names[0], "table", write_table(columns, tmp_path / "t.csv"))


# What all share


def test_rows_without_an_image_stop_with_the_list_or_are_left_out(tmp_path: Path) -> None:
    made = hub_table({"image": [png(1), None, png(3), None], "label": ["a", "b", None, "d"]}, ("image",))
    made.to_parquet(put(tmp_path / "pods" / "train.parquet", b""))
    with pytest.raises(ManifestError) as caught:
        import_dataset("pods", tmp_path / "pods", images=tmp_path / "images")
    for line in ("3 rows", "row 2 of train: no image", "row 3 of train: no label", "--on-error skip"):
        assert line in str(caught.value)
    assert len(import_dataset("pods", tmp_path / "pods", images=tmp_path / "images", on_error="skip")) == 1


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
    assert again.run().equals(first)
    assert sorted(again.written) == files
    changed = [file for file, time in zip(files, times, strict=True) if file.stat().st_mtime_ns != time]
    assert changed == [files[3]]


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    refuses("'x'.*folder, ", "x", tmp_path)
    refuses("--name", "table", [tmp_path, tmp_path])
    refuses("'depth' of nearid", "nearid", tmp_path, options={"depth": "1"})
    refuses(r"\.parquet", "nearid", tmp_path)
    refuses("revision", "nearid", tmp_path, revision="main")
    refuses("owner/name", "nearid", tmp_path / "none")
    put(tmp_path / "x.parquet", b"PAR1 no")
    refuses(r"x\.parquet", "nearid", tmp_path)


# DeepFashion2 and wildlife


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
        put_json(root / split / "annos" / f"00000{stem}.json", about)
        put(root / split / "image" / f"00000{stem}.jpg", png(int(stem), (9, 7), "JPEG"))


def test_deepfashion2_has_masks_of_its_polygons(tmp_path: Path) -> None:
    write_garments(tmp_path / "df")
    table = import_dataset("deepfashion2", tmp_path / "df", name="DeepFashion2", images=tmp_path / "images")
    assert column(table, "identity") == ["DeepFashion2/7_1", "DeepFashion2/7_1", "DeepFashion2/8_3"]
    assert column(table, "split") == ["train", "train", "val"]
    assert set(table["category"]) == {"skirt"}
    assert json.loads(table["parameters"][0])["source"] == "shop"
    down, across = np.mgrid[:7, :9]  # pixels whose centers a polygon covers, as COCO draws them
    square = (across >= 2) & (across < 6) & (down >= 1) & (down < 4)
    triangle = (across + 0.5) + (down + 0.5) < 3
    assert (read_mask(table["mask"][1]).numpy() > 0.5).tolist() == (square | triangle).tolist()
    assert not faults(table)


def test_damaged_garments_are_named(tmp_path: Path) -> None:
    root, images = tmp_path / "df", tmp_path / "images"
    write_garments(root)
    file = root / "train/annos/000001.json"
    about = json.loads(file.read_text())
    for polygons in ("abc", [[1, 2, 3]], [[12, 8, 15, 8, 15, 10]], [[1e9, 1, 2, 3, 4, 5]]):
        about["item1"]["segmentation"] = polygons
        put_json(file, about)
        refuses("000001.json: item1: ", "deepfashion2", root, images=images)
        assert len(import_dataset("deepfashion2", root, images=images, on_error="skip")) == 2
    for wrong in ({}, {**about, "pair_id": None}):
        put_json(file, wrong)
        refuses("000001.json: .*pair_id", "deepfashion2", root)
    refuses("annos", "deepfashion2", root / "train" / "image")


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
    table = import_dataset("wildlife", tmp_path / "data", images=tmp_path / "cut")
    assert column(table, "identity") == ["wildlife/Cats_7"] * 2 + ["wildlife/Dogs_7", None, None]
    assert column(table, "dataset") == ["Cats", "Cats", "Dogs", "Dogs", "Dogs"]
    assert column(table, "split") == ["train", "test", "test", "test", "query"]
    assert column(table, "category") == ["cat", "cat", "dog", "dog", "dog"]
    assert column(table, "x_date") == ["2020-01-02", "2021-05-06", None, None, None]
    assert column(table, "x_orientation") == ["left", None, None, None, None]
    assert json.loads(table["parameters"][0])["note"] == "tame"
    whole = np.asarray(read_image(tmp_path / "data/dogs/1.png"))
    for path, part in zip(table["path"][:3], (whole[2:4, 1:4], whole[3:6, 0:3], whole), strict=True):
        assert np.array_equal(np.asarray(read_image(path)), part)
    assert not faults(table)
    write(table, tmp_path / "animals.csv")
    assert read(tmp_path / "animals.csv")["x_date"][0] == "2020-01-02"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('A_1,dogs/1.png,,,dog,test,Dogs,"[1, 2, 3]",', r"row 6: bbox \[1, 2, 3\]"),
        ("A_1,dogs/1.png,,,dog,test,Dogs,left,", "row 6: bbox left"),
        ('A_1,dogs/1.png,,,dog,test,Dogs,"[1, 2, NaN, 3]",', "row 6: bbox"),
        ('A_1,dogs/1.png,,,dog,test,Dogs,"[9, 2, 3, 3]",', "row 6: .* 8x6 pixels of .*1.png"),
        ('A_1,absent.png,,,dog,test,Dogs,"[1, 2, 3, 3]",', "row 6: .*absent.png"),
        ("A_1,,,,dog,test,Dogs,,", "row 6: no path"),
    ],
)
def test_damaged_rows_of_wildlife_are_named(tmp_path: Path, line: str, message: str) -> None:
    write_animals(tmp_path / "data", line)
    refuses(message, "wildlife", tmp_path / "data", images=tmp_path / "cut")
    assert len(import_dataset("wildlife", tmp_path / "data", images=tmp_path / "cut", on_error="skip")) == 5


def test_other_boxes_of_wildlife_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "1.png", png(1))
    put(tmp_path / "metadata.csv", b"identity,path,xmin,ymin,xmax,ymax\na,1.png,0,0,2,2\n")
    refuses("xmin", "wildlife", tmp_path)
    put(tmp_path / "metadata.csv", b"identity,path,bbox_x,bbox_y,bbox_w,bbox_h\na,1.png,0,0,2,2\n")
    refuses("bbox_x", "wildlife", tmp_path)


def test_a_folder_without_wildlifes_table_is_not_looked_up_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "animals").mkdir()
    monkeypatch.chdir(tmp_path)
    refuses("animals/metadata.csv", "wildlife", "animals")
