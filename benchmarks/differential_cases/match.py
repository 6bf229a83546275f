"""Several subjects in images: distances, states, regions, casts, thresholds, frames."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from differential_cases import Case, Results, command, gradient, pixels, same, workspace
from differential_cases.evaluate import keep, view

EXTRA = ("pandas", "pyarrow", "scipy")
SIDE = 72
NAMES = ("zoe", "hen")
COLUMNS = ("subject", "state", "region")


def references() -> None:
    """Paint five photos of each subject, in a folder of its name."""
    for name in NAMES:
        for number in range(5):
            keep(view(name, number), f"refs/{name}/{number}.png")


def scene(name: str, shown: tuple[str, ...], seed: int) -> list[tuple[int, int, int, int]]:
    """Paint subjects side by side into images/NAME.png, gray where there is none, and return their boxes."""
    image = Image.new("RGB", (SIDE * len(shown), 64), (128, 128, 128))
    boxes = []
    for place, who in enumerate(shown):
        if who:
            with Image.open(view(who, 20 + seed + place)) as panel:
                image.paste(panel, (SIDE * place, 0))
            boxes.append((SIDE * place, 0, SIDE * (place + 1), 64))
    Path("images").mkdir(exist_ok=True)
    image.save(f"images/{name}.png")
    return boxes


SCENES = {
    "both": ("zoe", "hen"),
    "reversed": ("hen", "", "zoe"),
    "twice": ("zoe", "zoe", "hen"),
    "one": ("", "hen"),
    "stranger": ("dog", "zoe"),
}


def scenes() -> dict[str, list[tuple[int, int, int, int]]]:
    """Paint all scenes; returns path -> boxes."""
    return {f"images/{name}.png": scene(name, shown, 3 * k) for k, (name, shown) in enumerate(SCENES.items())}


def run(words: str, *more: object) -> list[dict[str, Any]]:
    """Run `idmetric match` on both subjects and return its rows."""
    subjects = " ".join(f"--subject {name}=refs/{name}" for name in NAMES)
    command_line = f"match {subjects} --model tiny --device cpu --quiet --format json"
    status, out, err = command(f"{command_line} {words}", *more)
    if status not in (0, 3, 4):
        raise RuntimeError(err)
    rows: list[dict[str, Any]] = json.loads(out)["rows"]
    return rows


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return of rows for each subject and region one for each subject, as the earlier version has them."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["image"], row["subject"])
        if "nearest" in row:  # it is one of a subject
            return rows
        if row["subject"] is None or (key in found and not row["assigned"]):
            nearer = key in found and not found[key]["assigned"] and row["distance"] < found[key]["nearest"]
            if row["subject"] is None or not nearer:
                continue
        state = {"twice": "doubled"}.get(row["state"], row["state"])
        is_found = state in ("matched", "doubled", "unexpected")
        found[key] = row | {
            "state": state,
            "nearest": row["distance"],
            "distance": row["distance"] if is_found and row["expected"] else None,
            "region": row["region"] if row["assigned"] else None,
        }
    return list(found.values())


def distances(found: Any) -> torch.Tensor:
    """Return the distances of a match, (images, subjects, references, regions)."""
    values = found.distances if isinstance(found.distances, torch.Tensor) else found.table.values
    return torch.as_tensor(values)


def table(rows: list[dict[str, Any]]) -> Results:
    """Return the columns of rows that both versions have."""
    rows = best(rows)
    results: dict[str, Any] = {name: [row[name] for row in rows] for name in COLUMNS}
    for name in ("distance", "nearest", "threshold"):
        results[name] = [None if row[name] is None else float(row[name]) for row in rows]
    results["image"] = [Path(row["image"]).name for row in rows]
    return results


def coco(path: str, boxes: dict[str, list[tuple[int, int, int, int]]], masks: bool = False) -> None:
    """Write the boxes as a COCO file, with polygons inside them if `masks`."""
    images, annotations = [], []
    for number, (image, own) in enumerate(boxes.items(), 1):
        with Image.open(image) as opened:
            width, height = opened.size
        images.append({"id": number, "file_name": image, "width": width, "height": height})
        for left, top, right, bottom in own:
            annotation: dict[str, Any] = {"id": len(annotations) + 1, "image_id": number, "category_id": 1}
            annotation["bbox"] = [left, top, right - left, bottom - top]
            if masks:
                corners = [left + 6, top + 4, right - 4, top + 10, right - 12, bottom - 3, left + 3, bottom - 8]
                annotation["segmentation"] = [corners]
            annotations.append(annotation)
    contents = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "toy"}]}
    Path(path).write_text(json.dumps(contents), encoding="utf-8")


def whole_images() -> Results:
    """An image of each subject."""
    with workspace():
        references()
        for name in NAMES:
            scene(name, (name,), 0)
        return table(run("images --threshold 0.25"))


def coco_boxes() -> Results:
    with workspace():
        references()
        coco("boxes.json", scenes())
        return table(run("images --regions boxes.json --threshold 0.25"))


def coco_polygons() -> Results:
    with workspace():
        references()
        coco("boxes.json", scenes(), masks=True)
        return table(run("images --regions boxes.json --threshold 0.5 --outside white"))


def csv_boxes() -> Results:
    """Thresholds by the subjects' own photos."""
    with workspace():
        references()
        lines = ["path,left,top,right,bottom"]
        for image, boxes in scenes().items():
            lines += [f"{image},{left},{top},{right},{bottom}" for left, top, right, bottom in boxes]
        Path("boxes.csv").write_text("\n".join(lines), encoding="utf-8")
        return table(run("images --regions boxes.csv"))


