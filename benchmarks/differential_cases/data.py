"""Manifests: importers, split, merge, curate, mine, frames, and the painter."""

from __future__ import annotations

import csv
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from differential_cases import Results, command, generator, picture, same, workspace
from differential_cases.evaluate import keep, mask_of, photos, view, write_manifest

TABLES = ("pandas", "pyarrow")
COLUMNS = ("identity", "dataset", "role", "split", "domain", "category", "engine", "group", "slot", "label", "text")
FREE = ("x_part", "x_view", "x_scale", "x_clutter", "x_date", "x_orientation", "oracle")


def run(words: str, *more: object) -> None:
    """Run `idmetric data`."""
    status, _, err = command(f"data {words} --quiet", *more)
    if status:
        raise RuntimeError(err)


def table(file: str = "out.csv") -> Results:
    """Return a manifest's columns and, in place of paths, the pixels of its images and masks."""
    with open(file, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    results: dict[str, Any] = {"rows": len(rows)}
    for name in (*COLUMNS, *FREE):
        if any(row.get(name) for row in rows):
            results[name] = [row.get(name, "").removesuffix(".0") for row in rows]  # 1.0 and 1 are one label
    for name in ("path", "mask"):
        if any(row.get(name) for row in rows):
            results[name] = [checksum(row[name]) if row.get(name) else 0 for row in rows]
    return results


def checksum(path: str) -> int:
    """Return a number that stands for the pixels of an image."""
    with Image.open(path) as image:
        return zlib.crc32(np.asarray(image.convert("RGB")).tobytes())


def write_json(path: str, value: Any) -> None:
    """Write JSON to a file, whose folder is made."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(value), encoding="utf-8")


# Importers


def import_folder() -> Results:
    with workspace():
        for part in ("train", "test"):
            for who in range(2):
                for number in range(2):
                    keep(view(f"{part}{who}", number), f"set/{part}/{part}{who}/{number}.png")
        keep(mask_of("train0-0"), "set/train/train0/0_mask.png")
        run("import folder set -o out.csv")
        return table()


def import_table() -> Results:
    with workspace():
        lines = ["photo,who,shop"]
        lines += [f"{view(f'i{who}', number)},00{who},s{number}" for who in range(3) for number in range(2)]
        Path("goods.csv").write_text("\n".join(lines), encoding="utf-8")
        run("import table goods.csv -o out.csv --name goods --map path=photo --map identity=who --map x_shop=shop")
        return table()


def import_nights() -> Results:
    with workspace():
        lines = ["id,left_vote,right_vote,votes,ref_path,left_path,right_path,prompt,split"]
        for number, (left, votes) in enumerate([(7, 7), (0, 8), (3, 6), (1, 4)]):
            paths = ",".join(view(f"n{number}{slot}", 0) for slot in "rab")
            lines.append(f"{number},{left},{votes - left},{votes},{paths},a cup,test")
        Path("nights").mkdir()
        for path in Path().glob("*.png"):
            path.rename(Path("nights", path.name))
        Path("nights/data.csv").write_text("\n".join(lines), encoding="utf-8")
        run("import nights nights -o out.csv")
        return table()


def import_pods() -> Results:
    with workspace():
        for part, count in (("train", 2), ("test", 3)):
            for who in range(2):
                for number in range(count):
                    path = view(f"p{part}{who}", number)
                    keep(path, f"pods/{part}/thing{who}/{number}.png")
                    keep(mask_of(f"{part}{who}{number}"), f"pods/{part}_masks/thing{who}/{number}.png")
        run("import pods pods -o out.csv")
        return table()


def import_wildlife() -> Results:
    with workspace():
        for name in ("cats/1", "cats/2", "dogs/1"):
            keep(view(name, 0), f"wild/{name}.png")
        lines = [
            "identity,path,date,orientation,species,split,dataset,bbox",
            'Cats_7,cats/1.png,2020-01-02,left,cat,train,Cats,"[10.2, 2, 30, 25]"',
            'Cats_7,cats/2.png,2021-05-06,,cat,test,Cats,"[-2, 3, 50, 99]"',
            "7,dogs/1.png,,,dog,test,Dogs,",
            "unknown,dogs/1.png,,,dog,test,Dogs,",
            ",dogs/1.png,,,dog,query,Dogs,",
        ]
        Path("wild/metadata.csv").write_text("\n".join(lines), encoding="utf-8")
        run("import wildlife wild -o out.csv")
        return table()


def import_deepfashion2() -> Results:
    square, triangle = [12, 11, 56, 11, 56, 44, 12, 44], [0, 0, 30, 0, 0, 30]
    garments: dict[str, list[tuple[int, list[list[int]]]]] = {
        "train/1": [(1, [square])],
        "train/2": [(1, [square, triangle])],
        "train/3": [(0, [square])],
        "train/4": [(1, [square]), (2, [triangle])],
        "validation/1": [(3, [triangle])],
    }
    with workspace():
        for name, items in garments.items():
            split, stem = name.split("/")
            about: dict[str, Any] = {"source": "shop", "pair_id": 7 if split == "train" else 8}
            for number, (style, polygons) in enumerate(items, 1):
                item = {"style": style, "category_name": "skirt", "segmentation": polygons, "scale": 2}
                about[f"item{number}"] = item
            write_json(f"df2/{split}/annos/00000{stem}.json", about)
            keep(view(name, 0), f"df2/{split}/image/00000{stem}.jpg")
        run("import deepfashion2 df2 -o out.csv --name DeepFashion2")
        return table()


def import_ilias() -> Results:
    objects = {"bold_bimp_000": (1, 2), "bold_flep_001": (2, 1), "zippy_zoo_999": (1, 3)}
    with workspace():
        queries, positives = [], []
        for name, (asked, shown) in objects.items():
            for number in range(asked):
                path = f"{name}/query/Q{name[-3:]}_{number:02d}.jpg"
                keep(view(name, number), f"ilias/ilias_core/{path}")
                queries.append(f"{path},clean")
            for number in range(shown):
                path = f"{name}/pos/P{name[-3:]}_{number:02d}.jpg"
                keep(view(name, 10 + number), f"ilias/ilias_core/{path}")
                positives.append(f"{path},{0.05 * (number + 1)},{20 * number}")
        Path("ilias/image_ids").mkdir()
        Path("ilias/image_ids/image_query_ids.txt").write_text("\n".join(queries) + "\n", encoding="utf-8")
        Path("ilias/image_ids/positive_ids.txt").write_text("\n".join(positives) + "\n", encoding="utf-8")
        taxonomy = {"toy": {"stuffed": {"plushie": ["bold_bimp_000"]}}}
        taxonomy["technology"] = {"gaming": {"other": ["bold_flep_001"]}, "other": {"other": ["zippy_zoo_999"]}}
        write_json("ilias/taxonomy.json", taxonomy)
        run("import ilias ilias -o out.csv")
        return table()


def import_syncd() -> Results:
    with workspace():
        records = []
        for number, (count, category) in enumerate([(3, "rigid"), (2, "deformable")]):
            files = [f"{number}/{k}.png" for k in range(count)]
            for k, file in enumerate(files):
                keep(view(f"sync{number}", k), f"syncd/{file}")
                gray = np.zeros((64, 72), np.uint8)
                gray[:, :36] = 90
                mask = Path(f"syncd/{number}/masks/{k}.jpg")
                mask.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(gray).save(mask, quality=100)
            record = {"filenames": files, "prompts": [f"a mug in scene {k}" for k in range(3)], "category": category}
            records.append(record | {"category_description": f"a mug {number}", "objaverse_id": f"id{number}"})
        write_json("syncd/metadata.json", records)
        run("import syncd syncd -o out.csv")
        return table()


def import_dreambench() -> Results:
    with workspace():
        for category, number, subject in (("object", "00", "Motorcycle"), ("animal", "03", "Magic cube")):
            keep(view(subject, 0), f"data/images/{category}/{number}.jpg")
            lines = [subject, *(f"prompt {k}" for k in range(9))]
            file = Path(f"data/captions/{category}/{number}.txt")
            file.parent.mkdir(parents=True)
            file.write_text("\n".join(lines), encoding="utf-8")
        run_folder = "samples/emu2_seed42/tgt_image"
        keep(view("a", 0), f"{run_folder}/object_00_motorcycle/4_0.jpg")
        keep(view("b", 0), f"{run_folder}/live_subject_animal_03_magic_cube/0_0.jpg")
        for rater, value in (("group1", 3), ("group2", 2)):
            ratings = {"object_00_motorcycle-4": value, "live_subject_animal_03_magic_cube-0": value + 1}
            write_json(f"ratings/{rater}/emu2-cp.json", ratings)
        run("import dreambench_pp data -o out.csv --option samples=samples --option ratings=ratings")
        return table()


def import_published_tables() -> Results:
    """NearID with a set of distractors, Mind-the-Glitch and Subjects2k, as tables of files."""
    import pandas

    with workspace():

        def column(name: str, count: int = 3) -> list[str]:
            return [str(Path(view(name, k)).resolve()) for k in range(count)]

        positives = {f"images{k}": column(f"image{k}") for k in (1, 2)} | {"images3": [None] * 3}
        positives |= {f"masks{k}": [str(Path(mask_of(f"m{k}{n}")).resolve()) for n in range(3)] for k in (1, 2)}
        columns = {
            "NearID": positives | {"id": ["a", "b", "c"]},
            "NearID-Flux": {f"nimg{k}": column(f"near{k}") for k in (1, 2)} | {"id": ["a", "b", "c"]},
            "mtg": {
                f"image_{k}_{part}": column(f"{part}{k}") if "mask" not in part else
                [str(Path(mask_of(f"{part}{k}{n}")).resolve()) for n in range(3)]
                for k in (1, 2) for part in ("original", "inpainted", "object_mask", "part_mask")
            },
            "subjects2k": {
                "reference_image": column("ref"), "test_image": column("test"), "binary_label": [1, 0, 1],
                "pair_id": ["p1", "p2", "p3"],
            },
        }  # fmt: skip
        for name, values in columns.items():
            Path(name).mkdir()
            pandas.DataFrame(values).to_parquet(f"{name}/train.parquet")
        results: dict[str, Any] = {}
        for kind, sources in (("nearid", "NearID NearID-Flux"), ("mtg", "mtg"), ("subjects2k", "subjects2k")):
            run(f"import {kind} {sources} -o {kind}.csv")
            results |= {f"{kind} {name}": value for name, value in table(f"{kind}.csv").items()}
        return results


# Between import and training


def collection() -> None:
    """A manifest of two datasets with masks, categories, and edits that follow their photos."""
    rows = []
    for dataset, identities, views in (("one", 9, 3), ("two", 6, 5)):
        for who in range(identities):
            for number in range(views):
                name = f"{dataset}{who}"
                row = {"identity": name, "path": view(name, number), "id": f"{name}/{number}", "dataset": dataset}
                row |= {"mask": mask_of(f"{name}-{number}"), "category": ("cup", "cat", "car")[who % 3]}
                rows.append(row | {"domain": ("generic", "product")[who % 2], "role": "real"})
            edit = {"identity": f"{name}~edit", "path": view(f"{name} edit", 0), "id": f"{name}/edit"}
            edit |= {"dataset": dataset, "role": "identity-edit", "parent": f"{name}/0", "category": "cup"}
            rows.append(edit)
    write_manifest(rows)


def ids(file: str = "out.csv") -> Results:
    """Return id, split, group and slot of a manifest's rows."""
    with open(file, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {name: [row.get(name, "") for row in rows] for name in ("id", "split", "group", "slot", "role")}


def split() -> Results:
    with workspace():
        collection()
        run("split data.csv -o out.csv --part train=rest --part val=2 --part test=3 --seed 4")
        return ids()


def merge() -> Results:
    with workspace():
        collection()
        Path("data.csv").rename("a.csv")
        write_manifest(photos(3, 2, "new", dataset="three"), "b.csv")
        run("merge a.csv b.csv -o out.csv")
        return table()


def curate(recipe: str, *more: str) -> Results:
    with workspace():
        collection()
        run(f"curate data.csv --recipe {recipe} -o out.csv --seed 1", *more)
        return ids()


def mine_negatives() -> Results:
    with workspace():
        collection()
        run("mine negatives data.csv --model tiny --device cpu -o out.csv --k 2")
        return ids()


def mine_triplets() -> Results:
    with workspace():
        collection()
        run("mine negatives data.csv --model tiny --device cpu -o mined.csv")
        words = "mine triplets mined.csv --identity data.csv --context data.csv --count 8 --ratio 1:0:1 --seed 2"
        run(f"{words} -o out.csv")
        return ids()


def frames() -> Results:
    """Folders of frames with masks; the sharpest valid frame of each part is chosen."""
    with workspace():
        rng = generator("frames")
        for number in range(60):
            base = np.asarray(picture("clip", 96, 72)).astype(float)
            noise = rng.normal(0, 3 + 20 * ((number * 7) % 10) / 10, base.shape)
            Path("clips/holiday").mkdir(parents=True, exist_ok=True)
            Path("masks/holiday").mkdir(parents=True, exist_ok=True)
            Image.fromarray((base + noise).clip(0, 255).astype(np.uint8)).save(f"clips/holiday/{number:05}.png")
            mask = np.zeros((72, 96), np.uint8)
            mask[20:56, 20 + number // 3 : 64 + number // 3] = 255
            Image.fromarray(mask).save(f"masks/holiday/{number:05}.png")
        run("frames clips --masks masks --sampling got10k -o out.csv")
        results = dict(table())
        del results["mask"]
        return results


def painted() -> Results:
    """The painter's rows and pictures."""
    from idmetric.data.painter import Painter

    with workspace():
        Painter(seed=3, size=48, views=2, distractors=True, edits=True, parts=True, contexts=True).paint(Path("p"), 3)
        files = sorted(Path("p").rglob("*.png"))
        return {"files": [str(path) for path in files], "pixels": [checksum(str(path)) for path in files]}


def composed() -> Results:
    """What is cut and placed before a photo is edited, and which share of it is masked."""
    from idmetric.data.generate import compose

    rng = np.random.default_rng(5)
    photo = picture("composed", 160, 120)
    mask = Image.new("L", photo.size)
    mask.paste(255, (50, 30, 110, 90))
    results: dict[str, Any] = {}
    for mode in compose.MODES:
        canvas = compose.contextual_canvas(photo, mask, rng, mode)
        results[f"canvas {mode}"] = [*canvas.image.size, *Image.Image.getbbox(canvas.mask)]
        results[f"pixels {mode}"] = zlib.crc32(np.asarray(canvas.image).tobytes())
    padded = compose.pad_randomly(photo, mask, rng)
    results["padded"] = [*padded.image.size, zlib.crc32(np.asarray(padded.mask).tobytes())]
    return results


CASES = [
    same("import/folder", import_folder, needs=TABLES),
    same("import/table", import_table, needs=TABLES),
    same("import/nights", import_nights, needs=TABLES),
    same("import/pods", import_pods, needs=TABLES),
    same("import/wildlife", import_wildlife, needs=TABLES),
    same("import/deepfashion2", import_deepfashion2, needs=TABLES),
    same("import/ilias", import_ilias, needs=TABLES),
    same("import/syncd", import_syncd, needs=TABLES),
    same("import/dreambench_pp", import_dreambench, needs=TABLES),
    same("import/tables", import_published_tables, needs=TABLES),
    same("split", split, needs=TABLES),
    same("merge", merge, needs=TABLES),
    same("curate/idsim", lambda: curate("idsim", "--count", "6"), needs=TABLES),
    same("curate/nearid", lambda: curate("nearid", "--split", "train=rest,val=2,test=2"), needs=TABLES),
    same("curate/visme", lambda: curate("visme", "--count", "3", "--images", "3"), needs=TABLES),
    same("curate/ilgen", lambda: curate("ilgen", "--count", "6", "--images", "2"), needs=TABLES),
    same("mine/negatives", mine_negatives, needs=TABLES),
    same("mine/triplets", mine_triplets, needs=TABLES),
    same("frames", frames, needs=TABLES),
    same("painter", painted, needs=TABLES),
    same("compose", composed),
]
