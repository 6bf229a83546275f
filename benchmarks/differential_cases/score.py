"""Scores of images against references, and of pairs: in Python and by the command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from differential_cases import Case, Results, command, examples, picture, rectangle, same, tiny, workspace

TOLERANCE = 5e-6


def painted(folder: str, names: Iterable[str]) -> list[str]:
    """Save a picture of each name, and return the paths."""
    paths = []
    for name in names:
        path = Path(folder, f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(name).save(path)
        paths.append(str(path))
    return paths


def facts(rows: Iterable[Mapping[str, Any]], *more: str) -> dict[str, Any]:
    """Collect what the rows of scores say: names of images, distances, and further columns."""
    rows = list(rows)
    results: dict[str, Any] = {
        "images": [Path(str(row["image"])).name for row in rows],
        "references": [Path(str(row["reference"])).name for row in rows],
        "distances": [float(row["distance"]) for row in rows],
    }
    for name in more:
        results[name] = [row[name] for row in rows]
    return results


def prefixed(prefix: str, results: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}: {name}": value for name, value in results.items()}


def real_distances(scores: Any) -> list[float]:
    """The distances of real photos; the older package keeps them in a `baseline`."""
    real = scores.baseline.distances if hasattr(scores, "baseline") else scores.real
    return list(real.values())


def skipped_names(skipped: Iterable[Any]) -> list[str]:
    """The images that were skipped: of a list of rows, or a dict."""
    return sorted(Path(row if isinstance(row, str) else row["image"]).name for row in skipped)


# In Python


def references() -> Results:
    import idmetric

    metric = tiny()
    results: dict[str, Any] = {}
    with workspace():
        photos = painted("photos", ("cup", "hat", "toy"))
        painted("generated", ("first", "second", "third", "fourth"))
        picture("cup").save("generated/cup again.png")
        calls: dict[str, dict[str, Any]] = {
            "one": {"references": photos[0]},
            "best": {"references": photos},
            "mean": {"references": photos, "aggregate": "mean"},
            "folder": {"references": "photos", "distance": "joint"},
            "batches": {"references": photos, "batch_size": 2, "workers": 2},
        }
        for name, options in calls.items():
            scores = idmetric.score(metric, images="generated", copies=False, **options)
            results |= prefixed(name, facts(scores.rows))
            results[f"{name}: mean"] = scores.summary["mean"]
            results[f"{name}: number"] = scores.summary["n"]
            if name in ("best", "mean", "folder"):
                results[f"{name}: real"] = real_distances(scores)
        among = [*photos, "generated/first.png"]
        results |= prefixed("left out", facts(idmetric.score(metric, photos, among).rows))
        included = idmetric.score(metric, photos[0], among, include_references=True, copies=False)
        results |= prefixed("included", facts(included.rows))
    return results


def in_memory() -> Results:
    import idmetric

    metric = tiny()
    pictures = [picture(f"memory {number}") for number in range(4)]
    arrays = [np.asarray(image) for image in pictures[1:]]
    scores = idmetric.score(metric, pictures[0], arrays, copies=False)
    pairs = idmetric.score_pairs(metric, [(pictures[0], arrays[0]), (pictures[1], arrays[2])], copies=False)
    return prefixed("images", facts(scores.rows)) | prefixed("pairs", facts(pairs.rows))


def pairs() -> Results:
    import idmetric

    metric = tiny()
    results: dict[str, Any] = {}
    with workspace():
        painted(".", ("a", "b", "c", "d"))
        Image.fromarray(rectangle(120, 90, (30, 20, 90, 70))).save("mask.png")
        Path("plain.csv").write_text("a,b,kind\na.png,b.png,near\nc.png,d.png,far\na.png,c.png,\n")
        Path("masked.csv").write_text("a,b,mask_a,mask_b\na.png,b.png,mask.png,\nc.png,d.png,mask.png,mask.png\n")
        Path("other-names.csv").write_text("ref,gen,prompt\na.png,d.png,a hat\nb.png,c.png,a cup\n")
        results |= prefixed("file", facts(idmetric.score_pairs(metric, "plain.csv", copies=False).rows, "kind"))
        joint = idmetric.score_pairs(metric, "masked.csv", distance="joint", copies=False)
        results |= prefixed("masks", facts(joint.rows))
        cut = idmetric.score_pairs(metric, "masked.csv", outside="crop", copies=False)
        results |= prefixed("crop", facts(cut.rows))
        named = idmetric.score_pairs(metric, "other-names.csv", copies=False)
        results |= prefixed("other names", facts(named.rows, "prompt"))
        listed = idmetric.score_pairs(metric, [("a.png", "b.png"), {"a": "a.png", "b": "d.png"}], copies=False)
        results |= prefixed("list", facts(listed.rows))
    return results


def masks() -> Results:
    import idmetric

    metric = tiny()
    results: dict[str, Any] = {}
    with workspace():
        photos = painted("photos", ("cup", "hat"))
        generated = painted("generated", ("first", "second"))
        for path, box in zip([*photos, *generated], range(4), strict=True):
            mask = rectangle(120, 90, (20 + 5 * box, 10, 90, 70), 1)
            mask += rectangle(120, 90, (20 + 5 * box, 70, 90, 80), 2)
            file = Path("masks", path)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask * 100).save(file)
        calls: dict[str, dict[str, Any]] = {
            "black": {"mask_id": 100},
            "crop": {"mask_id": 200, "outside": "crop"},
            "keep": {"mask_id": 100, "outside": "keep", "distance": "joint"},
        }
        for name, options in calls.items():
            scores = idmetric.score(metric, photos, generated, mask_dir="masks", copies=False, **options)
            results |= prefixed(name, facts(scores.rows))
    return results


def cache() -> Results:
    import idmetric

    metric = tiny()
    with workspace():
        photos = painted("photos", ("cup", "hat"))
        painted("generated", ("first", "second", "third"))
        calls = []
        for distance in ("cls", "joint", "joint"):
            options: dict[str, Any] = {"distance": distance, "cache": "cache", "copies": False}
            calls.append(idmetric.score(metric, photos, "generated", **options))
        without = idmetric.score(metric, photos, "generated", distance="joint", copies=False)
        _, _, again = command(
            "score --model tiny --device cpu --distance joint --cache cache photos/cup.png generated --format json"
        )
        results = prefixed("first", facts(calls[0].rows)) | prefixed("second", facts(calls[2].rows))
        results["is that without"] = calls[2].to_records() == without.to_records()
        # the command counts the images that it embeds, none of which is new
        counted = [word for word in again.replace(",", " ").split() if word.isdigit()]
        results["embedded again"] = "0" in counted
    return results


def unreadable() -> Results:
    import idmetric

    metric = tiny()
    with workspace():
        painted("generated", ("first", "second"))
        Path("generated/broken.png").write_bytes(Path("generated/first.png").read_bytes()[:300])
        Path("generated/empty.jpg").write_bytes(b"")
        photos = painted("photos", ("cup",))
        scores = idmetric.score(metric, photos, "generated", on_error="skip")
        status, out, _ = command(
            "score --model tiny --device cpu photos/cup.png generated --on-error skip --format json --quiet"
        )
        results = facts(scores.rows)
        results["skipped"] = skipped_names(scores.skipped)
        results["status"] = status
        results["skipped by the command"] = skipped_names(json.loads(out)["skipped"])
    return results


def changed_versions(image: Image.Image) -> dict[str, Image.Image]:
    """Copies of a picture, as editors and image generators make them."""
    width, height = image.size
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=60)
    pasted = picture("a place", width, height)
    pasted.paste(image.resize((width * 2 // 3, height * 2 // 3)), (width // 6, height // 6))
    return {
        "equal": image,
        "JPEG": Image.open(jpeg),
        "smaller": image.resize((width * 3 // 5, height * 3 // 5)),
        "mirrored": ImageOps.mirror(image),
        "cut": image.crop((width // 10, height // 10, width * 9 // 10, height * 9 // 10)),
        "brighter": ImageEnhance.Brightness(image).enhance(1.2),
        "pasted": pasted,
    }


def copies() -> Results:
    import idmetric

    metric = tiny()
    results: dict[str, Any] = {}
    with workspace():
        reference = Image.open(examples()[4]).convert("RGB")
        for name, image in changed_versions(reference).items():
            image.save(f"{name}.png")
        for path in (*examples()[:2], examples()[6]):
            Image.open(path).save(path.name)
        images = sorted(str(path) for path in Path().glob("*.png"))
        scores = idmetric.score(metric, examples()[4], images)
        found = {Path(row["image"]).stem: bool(row["copy"]) for row in scores.rows}
        results |= {name: found[name] for name in sorted(found)}
        without = idmetric.score(metric, examples()[4], images, copies=False)
        results |= prefixed("not looked for", facts(without.rows))

        # a reference that repeats another one counts once among the real photos
        Image.open(examples()[4]).save("again.png")
        photos = [*examples()[4:6], "again.png"]
        scores = idmetric.score(metric, photos, examples()[:2])
        results["real"] = sorted(real_distances(scores))
    return results


def calibration() -> Results:
    import idmetric

    calibration_of = getattr(idmetric, "calibration_of", None)  # of the older one the metric holds it
    metric = tiny()
    photos = examples()[:2]
    scores = idmetric.score(metric, photos, examples(), calibration="stored", copies=False)
    results = facts(scores.rows, "probability")
    stored = calibration_of(metric) if calibration_of else metric.calibration
    distances = [0.05, 0.2, 0.35, 0.5, 0.8, 1.2]
    results["of distances"] = stored.probability(distances)
    results["words"] = [stored.answer(distance) for distance in distances]
    results["distance"] = stored.distance
    results["words of rows"] = [stored.answer(row["distance"]) for row in scores.rows]
    return results


def threshold() -> Results:
    import idmetric

    metric = tiny()
    scores = idmetric.score(metric, examples()[:1], examples(), threshold=0.5, copies=False)
    return {
        "failing": sorted(Path(str(row["image"])).name for row in scores.rows if row["distance"] > 0.5),
        "passing": scores.summary["passing"],
        "share": scores.summary["share_passing"],
        "threshold": float(scores.summary["threshold"]),
    }


# The command


def command_json() -> Results:
    mug, other = examples()[4], examples()[:4]
    words = "score --model tiny --device cpu --quiet --format json"
    results: dict[str, Any] = {}
    for name, options in {
        "plain": (mug, *other),
        "joint": ("--distance", "joint", mug, *other),
        "references": ("--ref", mug, "--ref", examples()[5], *other),
    }.items():
        status, out, _ = command(words, *options)
        printed = json.loads(out)
        results |= prefixed(name, facts(printed["rows"] if isinstance(printed, dict) else printed))
        results[f"{name}: status"] = status
    return results


def command_forms() -> Results:
    words = "score --model tiny --device cpu --quiet"
    results: dict[str, Any] = {}
    with workspace():
        status, out, _ = command(words, "--format", "csv", *examples()[:4])
        rows = list(csv.DictReader(io.StringIO(out)))
        results |= prefixed("CSV", facts(rows)) | {"CSV: status": status}
        status, out, _ = command(words, "--format", "jsonl", *examples()[:4])
        results |= prefixed("JSON lines", facts(json.loads(line) for line in out.splitlines()))
        status, _, _ = command(words, "--output", "scores.csv", *examples()[:4])
        rows = list(csv.DictReader(Path("scores.csv").read_text(encoding="utf-8").splitlines()))
        results |= prefixed("a file", facts(rows)) | {"a file: status": status}
        first, second, *_, last = examples()
        Path("pairs.csv").write_text(f"a,b,kind\n{first},{second},near\n{first},{last},far\n")
        status, out, _ = command(words, "--format", "csv", "--pairs", "pairs.csv")
        results |= prefixed("pairs", facts(csv.DictReader(io.StringIO(out)), "kind")) | {"pairs: status": status}
    return results


CASES: list[Case] = [
    same("references", references, TOLERANCE),
    same("in memory", in_memory),
    same("pairs", pairs, TOLERANCE),
    same("masks", masks, TOLERANCE),
    same("cache", cache, TOLERANCE),
    same("unreadable", unreadable),
    same("copies", copies),
    same("calibration", calibration, TOLERANCE),
    same("threshold", threshold),
    same("command/JSON", command_json, TOLERANCE),
    same("command/forms", command_forms, TOLERANCE),
]