def cast() -> Results:
    with workspace():
        references()
        coco("boxes.json", scenes())
        lines = ["image,subjects", "images/both.png,zoe;hen", "images/reversed.png,zoe", "images/twice.png,zoe;hen"]
        lines += ["images/one.png,zoe", "images/stranger.png,"]
        Path("cast.csv").write_text("\n".join(lines), encoding="utf-8")
        return table(run("images --regions boxes.json --cast cast.csv --threshold 0.25"))


def in_python() -> Results:
    """Distances of all regions to both subjects, by each way to aggregate and with patches."""
    import idmetric

    with workspace():
        references()
        boxes = scenes()
        metric = idmetric.IDSim("tiny", device="cpu")
        subjects = {name: sorted(Path("refs", name).glob("*.png")) for name in NAMES}
        regions = {image: [idmetric.Region(box=box) for box in own] for image, own in boxes.items()}
        results: dict[str, Any] = {}
        for distance, aggregate in (("cls", "best"), ("cls", "mean"), ("joint", "best")):
            found = idmetric.match(
                metric, subjects, list(boxes), regions=regions, distance=distance, aggregate=aggregate, threshold=0.3
            )
            values = distances(found).detach()
            results[f"{distance} {aggregate}"] = values.nan_to_num(-1)
        return results


def turned() -> Results:
    """Boxes of a photo that its EXIF orientation turns are those of the upright image."""
    import idmetric

    with workspace():
        references()
        boxes = scenes()["images/both.png"]
        metric = idmetric.IDSim("tiny", device="cpu")
        exif = Image.Exif()
        exif[0x0112] = 6
        with Image.open("images/both.png") as image:
            image.transpose(Image.Transpose.ROTATE_90).save("turned.png", exif=exif)
        subjects = {name: sorted(Path("refs", name).glob("*.png")) for name in NAMES}
        regions = {"turned.png": [idmetric.Region(box=box) for box in boxes]}
        found = idmetric.match(metric, subjects, ["turned.png"], regions=regions, threshold=0.3)
        return {"values": distances(found).detach()}


def with_gradients() -> Results:
    """In double precision: the gradients of `tiny` in single precision depend on the kernels."""
    import idmetric

    with workspace():
        references()
        metric = idmetric.IDSim("tiny", device="cpu", dtype=torch.float64)
        subjects = {name: sorted(Path("refs", name).glob("*.png")) for name in NAMES}
        images = pixels("match", 2, 64).double().requires_grad_()
        found = idmetric.match(metric, subjects, images)
        distances(found).sum().backward()
        assert images.grad is not None
        return gradient(images.grad)


def frames() -> Results:
    """A folder of frames as a clip, at half its rate."""
    with workspace():
        references()
        for number in range(8):
            scene(f"{number:03}", ("zoe",) if number < 4 else ("hen",), 0)
        return table(run("--clip images --fps 4 --frames 2fps --threshold 0.25"))


def video(choice: str) -> Results:
    """An encoded clip, whose frames depend on the decoder alone."""
    import av

    with workspace():
        references()
        for number in range(6):
            scene(f"{number:03}", ("zoe",) if number < 3 else ("hen",), 0)
        with av.open("clip.mkv", "w") as container:
            stream = container.add_stream("ffv1", rate=3)
            stream.width, stream.height, stream.pix_fmt = SIDE, 64, "bgr0"
            for number in range(6):
                with Image.open(f"images/{number:03}.png") as image:
                    frame = av.VideoFrame.from_ndarray(np.asarray(image.convert("RGB")), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        rows = best(run(f"clip.mkv {choice} --threshold 0.25"))
        results = dict(table(rows))
        results["seconds"] = [float(row["seconds"]) for row in rows]
        del results["image"]
        return results


def heatmaps() -> Results:
    """Which patches of an image match a reference."""
    from idmetric import IDSim

    try:
        from idmetric.matching.heatmaps import heatmaps as heatmaps_of
    except ImportError:
        from idmetric.metric.heatmap import heatmaps as heatmaps_of

    with workspace():
        metric = IDSim("tiny", device="cpu")
        torch.manual_seed(0)
        return {"heat": heatmaps_of(metric, view("zoe", 0), view("zoe", 1))[0]}


CASES = [
    same("whole images", whole_images, needs=EXTRA),
    same("regions/coco", coco_boxes, needs=EXTRA),
    same("regions/polygons", coco_polygons, 5e-6, needs=(*EXTRA, "pycocotools")),
    same("regions/csv", csv_boxes, needs=EXTRA),
    same("regions/turned", turned, needs=("scipy",)),
    same("cast", cast, needs=EXTRA),
    same("python", in_python, 5e-6, needs=("scipy",)),
    same("gradients", with_gradients, 1e-5, relative=True, needs=("scipy",)),
    Case("frames", frames, None, gone="a folder of frames is a folder of images; clips are videos"),
    Case("video", partial(video, "--frames 3fps"), partial(video, "--rate 3"), needs=(*EXTRA, "av")),
    same("heatmaps", heatmaps, 5e-6),
]
