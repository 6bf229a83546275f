"""The protocols of `idmetric eval`, each on a small manifest of painted pictures."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from differential_cases import Results, command, generator, picture, same, workspace

EXTRA = ("pandas", "pyarrow", "scipy", "sklearn")


def write_manifest(rows: list[dict[str, Any]], file: str = "data.csv") -> None:
    """Write a manifest; a row lacks the columns that it leaves out."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(file, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def view(identity: str, number: int, spread: float = 0.35) -> str:
    """Paint a view of an identity, the same picture under changing noise and light, and return its path."""
    path = Path(f"{identity}-{number}.png".replace("/", "_"))
    if not path.exists():
        pixels = np.asarray(picture(identity, 72, 64)).astype(float)
        rng = generator(f"{identity} {number}")
        other = np.asarray(picture(f"behind {identity} {number}", 72, 64)).astype(float)
        mixed = (1 - spread) * pixels + spread * other + rng.normal(0, 12, pixels.shape)
        Image.fromarray(mixed.clip(0, 255).astype(np.uint8)).save(path)
    return str(path)


def mask_of(name: str) -> str:
    """Paint a mask for a view: a rectangle of its own."""
    path = Path(f"{name}-mask.png")
    rng = generator(f"mask {name}")
    mask = np.zeros((64, 72), np.uint8)
    left, top = rng.integers(4, 20, 2)
    mask[top : top + 36, left : left + 40] = 255
    Image.fromarray(mask).save(path)
    return str(path)


def evaluated(words: str, *more: str, samples: int = 40) -> Results:
    """Run a protocol on data.csv and return each number of its table: value, both ends of the interval, and count."""
    options = f"--model tiny --device cpu --quiet --format json --bootstrap {samples}"
    status, out, err = command(f"eval {words} {options}", *more)
    if status:
        raise RuntimeError(err)
    return numbers(json.loads(out))


def numbers(contents: Any) -> Results:
    """Flatten the JSON of `idmetric eval`: labels and name of each number, and its value, interval and count."""
    flat: dict[str, Any] = {}
    for result in contents["results"]:
        for row in result["rows"]:
            labels = [f"{name}={value}" for name, value in row["labels"].items()]
            for name, value in row["metrics"].items():
                key = " ".join([str(result["model"]), *labels, name])
                parts = [value[part] for part in ("value", "low", "high")]
                flat[key] = [None if part is None else float(part) for part in parts]
                flat[f"{key} n"] = value["count"]
    return flat


# People's own data


def photos(identities: int = 8, views: int = 4, prefix: str = "i", **columns: Any) -> list[dict[str, Any]]:
    """Rows of so many identities with so many views."""
    return [
        {"identity": f"{prefix}{who}", "path": view(f"{prefix}{who}", number), "id": f"{prefix}{who}/{number}"}
        | columns
        for who in range(identities)
        for number in range(views)
    ]


def folder() -> Results:
    with workspace():
        write_manifest([*photos(dataset="one"), *photos(5, 3, "j", dataset="two")])
        return evaluated("folder --data data.csv --model hsv")


def folder_masked() -> Results:
    with workspace():
        rows = photos(5, 3)
        for row in rows:
            row["mask"] = mask_of(row["id"].replace("/", "_"))
        write_manifest(rows)
        return evaluated("folder --data data.csv --subject crop --distance joint")


def openset() -> Results:
    with workspace():
        rows = []
        for who, size in enumerate((5, 3, 2, 4, 1, 4, 5, 2)):
            for number in range(size):
                is_query = who > 4 or (who in (2, 3) and number % 2)
                part = "query" if is_query else "database"
                rows.append({"identity": f"i{who}", "path": view(f"i{who}", number), "split": part, "dataset": "herd"})
        write_manifest(rows)
        return evaluated("openset --data data.csv --threshold 0.6 --threshold 0.8")


def openset_drawn() -> Results:
    with workspace():
        write_manifest(photos(10, 4, dataset="cats"))
        return evaluated("openset --data data.csv --unknown 0.3 --seed 3")


