"""Subjects200K and Subjects2k: generated pairs that should show one subject.

Subjects200K (Tan et al., OminiControl) stores each pair as one composite image with a model's quality ratings 0-5.
Subjects2k (ID-Sim, appendix D.2) has 2,000 of its pairs with human votes; a pair is "same" if at least 0.8 of the votes
say so. A pair is a group with the slots anchor and candidate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from PIL import Image

from idmetric.data.importers.images import content, png
from idmetric.data.importers.run import Job, scalars
from idmetric.data.importers.source import SourceError
from idmetric.data.manifest.table import Row
from idmetric.metric.images.read import ImageReadError, read_image

ENGINE = "FLUX.1"  # OminiControl, section 4: both images are generated in one canvas
QUALITIES = ("compositeStructure", "objectConsistency", "imageQuality")
_BEST = 5.0  # a good pair has the highest rating in all three
_LARGEST_PADDING = 64
_FRAME = 8  # pixels


def subjects2k(job: Job) -> Iterator[Row]:
    """Two rows for each pair with a human label."""
    source = job.open("reference_image", "test_image", "binary_label")
    for record in job.records(source):
        values = record.values
        pair = values.get("pair_id")
        group = str(record.number if pair is None else pair)
        label = float(values["binary_label"])
        candidate_identity = group if label == 1 else f"{group}/other"
        votes = [int(vote) for vote in values.get("human_votes") or ()]
        yield from record.group(
            group,
            {
                "anchor": (values["reference_image"], {"identity": group}),
                "candidate": (values["test_image"], {"identity": candidate_identity, "label": label}),
            },
            split=record.shard.split,
            engine=ENGINE,
            parameters={"source": source.label, **scalars(values, "pair_id", "binary_label"), "human_votes": votes},
        )


def subjects200k(job: Job) -> Iterator[Row]:
    """Two rows for each pair of the best quality, cut from its composite."""
    source = job.open("image")
    for record in job.records(source):
        values = record.values
        ratings = values.get("quality_assessment") or {}
        if any((ratings.get(quality) or 0) < _BEST for quality in QUALITIES):
            continue
        data, path = content(values["image"])
        try:
            left, right = split_composite(str(source.locate(path)) if path else data or b"")
        except (SourceError, ImageReadError) as error:
            record.reject(error)
            continue

        group = f"{record.number:06d}"
        about = values.get("description") or {}
        yield from record.group(
            group,
            {
                "anchor": (left, {"text": about.get("description_0")}),
                "candidate": (right, {"text": about.get("description_1"), "label": _BEST}),
            },
            identity=group,
            split=record.shard.split,
            category=about.get("category"),
            engine=ENGINE,
            parameters={**record.origin, "collection": values.get("collection"), "item": about.get("item")},
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
    composite = read_image(image)
    width, height = composite.size
    padding = 2 * height - width
    if padding < 0 or padding > _LARGEST_PADDING or height <= 2 * padding:
        raise SourceError(f"{width} x {height} pixels are not two squares with equal padding")

    side = height - 2 * padding
    left = composite.crop((padding, padding, padding + side, padding + side))
    right = composite.crop((2 * padding + side, padding, 2 * padding + 2 * side, padding + side))
    if padding == 0 and side > 2 * _FRAME and _is_framed(left):
        inside = (_FRAME, _FRAME, side - _FRAME, side - _FRAME)
        left, right = left.crop(inside), right.crop(inside)
    return png(left), png(right)


def _is_framed(square: Image.Image) -> bool:
    """Whether the outer pixels are of one color, apart from compression artifacts."""
    pixels = np.array(square)
    pixels[_FRAME:-_FRAME, _FRAME:-_FRAME] = pixels[0, 0]
    return bool(np.ptp(pixels, axis=(0, 1)).max() <= 16)
