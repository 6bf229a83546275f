"""Masks as annotations state them, drawn when they are used, as masks of many images fill the memory.

COCO's run-length codes, {"size": [H, W], "counts": compressed text or a list of numbers}, and polygons, with the
pixels that pycocotools gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.files import need
from idmetric.metric.images import MAX_PIXELS

_LONGEST_OUTLINE = 10_000_000  # pixels: pycocotools takes 80 bytes for each while it draws


@dataclass(frozen=True, eq=False)
class RunLengths:
    """A mask as a run-length code."""

    code: Mapping[str, Any]

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> RunLengths:
        """The code of a mask (H, W)."""
        need("eval", "writing run-length codes", pycocotools="pycocotools")
        from pycocotools import mask as codec

        code = codec.encode(np.asfortranarray(mask, dtype=np.uint8))
        return cls({"size": code["size"], "counts": code["counts"].decode()})

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the image that it belongs to."""
        height, width = map(int, self.code["size"])
        return width, height

    def drawn(self, height: int, width: int, image_size: tuple[int, int]) -> Image.Image:
        """The mask of an image of this height and width; ValueError for a damaged code."""
        mask = Image.fromarray(decode(self.code)).convert("L")
        return mask.resize((width, height), Image.Resampling.NEAREST)


@dataclass(frozen=True)
class Polygons:
    """A mask as outlines, x, y, x, y, ... each.

    Attributes:
        outlines: in pixels of an image; a region is all that is inside of one of them.
    """

    outlines: Sequence[Sequence[float]]

    def drawn(self, height: int, width: int, image_size: tuple[int, int]) -> Image.Image:
        """The mask of an image of this height and width, of the pixels that pycocotools' `frPyObjects` gives.

        Args:
            image_size: width and height of the image that the outlines are of.

        Raises:
            ValueError: for an outline that is too far outside of its image, or too long.
        """
        need("eval", "drawing polygons", pycocotools="pycocotools")
        from pycocotools import mask as codec

        drawn_width, drawn_height = image_size
        scale = np.array([width / drawn_width, height / drawn_height])
        scaled = []
        for outline in self.outlines:
            corners = np.reshape(outline, (-1, 2)) * scale
            _check_corners(corners, height, width)
            scaled.append(corners.ravel().tolist())
        codes = codec.frPyObjects(scaled, height, width)
        union = codec.merge(codes)
        return Image.fromarray(decode(union)).convert("L")


def _check_corners(corners: NDArray[np.float64], height: int, width: int) -> None:
    """ValueError for corners (N, 2) that would take pycocotools unbounded memory, or overflow its integers."""
    size = np.array([width, height])
    if (corners < -size).any() or (corners > 2 * size).any():
        raise ValueError(f"an outline leaves its {width} x {height} pixels by more than their size")
    steps = np.abs(np.diff(corners, axis=0, append=corners[:1]))
    if steps.max(axis=1).sum() > _LONGEST_OUTLINE:
        raise ValueError(f"an outline is longer than {_LONGEST_OUTLINE} pixels")


def decode(code: Mapping[str, Any]) -> NDArray[np.bool_]:
    """The mask (H, W) of a run-length code; ValueError for one that is damaged, or larger than images may be."""
    try:
        height, width = code["size"]
        if height * width > MAX_PIXELS:  # a short text may stand for any number of pixels
            raise ValueError
        counts = code["counts"]
        runs = _whole(counts) if isinstance(counts, list) else _runs(counts)
        if min(runs) < 0 or sum(runs) != height * width:
            raise ValueError
        is_selected = np.arange(len(runs)) % 2 == 1  # the first run is outside of the mask
        pixels = np.repeat(is_selected, runs)
        return pixels.reshape(width, height).T  # runs go down the columns
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"not a run-length code with size and counts: {str(code)[:60]}") from error


def _whole(counts: list[Any]) -> list[int]:
    """The numbers in a list of runs; ValueError for one that is not whole."""
    runs = [int(count) for count in counts]
    if any(isinstance(count, bool | str) for count in counts) or runs != counts:
        raise ValueError
    return runs


def _runs(counts: str | bytes) -> list[int]:
    """The numbers in a compressed text: five bits in each character, the lowest first; from the fourth number on, what
    is added to the one before the last; ValueError for a number of more than 30 bits.
    """
    text = counts.encode("ascii") if isinstance(counts, str) else counts
    runs: list[int] = []
    value = shift = 0
    for character in text:
        digit = character - 48
        if shift == 30:
            raise ValueError
        value |= (digit & 31) << shift
        shift += 5
        if digit & 32:  # more bits follow
            continue
        if digit & 16:
            value |= -1 << shift
        if len(runs) > 2:
            value += runs[-2]
        runs.append(value)
        value = shift = 0
    return runs