def calibrate() -> Results:
    with workspace():
        rows = photos(12, 4, dataset="d", role="real")
        for who in range(12):
            for number in range(2):
                parent = f"i{who}/{number}"
                near = {"identity": f"i{who}~", "path": view(f"near i{who}", number), "id": f"{parent}~"}
                rows.append(near | {"role": "distractor", "parent": parent, "dataset": "d"})
        write_manifest(rows)
        results = dict(evaluated("calibrate --data data.csv --out out"))
        results = {name: value for name, value in results.items() if "isotonic" in name or "distance" in name}
        [file] = Path("out").rglob("*.calibration.json")
        contents = json.loads(file.read_text(encoding="utf-8"))
        for part in ("curve", "thresholds", "held_out"):
            results[part] = flat_numbers(contents[part])
        return results


def flat_numbers(value: Any) -> list[float]:
    """Return the floats in nested JSON, in order."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in flat_numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in flat_numbers(item)]
    return [value] if isinstance(value, float) else []


# Generators


def outputs(methods: tuple[str, ...] = ("one", "two", "copier")) -> None:
    """Paint the images of methods for four subjects and two prompts, and the subjects' references."""
    for subject in range(4):
        for number in range(3):
            keep(view(f"s{subject}", number), f"references/s{subject}/{number}.png")
        for place, method in enumerate(methods):
            for prompt in ("beach", "desk"):
                for seed in range(2):
                    target = f"methods/{method}/s{subject}/{prompt}/{seed}.png"
                    if method == "copier":
                        source = view(f"s{subject}", seed)
                    else:
                        number = 10 + 40 * place + 2 * seed + (prompt == "desk")
                        source = view(f"s{subject}", number, spread=0.4 + 0.2 * place)
                    keep(source, target)


def keep(source: str, target: str) -> None:
    """Copy a painted file."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_bytes(Path(source).read_bytes())


GENERATOR = "generator --data methods --references references --pattern {method}/{subject}/{prompt}/{seed}.png"
GENERATOR_COLUMNS = ("identity", "real", "copies", "leaning", "diversity", "p", "difference")


def generator_of_methods() -> Results:
    with workspace():
        outputs()
        return {name: value for name, value in evaluated(GENERATOR).items() if name_of(name) in GENERATOR_COLUMNS}


def name_of(key: str) -> str:
    """Return the number's name of a key of `numbers`."""
    return key.removesuffix(" n").rpartition(" ")[2]


# The papers' tables


def retrieval() -> Results:
    with workspace():
        rows = []
        for dataset in ("met", "sop", "mine"):
            for who in range(6):
                for number in range(5):
                    part = "gallery" if number else "query"
                    name = f"{dataset}{who}"
                    path = view(name, number, spread=0.6)
                    rows.append({"identity": name, "path": path, "id": f"{name}/{number}", "dataset": dataset})
                    rows[-1]["split"] = part
        write_manifest(rows)
        return evaluated("retrieval --data data.csv --k 3")


def ilias() -> Results:
    with workspace():
        rows = []
        for who in range(6):
            kind = {"dataset": "ilias", "domain": ("toy", "art")[who % 2], "category": f"c{who % 3}"}
            for number in range(1 + who % 2 + 3):
                part = "query" if number < 1 + who % 2 else "gallery"
                folder = "query/Q" if part == "query" else "pos/P"
                row = {"identity": f"ilias/t{who}", "id": f"ilias/t{who}/{folder}{who:03d}_{number:02d}.jpg"}
                row |= {"path": view(f"t{who}", number, 0.6), "split": part} | kind
                if part == "gallery":
                    row |= {"x_scale": (0.01, 0.1, 0.2, 0.5)[number % 4], "x_clutter": (3, 20, 40, 60)[number % 4]}
                rows.append(row)
        for number in range(20):
            path = view(f"other{number}", 0)
            rows.append({"path": path, "id": f"ilias/0/{number}.jpg", "dataset": "ilias", "split": "gallery"})
        write_manifest(rows)
        return evaluated("ilias --data data.csv --k 7")


def nearid() -> Results:
    engines = ("sdxl", "flux", "qwen", "powerpaint")
    with workspace():
        rows = []
        for who in range(6):
            for number in (1, 2, 3):
                name = f"nearid/{who}/view{number}"
                row = {"identity": f"nearid/{who}", "id": name, "path": view(f"n{who}", number), "split": "test"}
                rows.append(row | {"x_view": number})
                for engine in engines:
                    made = {"identity": f"{name}/{engine}", "id": f"{name}/{engine}", "role": "distractor"}
                    made |= {"path": view(f"{engine}{who}", number, 0.45), "engine": engine, "parent": name}
                    rows.append(made | {"split": "test"})
            for number in (1, 2):
                name = f"mtg/{who}/view{number}"
                row = {"identity": f"mtg/{who}", "id": name, "path": view(f"m{who}", number), "split": "test"}
                rows.append(row | {"x_view": number})
                edit = {"identity": f"{name}/edit", "id": f"{name}/edit", "role": "part-edit", "parent": name}
                edit |= {"path": view(f"m{who}", 10 + number, 0.6), "oracle": (who * number % 7) / 7}
                rows.append(edit | {"split": "test"})
        write_manifest(rows)
        return evaluated("nearid --data data.csv")


