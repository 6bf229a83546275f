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

from collections.abc import Iterator, Sequence

from PIL import Image

from idmetric.data.importers.images import png
from idmetric.data.importers.run import ImportJob, as_name, scalars
from idmetric.data.importers.source import read_json
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row
from idmetric.data.split import split_word
from idmetric.matching.coco_masks import CocoMask
from idmetric.metric.images import open_file
from idmetric.metric.paths import matching


def rows(job: ImportJob) -> Iterator[Row]:
    """A row for each photo of one garment, with its mask."""
    root = job.folder()
    files = matching(root, "annos/*.json", "*/annos/*.json")
    if not files:
        raise ManifestError(f"{root}: no annos/*.json in it or in its folders train, validation")
    for path in job.limited(files, root.name):
        annotation = read_json(path, dict)
        items = {key: value for key, value in annotation.items() if key.startswith("item")}
        is_complete = all(isinstance(item, dict) and type(item.get("style")) is int for item in items.values())
        pair = as_name(annotation.get("pair_id"), f"{path}: pair_id")
        if pair is None or not is_complete:
            raise ManifestError(f"{path}: not an annotation of DeepFashion2: no pair_id, or an item without style")
        if len(items) != 1:
            continue
        [(key, item)] = items.items()
        if item["style"] <= 0:
            continue

        split = path.parent.parent.name
        photo = path.parent.parent / "image" / f"{path.stem}.jpg"
        try:
            with open_file(photo) as image:  # its stored size, before EXIF turns it, is the one that masks have
                mask = _mask(item["segmentation"], image.size)
        except (OSError, ValueError, KeyError, TypeError) as error:
            job.rejected.append(f"{path}, {key}: {error}")
            continue
        yield job.row(
            f"{pair}_{item['style']}",
            f"{split}/{path.stem}/{key}",
            photo,
            split=split_word(split),
            domain="fashion",
            category=item.get("category_name"),
            parameters={**scalars(annotation), **scalars(item, "category_name")},
            **job.keep(png(mask), "mask"),
        )


def _mask(polygons: Sequence[Sequence[float]], size: tuple[int, int]) -> Image.Image:
    """The union of polygons [x1, y1, x2, y2, ...] as a mask, "L", 0 or 255, of (width, height)."""
    width, height = size
    return CocoMask(polygons).drawn(height, width)
