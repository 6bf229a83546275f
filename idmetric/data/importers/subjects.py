"""Subjects200K and Subjects2k: generated pairs that should show one subject.

Subjects200K (Tan et al., OminiControl) stores each pair as one composite image with a model's quality ratings 0-5.
Subjects2k (ID-Sim, appendix D.2) has 2,000 of its pairs with human votes; a pair is "same" if at least 0.8 of the votes
say so. A pair is a group with the slots anchor and candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from idmetric.data.importers.images import content, png
from idmetric.data.importers.run import Job, scalars
from idmetric.data.importers.source import SourceError
from idmetric.data.manifest.table import Row
from idmetric.metric.images.read import ImageReadError, read_image

ENGINE = "FLUX.1"  # OminiControl, section 4: both images are generated in one canvas
QUALITIES = ("compositeStructure", "objectConsistency", "imageQuality")
_BEST = 5.0  # a good pair has the highest rating in all three
_LARGEST_PADDING = 64


def subjects2k(job: Job) -> Iterator[Row]:
    """Two rows for each pair with a human label."""
    source = job.open("reference_image", "test_image", "binary_label")
    for record in job.rows(source):
        values = record.values
        group = f"{job.name}/{record.number if values.get('pair_id') is None else values['pair_id']}"
        label = str(values["binary_label"])
        if label not in ("0", "1"):
            raise SourceError(f"{record.where}, column 'binary_label': {label!r} is not 0 or 1")
        shown = {"identity": group if label == "1" else f"{group}/other", "label": float(label)}
        votes = {"human_votes": [int(v) for v in values.get("human_votes") or ()]}
        yield from record.group(
            group,
            {"anchor": (values["reference_image"], {"identity": group}), "candidate": (values["test_image"], shown)},
            split=record.shard.split,
            engine=ENGINE,
            parameters={"source": source.label, **scalars(values, "pair_id", "binary_label"), **votes},
        )


def subjects200k(job: Job) -> Iterator[Row]:
    """Two rows for each pair of the best quality, cut from its composite."""
    source = job.open("image")
    for record in job.rows(source):
        values = record.values
        quality, about = values.get("quality_assessment") or {}, values.get("description") or {}
        if any((quality.get(name) or 0) < _BEST for name in QUALITIES):
            continue
        data, path = content(values["image"])
        try:
            sides = split_composite(str(source.locate(path)) if path else data or b"")
        except (SourceError, ImageReadError) as error:
            record.reject(str(error))
            continue
        group, words = f"{job.name}/{record.number:06d}", [{"text": about.get(f"description_{k}")} for k in (0, 1)]
        parameters = {"source": source.label, "row": record.number, "collection": values.get("collection")}
        yield from record.group(
            group,
            {"anchor": (sides[0], words[0]), "candidate": (sides[1], {**words[1], "label": _BEST})},
            identity=group,
            split=record.shard.split,
            category=about.get("category"),
            engine=ENGINE,
            parameters={**parameters, "item": about.get("item")},
        )


def split_composite(image: bytes | str) -> tuple[bytes, bytes]:
    """The left and the right image of a composite, as PNG: two squares side by side with equal padding.

    The padding p follows from the size: width = 2 s + 3 p and height = s + 2 p give p = 2 height - width (16 in the
    published set, for s = 512 and 1024). If width = 2 height, each square may have its own frame: 8 pixels on each
    side are cut if they are of one color.

    Raises:
        SourceError: if the size does not fit this layout.
        ImageReadError: if the image cannot be read.
    """
    whole = read_image(image)
    width, height = whole.size
    padding = 2 * height - width

    if padding == 0:
        frame = 8 if _is_framed(whole.crop((0, 0, height, height)), 8) else 0
        boxes = [(x + frame, frame, x + height - frame, height - frame) for x in (0, height)]
    elif 0 < padding <= _LARGEST_PADDING and height > 2 * padding:
        side = height - 2 * padding
        boxes = [(x, padding, x + side, padding + side) for x in (padding, 2 * padding + side)]
    else:
        raise SourceError(f"{width} x {height} pixels are not two squares with equal padding")

    left, right = (png(whole.crop(box)) for box in boxes)
    return left, right


def _is_framed(square: Any, frame: int) -> bool:
    """Whether the outer pixels are of one color, apart from compression artifacts."""
    pixels = np.asarray(square, dtype=float)
    inside = np.zeros(pixels.shape[:2], dtype=bool)
    inside[frame:-frame, frame:-frame] = True
    return bool(pixels.shape[0] > 2 * frame and np.ptp(pixels[~inside], axis=0).max() <= 16)