def idsim() -> Results:
    with workspace():
        rows = []
        for who in range(5):
            for part, count in (("train", 3), ("test", 4)):
                for number in range(count):
                    shown = number + 10 * (part == "test")
                    row = {"identity": f"pods/{who}", "path": view(f"p{who}", shown, 0.6), "dataset": "pods"}
                    rows.append(row | {"id": f"pods/{part}/{who}/{number}", "x_part": part})
        for pair in range(16):
            is_same = pair % 2 == 0
            for slot, who in (("anchor", pair), ("candidate", pair if is_same else pair + 50)):
                row = {"identity": f"petface/cat/{who}", "path": view(f"f{who}", slot == "anchor"), "slot": slot}
                row |= {"dataset": "PetFace", "category": "cat", "group": f"f{pair}", "id": f"petface/{pair}/{slot}"}
                rows.append(row | ({"label": float(is_same)} if slot == "candidate" else {}))
        for who in range(4):
            for number in range(4):
                row = {"identity": f"cow{who}", "path": view(f"cow{who}", number, 0.6), "dataset": "AerialCattle2017"}
                rows.append(row | {"id": f"cow/{who}/{number}", "split": "train"})
        write_manifest(rows)
        return evaluated("idsim --data data.csv --seed 2")


def cute() -> Results:
    """Triplets of CUTE are drawn by a seed."""
    with workspace():
        for category, count in (("mug", 3), ("shoe", 2), ("fork", 2)):
            for thing in range(count):
                for scene in ("in_the_wild", "studio_1", "studio_2"):
                    for number in range(3):
                        source = view(f"{category}{thing}{scene}", number)
                        keep(source, f"CUTE/{category}/{category}{thing}/{scene}/{number}.png")
        status, _, err = command("data import cute CUTE --out data.csv --quiet")
        if status:
            raise RuntimeError(err)
        return evaluated("idsim --data data.csv", samples=0)


def segmentation() -> Results:
    with workspace():
        rows = []
        for who, color in enumerate([(220, 30, 30), (30, 200, 40), (40, 60, 230)]):
            for number in range(3):
                rng = generator(f"square {who} {number}")
                image = rng.integers(60, 180, (64, 80, 3), dtype=np.uint8)
                mask = np.zeros((64, 80), np.uint8)
                top, left = rng.integers(0, 30, 2)
                mask[top : top + 30, left : left + 34] = 255
                image[mask > 0] = color
                name = f"{who}-{number}"
                Image.fromarray(image).save(f"{name}.png")
                Image.fromarray(mask).save(f"{name}-mask.png")
                rows.append({"identity": f"s{who}", "path": f"{name}.png", "id": name, "mask": f"{name}-mask.png"})
        write_manifest(rows)
        return evaluated("segmentation --data data.csv", samples=0)


def mveb() -> Results:
    with workspace():
        rows = []
        for dataset in ("Cars196", "Market1501", "GPTImageEdit"):
            for question in range(5):
                group = {"dataset": f"mveb/{dataset}", "group": f"{dataset}/{question}"}
                name = f"{dataset}{question}"
                query = {"identity": f"{dataset}/{question}", "path": view(name, 0, 0.6), "slot": "query"}
                rows.append(query | group | {"id": f"{name}/q", "text": f"make it number {question}"})
                for number in range(4):
                    path = view(name if number == 0 else f"{name} other {number}", 1, 0.7)
                    candidate = {"path": path, "slot": "candidate", "label": float(number == 0)}
                    rows.append(candidate | group | {"id": f"{name}/{number}"})
        write_manifest(rows)
        return evaluated("mveb --data data.csv")


