"""Small folders in the layout of TIGER-Lab/MMEB-train and TIGER-Lab/MMEB-eval, with rendered images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

TOKEN = "<|image_1|>\n"
COLORS = ("red", "green", "blue", "yellow", "purple", "gray")


def image(folder: Path, name: str, seed: int) -> str:
    """An image of 56 x 56 pixels; returns its path in the dataset."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    array = np.broadcast_to(rng.integers(0, 255, 3), (56, 56, 3)).astype(np.uint8).copy()
    array[:28] = rng.integers(0, 255, (28, 56, 3))
    Image.fromarray(array).save(path)
    return name


def table(folder: Path, subset: str, split: str, columns: dict[str, list[Any]]) -> None:
    """A table of a subset, named as on the Hub."""
    path = folder / subset / f"{split}-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_eval(folder: Path) -> Path:
    """Four subsets: image -> text, text -> image, image and text -> image and text, and one that is not MMEB's."""
    pictures, count = folder / "images", 6

    def columns(queries: list[tuple[str, str]], targets: list[list[tuple[str, str]]]) -> dict[str, list[Any]]:
        return {
            "qry_text": [text for text, _ in queries], "qry_img_path": [path for _, path in queries],
            "tgt_text": [[text for text, _ in cells] for cells in targets],
            "tgt_img_path": [[path for _, path in cells] for cells in targets],
        }  # fmt: skip

    shown = [image(pictures, f"ImageNet-1K/{k}.png", k) for k in range(count)]
    asks = f"{TOKEN}Represent the given image for classification\n"
    classes = [[(COLORS[(k + j) % count], "") for j in range(count)] for k in range(count)]
    table(folder, "ImageNet-1K", "test", columns([(asks, path) for path in shown], classes))

    found = [image(pictures, f"MSCOCO_t2i/{k}.png", 20 + k) for k in range(count)]
    asks = "Find me an everyday image that matches the given caption: "
    ranked = [[(f"{TOKEN}Represent the given image.", found[(k + j) % count]) for j in (0, 1, 2, 1)]
              for k in range(count)]  # fmt: skip
    table(folder, "MSCOCO_t2i", "test", columns([(asks + COLORS[k], "") for k in range(count)], ranked))

    pages = [image(pictures, f"OVEN/{k}.png", 40 + k) for k in range(2 * count)]
    queries = [(f"{TOKEN}What is it?\n", pages[k]) for k in range(count)]
    ranked = [[(f"{TOKEN}{COLORS[(k + j) % count]} things", pages[count + (k + j) % count]) for j in range(4)]
              for k in range(count)]  # fmt: skip
    table(folder, "OVEN", "test", columns(queries, ranked))

    table(
        folder, "Mine", "test", columns([("a word", "")] * 2, [[("one", ""), ("two", "")], [("two", ""), ("one", "")]])
    )
    return folder


def write_train(folder: Path, count: int = 8) -> Path:
    """Three subsets, in both variants of instructions; the first has hard negatives."""
    for variant, asks in (("original", "Identify the color"), ("diverse_instruction", "Say which color it is")):
        shown = [image(folder, f"images/ImageNet_1K/{k}.png", 100 + k) for k in range(count)]
        names = [COLORS[k % 3] for k in range(count)]
        table(folder, "ImageNet_1K", variant, {
            "qry": [f"{TOKEN}{asks}\n"] * count, "qry_image_path": shown, "pos_text": names,
            "pos_image_path": [""] * count, "neg_text": [COLORS[(k + 1) % 3] for k in range(count)],
            "neg_image_path": [""] * count,
        })  # fmt: skip
        shown = [image(folder, f"images/MSCOCO/{k}.png", 200 + k) for k in range(count)]
        table(folder, "MSCOCO_t2i", variant, {
            "qry": [f"Find the image: number {k}" for k in range(count)], "qry_image_path": [""] * count,
            "pos_text": [f"{TOKEN}Represent the given image."] * count, "pos_image_path": shown,
        })  # fmt: skip
        pages = [image(folder, f"images/WebQA/{k}.png", 300 + k) for k in range(count)]
        table(folder, "WebQA", variant, {
            "qry": [f"Find a page: question {k}" for k in range(count)], "qry_image_path": [""] * count,
            "pos_text": [f"{TOKEN}Represent the page: {k}" for k in range(count)], "pos_image_path": pages,
            "neg_text": [None] * count, "neg_image_path": [None] * count,
        })  # fmt: skip
    return folder
