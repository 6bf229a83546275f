"""COCO's run-length codes of masks: {"size": [H, W], "counts": compressed text or a list of numbers}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.files.hints import need


@dataclass(frozen=True, eq=False)
class RunLengths:
    """A mask as a run-length code, decoded when it is used, as masks of many images fill the memory.

    Raises:
        ValueError: for a code without a size.
        ImportError: without pycocotools, which the extra `match` brings.
    """

    code: Mapping[str, Any]

    def __post_init__(self) -> None:
        need("match", "reading run-length codes", pycocotools="pycocotools")
        sides = self.code.get("size")
        if not isinstance(sides, list | tuple) or len(sides) != 2 or not all(type(side) is int for side in sides):
            raise ValueError(f"a run-length code has a size [height, width], not {sides}")

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the image that it belongs to."""
        height, width = self.code["size"]
        return width, height

    def drawn(self, height: int, width: int, image_size: tuple[int, int]) -> Image.Image:
        """The mask of an image of this height and width; ValueError for a damaged code."""
        mask = Image.fromarray(decode(self.code))
        return mask.convert("L").resize((width, height), Image.Resampling.NEAREST)


def decode(code: Mapping[str, Any]) -> NDArray[np.bool_]:
    """The mask (H, W) of a run-length code; ValueError for a damaged one."""
    need("match", "reading run-length codes", pycocotools="pycocotools")
    from pycocotools import mask

    try:
        height, width = code["size"]
        if isinstance(code["counts"], list):
            if sum(code["counts"]) != height * width:  # pycocotools would leave pixels as they are in memory
                raise ValueError
            code = mask.frPyObjects(code, height, width)
        return np.asarray(mask.decode(code), dtype=bool)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a run-length code with size and counts: {str(code)[:60]}") from error