def sensitivity() -> Results:
    with workspace():
        rows = []
        steps = [("none", 0.0), ("background", 0.5), ("background", 1.0), ("light", 0.5), ("light", 1.0)]
        for thing in range(4):
            rng = generator(f"grid {thing}")
            ground, other_ground, color, other = rng.integers(20, 230, (4, 3))
            for factor, level in steps:
                for strength in (0.0, 0.5, 1.0):
                    behind = ground + (other_ground - ground) * level * (factor == "background")
                    pixels = np.broadcast_to(behind, (32, 32, 3)).copy()
                    pixels[8:24, 8:24] = color + (other - color) * strength
                    pixels *= 1 - 0.5 * level * (factor == "light")
                    name = f"{thing}-{factor}-{level}-{strength}"
                    Image.fromarray(pixels.astype(np.uint8)).save(f"{name}.png")
                    is_anchor = factor == "none" and strength == 0
                    identity = f"thing{thing}" + (f"~{strength}" if strength else "")
                    row = {"identity": identity, "path": f"{name}.png", "id": name, "group": f"thing{thing}"}
                    row |= {"slot": "anchor" if is_anchor else "candidate", "x_factor": factor}
                    rows.append(row | {"x_factor_change": level, "x_identity_change": strength})
        write_manifest(rows)
        return evaluated("sensitivity --data data.csv")


def agreement() -> Results:
    shares = [1, 0.8, 0.79, 0.5, 0.2, 0.21, 0, 1, 0.9, 0.1, 0, 0.4]
    with workspace():
        rows = []
        for pair, share in enumerate(shares):
            for slot, name in (("anchor", f"a{pair}"), ("candidate", f"a{pair}" if pair % 3 else f"b{pair}")):
                row = {"identity": name, "path": view(name, slot == "anchor"), "id": f"{pair}/{slot}", "slot": slot}
                row |= {"group": str(pair), "dataset": "study"}
                rows.append(row | ({"label": share} if slot == "candidate" else {}))
        write_manifest(rows)
        return evaluated("agreement --data data.csv")


RATERS = {
    "group1": "data_human_rating/merged_data/group1/{}-cp.json",
    "group2": "data_human_rating/merged_data/group2/{}-cp.json",
    "gpt": "data_gpt_rating/concept_preservation_full/{}.json",
    "nearid": "data_nearid_rating/{}.json",
}


def dreambench() -> Results:
    """The published ratings, in the published folders, with made-up numbers."""
    kinds = {"object": ("object", "magic_cube"), "animal": ("live_subject_animal", "kitten")}
    kinds["human"] = ("live_subject_human", "old_man")
    kinds["style"] = ("style", "low-poly_geometric")
    with workspace():
        rng = generator("ratings")
        for method in ("emu2", "dreambooth_sd"):
            truth = {f"{kind}_{k:02d}_{thing}-{p}": rng.uniform(0, 4) for kind, thing in kinds.values()
                     for k in range(4) for p in range(9)}  # fmt: skip
            for rater, place in RATERS.items():
                file = Path("ratings", place.format(method))
                file.parent.mkdir(parents=True, exist_ok=True)
                noisy = {key: float(np.clip(value + rng.normal(), 0, 4)) for key, value in truth.items()}
                if rater == "nearid":
                    given: dict[str, float] = {f"{key}_0": 25 * value for key, value in noisy.items()}
                else:
                    given = {key: round(value) for key, value in noisy.items()}
                file.write_text(json.dumps(given), encoding="utf-8")
        status, out, err = command("eval dreambench --ratings ratings --quiet --format json --bootstrap 40")
        if status:
            raise RuntimeError(err)
        return numbers(json.loads(out))


CASES = [
    same("folder", folder, needs=EXTRA),
    same("folder/masked joint", folder_masked, 5e-6, needs=EXTRA),
    same("openset/split", openset, needs=EXTRA),
    same("openset/drawn", openset_drawn, needs=EXTRA),
    same("calibrate", calibrate, 5e-6, needs=EXTRA),
    same("generator", generator_of_methods, needs=EXTRA),
    same("retrieval", retrieval, needs=EXTRA),
    same("ilias", ilias, needs=EXTRA),
    same("nearid", nearid, needs=EXTRA),
    same("idsim", idsim, needs=EXTRA),
    same("idsim/cute", cute, needs=EXTRA),
    same("segmentation", segmentation, 2e-4, needs=EXTRA),
    same("mveb", mveb, needs=EXTRA),
    same("sensitivity", sensitivity, needs=EXTRA),
    same("agreement", agreement, needs=EXTRA),
    same("dreambench", dreambench, needs=EXTRA),
]
