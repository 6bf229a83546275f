"""DeepFashion2: garments in photos of shops and customers, with masks from its polygons (Ge et al., CVPR 2019).

The published layout is SPLIT/image/000001.jpg and SPLIT/annos/000001.json with SPLIT train or validation. An annotation
holds source (shop or user), pair_id, and item1, item2, ... with style, category_name and segmentation, a list of
polygons [x1, y1, x2, y2, ...]. Two items show the same garment if their photos have one pair_id and they have one
style above 0, so an identity is pair_id and style. Items of style 0 have no counterpart and are left out.

A photo with several garments shows no single one, so only photos with one item are taken.
ID-Sim takes it as an instance dataset (Table 1), and as one of two base sets of identity edits, because it has clean
masks (A.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from idmetric.data.importers.run import ImportJob, png
from idmetric.data.importers.source import Row, name_of, read_json, scalars
from idmetric.data.manifest import ManifestError
from idmetric.data.split import split_word
from idmetric.matching.coco_masks import CocoMask
from idmetric.metric.images import open_file
from idmetric.metric.paths import matching


def deepfashion2(job: ImportJob) -> Iterator[Row]:
    """A row for each photo of one garment, with its mask."""
    root = job.folder()
    files = matching(root, "annos/*.json", "*/annos/*.json")
    if not files:
        raise ManifestError(f"{root}: no annos/*.json in it or in its folders train, validation")
    return job.rows(files, _garment)


def _garment(file: Path) -> list[Row]:
    annotation = read_json(file, dict)
    items = {key: item for key, item in annotation.items() if key.startswith("item")}
    try:
        styles = [int(item["style"]) for item in items.values()]
        pair = name_of(annotation["pair_id"], f"{file}: pair_id")
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(
            f"{file}: not an annotation of DeepFashion2: no pair_id, or an item without style"
        ) from error
    if pair is None:
        raise ManifestError(f"{file}: not an annotation of DeepFashion2: pair_id is empty")
    if len(items) != 1 or styles[0] <= 0:
        return []

    [(key, item)] = items.items()
    split = file.parent.parent.name
    photo = file.parent.parent / "image" / f"{file.stem}.jpg"
    try:
        with open_file(photo) as image:  # its stored size, before EXIF turns it, is the one that masks have
            mask = CocoMask(item["segmentation"]).drawn(image.height, image.width)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{key}: {error}") from error
    row: Row = {
        "identity": f"{pair}_{styles[0]}",
        "id": f"{split}/{file.stem}/{key}",
        "path": photo,
        "mask": png(mask),
        "split": split_word(split),
        "domain": "fashion",
        "category": item.get("category_name"),
        "parameters": scalars(annotation) | scalars(item, "category_name"),
    }
    return [row]
