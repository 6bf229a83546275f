"""Regions: the parts of an image that may show a subject, and how they are cut out.

`idmetric.matching.region_files` reads them from files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from idmetric.matching.coco_masks import CocoMask
from idmetric.metric.errors import RequestError
from idmetric.metric.images import STORED, ImageReadError, Outside, Picture, is_image_like
from idmetric.metric.masks import Labeled, MaskLike, box_of, cut_out, same_shape
from idmetric.store import settings_digest

Box = tuple[float, float, float, float]
_ROUNDING = 1.0  # pixels by which a box may lie outside of its image


@dataclass(frozen=True)
class Region:
    """A part of an image.

    Attributes:
        box: left, top, right, bottom in pixels of the upright image (right and bottom excluded), or, if none of the
            four is above 1, in fractions of its sides. None: the box of the mask, or the whole image.
        mask: of the whole image, as `Embedder.embed` takes masks; white = the subject.
        label: what it is called, or "".
        image_size: width and height of the image that the box was drawn in, where known. The box is in its pixels, and
            scaled to an image of another size.

    Raises:
        RequestError: for an empty box, and for one in fractions of an image of known size.
    """

    box: Box | None = None
    mask: MaskLike | CocoMask | None = None
    label: str = ""
    image_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.box is None:
            return
        left, top, right, bottom = self.box
        if not (left < right and top < bottom):  # also for NaN
            raise RequestError(f"{self} is empty: give left, top, right, bottom")
        if self.image_size is not None and _are_fractions(self.box):
            raise RequestError(f"{self} is no larger than a pixel of its image: give left, top, ... in pixels")

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole image."""
        return self.box is None and self.mask is None

    def __str__(self) -> str:
        name = self.label or "region"
        if self.box is None:
            return name
        sides = [f"{side:g}" for side in self.box]
        listed = ", ".join(sides)
        return f"{name} ({listed})"


RegionLike = Region | Sequence[float] | MaskLike
Detector = Callable[[Any], Sequence[RegionLike]]  # from an RGB picture to its regions
# a file or folder, the regions of images by their paths, or a list for each image
Regions = str | os.PathLike[str] | Mapping[str, Sequence[RegionLike]] | Sequence[Any] | None


def is_region(region: Any) -> bool:
    """Whether this is a `RegionLike`; an array (N, 4) is a list of boxes."""
    if getattr(region, "ndim", 0) == 2 and region.shape[1] == 4:
        return False
    return isinstance(region, Region | Labeled) or is_box(region) or is_image_like(region)


def is_box(region: Any) -> bool:
    """Whether these are four numbers."""
    if isinstance(region, str | bytes) or not hasattr(region, "__len__"):
        return False
    if len(region) != 4:
        return False
    return all(isinstance(side, Real) or getattr(side, "shape", None) == () for side in region)


def as_region(region: Any) -> Region:
    """A `Region`; four numbers are its box, and a mask is its mask. RequestError for anything else."""
    if isinstance(region, Region):
        return region
    if is_box(region):
        left, top, right, bottom = map(float, region)
        return Region((left, top, right, bottom))
    if not is_region(region):
        raise RequestError(f"{region!r:.80} is not a region: give left, top, right, bottom, or a mask, or a Region")
    return Region(mask=region)


class Piece(NamedTuple):
    """A region, cut out of its image.

    Attributes:
        pixels: those of a tensor keep their graph.
        cover: the mask's coverage (h, w) of them; None without a mask.
        box: of the region in pixels of its image.
    """

    pixels: Picture
    cover: Tensor | None
    box: Box

    def key(self, outside: Outside) -> str:
        """A digest of what was cut out and how, which no other piece of its image has."""
        facts = {"outside": outside, "box": str(self.box)}
        if self.cover is not None:
            data = self.cover.numpy().tobytes()
            facts["cover"] = hashlib.sha256(data).hexdigest()
        return settings_digest(facts)


def cut(picture: Picture, region: Region, name: str, outside: Outside = "keep") -> Piece:
    """Cut a region out of its image.

    Args:
        name: of the image, for messages.
        outside: what becomes of the pixels outside of the region's mask: "keep", "black" or "white".

    Raises:
        ImageReadError: for a box outside of the image, and for a mask that cannot be read, does not fit the image, or
            selects nothing of the box.
    """
    height, width = size_of(picture)
    box = _pixel_box(region, height, width, name)
    cover: Tensor | None = None
    if region.mask is not None:
        mask = region.mask
        if isinstance(mask, CocoMask):
            try:
                mask = mask.drawn(height, width, region.image_size)
            except ValueError as error:
                raise ImageReadError(name, f"the mask of {region}: {error}") from error
            mask.info[STORED] = 1  # it needs no turning
        picture, cover = cut_out(picture, mask, outside)
    if box is None and cover is not None:
        box = box_of(cover)
    if box is None:
        box = (0, 0, width, height)

    left, right = _whole_pixels(box[0], box[2], width)
    top, bottom = _whole_pixels(box[1], box[3], height)
    if isinstance(picture, Tensor):
        picture = picture[..., top:bottom, left:right]
    elif (left, top, right, bottom) != (0, 0, width, height):
        picture = picture.crop((left, top, right, bottom))
        picture.info.pop(STORED, None)  # its mask is upright as well
    if cover is not None:
        cover = cover[top:bottom, left:right]
        if not cover.any():
            raise ImageReadError(name, f"the mask of {region} selects nothing within its box")
    return Piece(picture, cover, box)


def _whole_pixels(start: float, end: float, length: int) -> tuple[int, int]:
    """The ends of a box in whole pixels within the image, at least one apart."""
    low = min(round(start), length - 1)
    high = min(round(end), length)
    return low, max(high, low + 1)


def size_of(picture: Picture) -> tuple[int, int]:
    """Height and width."""
    if isinstance(picture, Tensor):
        return picture.shape[-2], picture.shape[-1]
    return picture.height, picture.width


def _pixel_box(region: Region, height: int, width: int, name: str) -> Box | None:
    """The box of a region in pixels of its image, clipped where rounding put it outside by a pixel; None without one.

    Raises:
        ImageReadError: for a box that lies outside of the image, or was drawn in an image of another shape.
    """
    drawn_width, drawn_height = region.image_size or (width, height)
    if not same_shape((drawn_height, drawn_width), (height, width)):
        raise ImageReadError(
            name,
            f"{region} is of an image of {drawn_width} x {drawn_height} pixels, this one has {width} x {height}: give "
            "regions of the upright image",
        )
    if region.box is None:
        return None
    if _are_fractions(region.box):
        drawn_width = drawn_height = 1

    size = np.array([width, height])
    scale = size / [drawn_width, drawn_height]
    corners = np.reshape(region.box, (2, 2)) * scale
    clipped = corners.clip(0, size)
    left, top, right, bottom = clipped.ravel().tolist()
    is_outside = np.abs(corners - clipped).max() > _ROUNDING
    if is_outside or left >= right or top >= bottom:
        raise ImageReadError(
            name, f"{region} lies outside of its {width} x {height} pixels: boxes are left, top, right, bottom"
        )
    return left, top, right, bottom


def _are_fractions(box: Box) -> bool:
    """Whether a box is in fractions of the image's sides, perhaps above 1 by mistake, and not in pixels."""
    if max(box) <= 1:
        return True
    is_whole = all(float(side).is_integer() for side in box)
    return max(box) < 2 and not is_whole
