"""Boxes that data sets draw around objects, and the parts of photos within them."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image

Box = tuple[int, int, int, int]  # x and y of the top left corner, width, height


def union(boxes: Sequence[Box], size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """The smallest box (left, top, right, bottom) around all boxes, cut at the image's (width, height); None if empty.

    As `_crop_resize` of ILIAS's feature extraction does.
    """
    left, top = (max(0, min(box[k] for box in boxes)) for k in (0, 1))
    right, bottom = (min(size[k], max(box[k] + box[k + 2] for box in boxes)) for k in (0, 1))
    return (left, top, right, bottom) if left < right and top < bottom else None


def cropped(image: Image.Image, boxes: Sequence[Box]) -> bytes | None:
    """The part of an upright image around all boxes as PNG, kept without loss; None if they lie outside of it."""
    inside = union(boxes, image.size)
    if inside is None:
        return None
    file = io.BytesIO()
    image.crop(inside).save(file, format="PNG")
    return file.getvalue()
