"""COCO's run-length codes of masks: {"size": [H, W], "counts": compressed text or a list of numbers}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.images.kinds import MAX_PIXELS


@dataclass(frozen=True, eq=False)
class RunLengths:
    """A mask as a run-length code, decoded when it is used, as masks of many images fill the memory."""

    code: Mapping[str, Any]

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> RunLengths:
        """The code of a mask (H, W)."""
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
        mask = Image.fromarray(decode(self.code))
        return mask.convert("L").resize((width, height), Image.Resampling.NEAREST)


def decode(code: Mapping[str, Any]) -> NDArray[np.bool_]:
    """The mask (H, W) of a run-length code; ValueError for one that is damaged, or larger than images may be."""
    try:
        height, width = code["size"]
        if height * width > MAX_PIXELS:  # a short text may stand for any number of pixels
            raise ValueError
        counts = code["counts"]
        runs = counts
        if not isinstance(counts, list):
            runs = _runs(counts)
        if min(runs) < 0 or sum(runs) != height * width:
            raise ValueError
        is_selected = np.arange(len(runs)) % 2 == 1  # the first run is outside of the mask
        pixels = np.repeat(is_selected, runs)
        return pixels.reshape(width, height).T  # runs go down the columns
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"not a run-length code with size and counts: {str(code)[:60]}") from error


def _runs(counts: str | bytes) -> list[int]:
    """The numbers in a compressed text: five bits in each character, the lowest first; from the fourth number on, what
    is added to the one before the last.
    """
    text = counts.encode("ascii") if isinstance(counts, str) else counts
    runs: list[int] = []
    value = shift = 0
    for character in text:
        digit = character - 48
        value |= (digit & 31) << shift
        shift += 5
        if digit & 32:  # more bits follow
            continue
        if digit & 16:
            value -= 1 << shift
        if len(runs) > 2:
            value += runs[-2]
        runs.append(value)
        value = shift = 0
    return runs
