"""DeepFashion2: garments in photos of shops and customers, with masks from its polygons (Ge et al., CVPR 2019).

The published layout is SPLIT/image/000001.jpg and SPLIT/annos/000001.json with SPLIT train or validation. An annotation
holds source (shop or user), pair_id, and item1, item2, ... with style, category_name and segmentation, a list of
polygons [x1, y1, x2, y2, ...]. Two items show the same garment if their photos have one pair_id and they have one
style above 0, so an identity is pair_id and style. Items of style 0 have no counterpart and are left out.

A photo with several garments shows no single one: by default only photos with one item are taken; with option
items=all, each item is a row of its own, which its mask selects.
ID-Sim takes it as an instance dataset (Table 1), and as one of two base sets of identity edits, because it has clean
masks (A.2.2).
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from idmetric.data.importers.folders import SPLITS
from idmetric.data.importers.run import Job, scalars
from idmetric.data.importers.source import SourceError, read_json
from idmetric.data.manifest.table import Row
from idmetric.images.opening import open_file

ITEMS = ("one", "all")


def rows(job: Job) -> Iterator[Row]:
    """A row for each garment with its mask."""
    for source in job.sources:
        root = job.folder(source)
        files = sorted([*root.glob("annos/*.json"), *root.glob("*/annos/*.json")])
        if not files:
            raise SourceError(f"{root}: no annos/*.json in it or in its folders train, validation")
        for path in job.progress(files[: job.limit], len(files[: job.limit]), root.name):
            yield from _photo(job, root, path)


def _photo(job: Job, root: Path, path: Path) -> Iterator[Row]:
    about = read_json(path)
    if not isinstance(about, dict) or "pair_id" not in about:
        raise SourceError(f"{path}: not an annotation of DeepFashion2: no pair_id")
    chosen = job.options.get("items", ITEMS[0])
    if chosen not in ITEMS:
        raise SourceError(f"option items={chosen}: {' or '.join(ITEMS)}")
    items = {key: value for key, value in about.items() if key.startswith("item")}
    for key, item in items.items():
        if not isinstance(item, dict) or not isinstance(item.get("style"), int):
            raise SourceError(f"{path}: {key} has no number 'style'")
    paired = {key: item for key, item in items.items() if item["style"] > 0}
    if chosen == "one" and len(items) != 1:
        return

    photo = path.parent.parent / "image" / f"{path.stem}.jpg"
    split = path.parent.parent.name if path.parent.parent != root else root.name
    for key, item in paired.items():
        name = f"{job.name}/{split}/{path.stem}/{key}"
        try:
            mask = mask_of(item.get("segmentation"), _size(photo))
        except (OSError, ValueError) as error:
            job.rejected.append(f"{path}, {key}: {error}")
            continue
        yield Row(
            identity=f"{job.name}/{about['pair_id']}_{item['style']}",
            path=str(photo.absolute()),
            id=name,
            dataset=job.name,
            split=SPLITS.get(split),
            domain="fashion",
            category=item.get("category_name"),
            parameters={**scalars(about), **scalars(item, "category_name")},
            **job.images.keep(_png(mask), f"{name}_mask", Path, "mask"),
        )


def mask_of(polygons: Any, size: tuple[int, int]) -> Image.Image:
    """The union of polygons [x1, y1, x2, y2, ...] as a mask, "L", 0 or 255, of (width, height).

    Raises:
        ValueError: if it is not a list of polygons, or they cover no pixel.
    """
    mask = Image.new("L", size)
    draw = ImageDraw.Draw(mask)
    if not isinstance(polygons, list) or not polygons:
        raise ValueError("no segmentation, a list of polygons")
    for polygon in polygons:
        numbers = isinstance(polygon, list) and all(isinstance(x, int | float) and math.isfinite(x) for x in polygon)
        if not numbers or len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"a polygon has three or more points x, y, not {str(polygon)[:60]}")
        draw.polygon([(float(x), float(y)) for x, y in zip(polygon[::2], polygon[1::2], strict=True)], fill=255)
    if mask.getbbox() is None:
        raise ValueError(f"its polygons are outside the {size[0]}x{size[1]} pixels of the photo")
    return mask


def _size(photo: Path) -> tuple[int, int]:
    """Stored size, before EXIF turns it: the one that polygons refer to, and that masks have."""
    with open_file(photo) as image:
        width, height = image.size
    return width, height


def _png(mask: Image.Image) -> bytes:
    buffer = io.BytesIO()
    mask.save(buffer, format="PNG")
    return buffer.getvalue()
