"""How well a metric's own patches find a subject among distractors: intersection over union of the best box.

    python benchmarks/detect_patches.py --data DATA --model tiny --scenes 120

A scene is a photo of a landscape, 448 x 448 pixels, with four objects of ETH-80, cut out by their masks, one in each
quarter, their longer side 25 to 45 % of the scene's. One is the subject, in a view that is not among the references.
DATA holds dev/eth80/OBJECT/{0..7}.jpg with masks {0..7}_mask.png, and train/backgrounds/*.jpg.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from idmetric import load
from idmetric.matching.detect_patches import PatchDetector

SIDE = 448
VIEWS = 8
Box = tuple[float, float, float, float]


def cut_out(folder: Path, view: int) -> tuple[Image.Image, Image.Image]:
    """An object and its mask, both cut to the mask's box."""
    photo = Image.open(folder / f"{view}.jpg").convert("RGB")
    mask = Image.open(folder / f"{view}_mask.png").convert("L").point(lambda value: 255 * (value > 127))
    box = mask.getbbox()
    return photo.crop(box), mask.crop(box)


def background(photos: list[Path], rng: np.random.Generator) -> Image.Image:
    """A random square of a random photo."""
    photo = Image.open(photos[rng.integers(len(photos))]).convert("RGB")
    side = min(photo.size)
    left = int(rng.integers(photo.width - side + 1))
    top = int(rng.integers(photo.height - side + 1))
    return photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))


def scene(objects: list[Path], subject: int, views: range, picture: Image.Image, rng: np.random.Generator) -> Box:
    """Paste a subject and three other objects into a picture; return the subject's box."""
    others = [number for number in range(len(objects)) if number != subject]
    numbers = [subject, *rng.choice(others, 3, replace=False)]
    half = SIDE // 2
    boxes: list[Box] = []
    for number, quarter in zip(numbers, rng.permutation(4), strict=True):
        photo, mask = cut_out(objects[number], int(rng.integers(views.start, views.stop)))
        scale = SIDE * rng.uniform(0.25, 0.45) / max(photo.size)
        width = max(1, round(photo.width * scale))
        height = max(1, round(photo.height * scale))
        left = int(quarter % 2 * half + rng.integers(half - width + 1))
        top = int(quarter // 2 * half + rng.integers(half - height + 1))
        picture.paste(photo.resize((width, height)), (left, top), mask.resize((width, height)))
        boxes.append((left, top, left + width, top + height))
    return boxes[0]


def overlap(a: Box, b: Box) -> float:
    """Intersection over union."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    shared = width * height
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return shared / (areas - shared)


def measured(
    detector: PatchDetector, objects: list[Path], photos: list[Path], *, count: int, scenes: int, seed: int
) -> dict[str, list[float]]:
    """Intersections over union of the best box and the subject's in scenes, by `count` references, and of baselines."""
    rng = np.random.default_rng(seed)
    quarter = SIDE / 4
    baselines = {
        "whole image": (0.0, 0.0, SIDE, SIDE),
        "center, half the side": (quarter, quarter, 3 * quarter, 3 * quarter),
    }
    overlaps: dict[str, list[float]] = {name: [] for name in (*baselines, "patches", "patches, no masks")}
    for number in range(scenes):
        subject = number % len(objects)
        picture = background(photos, rng)
        truth = scene(objects, subject, range(count, VIEWS), picture, rng)
        for name, box in baselines.items():
            overlaps[name].append(overlap(box, truth))
        references = [objects[subject] / f"{view}.jpg" for view in range(count)]
        masks = [objects[subject] / f"{view}_mask.png" for view in range(count)]
        for name, given_masks in (("patches", masks), ("patches, no masks", None)):
            boxes = detector.detect(picture, references=references, masks=given_masks).boxes.tolist()
            overlaps[name].append(overlap(tuple(boxes[0]), truth) if boxes else 0.0)
    return overlaps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--scenes", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--level", type=float, default=0.7)
    args = parser.parse_args()

    objects = sorted((args.data / "dev" / "eth80").iterdir())
    photos = sorted((args.data / "train" / "backgrounds").glob("*.jpg"))
    detector = PatchDetector(metric=load(args.model), level=args.level)
    for count in (1, 3):
        overlaps = measured(detector, objects, photos, count=count, scenes=args.scenes, seed=args.seed)
        for name, values in overlaps.items():
            hits = np.mean(np.array(values) >= 0.5)
            print(f"{count} references  {name:22}  mean IoU {np.mean(values):.3f}  IoU >= .5 in {hits:.1%}", flush=True)


if __name__ == "__main__":
    main()
