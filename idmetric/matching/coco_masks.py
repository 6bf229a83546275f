"""Masks as COCO's files state them, drawn by pycocotools when they are used: masks of many images fill the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.files import need
from idmetric.metric.images import MAX_PIXELS


@dataclass(frozen=True, eq=False)
class CocoMask:
    """A mask of a whole image.

    Attributes:
        segmentation: outlines [[x, y, x, y, ...], ...] in pixels, the mask being all that is inside of one of them; or
            a run-length code {"size": [H, W], "counts": compressed text or a list of numbers}.
    """

    segmentation: Any

    def drawn(self, height: int, width: int, image_size: tuple[int, int] | None = None) -> Image.Image:
        """The mask of an image of this height and width, 0 and 255.

        Args:
            image_size: width and height of the image that outlines are of, if it has another size.

        Raises:
            ValueError: for a damaged code or outline, for one that is far outside of its image, and an empty mask.
        """
        if isinstance(self.segmentation, Mapping):
            mask = decode(self.segmentation)
        else:
            if image_size is None:
                image_size = (width, height)
            mask = self._filled(height, width, image_size)
        if not mask.any():
            raise ValueError("it selects no pixel")
        return Image.fromarray(mask).convert("L").resize((width, height), Image.Resampling.NEAREST)

    def _filled(self, height: int, width: int, image_size: tuple[int, int]) -> NDArray[np.bool_]:
        need("eval", "drawing polygons", pycocotools="pycocotools")
        from pycocotools import mask as codec

        size = np.array([width, height])
        outlines = []
        for outline in self.segmentation:
            corners = np.array(outline, np.float64)
            if corners.ndim != 1 or len(corners) < 6 or len(corners) % 2:
                raise ValueError(f"a polygon has x and y of three corners or more, not {outline!r:.60}")
            corners = corners.reshape(-1, 2) * size / image_size
            is_near = (corners >= -size) & (corners <= 2 * size)
            if not is_near.all():  # which would take pycocotools any memory
                raise ValueError(f"an outline leaves its {width} x {height} pixels by more than their size")
            outlines.append(corners.ravel().tolist())
        codes = codec.frPyObjects(outlines, height, width)
        code = codec.merge(codes)
        return np.asarray(codec.decode(code) > 0)


def decode(code: Mapping[str, Any]) -> NDArray[np.bool_]:
    """The mask (H, W) of a run-length code; ValueError for one that is damaged, or larger than images may be."""
    need("eval", "reading run-length codes", pycocotools="pycocotools")
    from pycocotools import mask as codec

    damaged = f"not a run-length code with size and counts: {str(code)[:60]}"
    try:
        height, width = map(int, code["size"])
        counts = code["counts"]
        if not 0 < height * width <= MAX_PIXELS:  # a short text may stand for any number of pixels
            raise ValueError(damaged)
        if isinstance(counts, list):
            counts = codec.frPyObjects(dict(code), height, width)["counts"]
        mask = codec.decode({"size": [height, width], "counts": counts}) > 0
        written = codec.encode(np.asfortranarray(mask, dtype=np.uint8))["counts"]
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(damaged) from error
    if written not in (counts, str(counts).encode()):  # runs that end too early leave the other pixels undefined
        raise ValueError(damaged)
    return np.asarray(mask)
