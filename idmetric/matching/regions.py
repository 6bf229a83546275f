"""Regions: the parts of an image that may show a subject, and how they are cut out.

`idmetric.matching.region_files` reads them from files.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from idmetric.matching.codes import Polygons, RunLengths
from idmetric.metric.errors import RequestError
from idmetric.metric.images import (
    STORED,
    WHITE,
    Color,
    ImageReadError,
    Outside,
    Picture,
    describe,
    is_array,
    is_image_like,
)
from idmetric.metric.masks import Labeled, MaskLike, box_of, cut_out, same_shape
from idmetric.store import settings_digest

Box = tuple[float, float, float, float]
_ROUNDING = 1.0  # pixels by which a box may lie outside of its image
_SLACK = 0.01  # of a side, by which a box in fractions may


@dataclass(frozen=True)
class Region:
    """A part of an image.

    Attributes:
        box: left, top, right, bottom in pixels of the upright image (right and bottom excluded), or, if none of the
            four is above 1, in fractions of its sides. None: the box of the mask, or the whole image.
        mask: of the whole image, as `Embedder.embed` takes masks; white = the subject.
        label: the name or class word of the subject that is expected, or "".
        score: a detector's confidence in [0, 1]; 1 for a given region.
        image_size: width and height of the image that the box was drawn in, where known. The box is in its pixels, and
            scaled to an image of another size.

    Raises:
        RequestError: for an empty box.
    """

    box: Box | None = None
    mask: MaskLike | Polygons | RunLengths | None = None
    label: str = ""
    score: float = 1.0
    image_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.box is None:
            return
        left, top, right, bottom = self.box
        if not (left < right and top < bottom):  # also for NaN
            raise RequestError(f"{self} is empty: give left, top, right, bottom")

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole image."""
        return self.box is None and self.mask is None

    def __str__(self) -> str:
        name = self.label or "region"
        if self.box is None:
            return name
        sides = ", ".join(f"{side:g}" for side in self.box)
        return f"{name} ({sides})"


RegionLike = Region | Sequence[float] | MaskLike
Detector = Callable[[Picture], Sequence[Region]]
Regions = str | os.PathLike[str] | Mapping[str, Sequence[RegionLike]] | Sequence[Any] | Detector | None


def as_region(region: Any) -> Region:
    """A `Region`; four numbers are its box, and a mask is its mask.

    Raises:
        RequestError: for an empty box, and for other objects.
    """
    if isinstance(region, Region):
        return region
    if is_box(region):
        left, top, right, bottom = map(float, region)
        return Region((left, top, right, bottom))
    if is_image_like(region) or isinstance(region, Labeled):
        return Region(mask=region)
    raise RequestError(f"{region!r:.80} is not a region: give left, top, right, bottom, or a mask, or a Region")


def is_box(region: Any) -> bool:
    """Whether this is a sequence of four numbers."""
    if is_array(region):
        return region.ndim == 1 and len(region) == 4
    if not isinstance(region, Sequence) or isinstance(region, str | bytes):
        return False
    are_numbers = [isinstance(side, Real) for side in region]
    return len(region) == 4 and all(are_numbers)


# Cutting


class Piece(NamedTuple):
    """A region, cut out of its image.

    Attributes:
        pixels: with the context, mask and padding of its `Cut`. Pixels of a tensor keep their graph.
        cover: the mask's coverage (h, w) of them; None without a mask.
        box: of the region in pixels of its image, without context.
    """

    pixels: Picture
    cover: Tensor | None
    box: Box

    def key(self, cut: Cut) -> str:
        """A digest of what was cut out and how, which no other piece of its image has."""
        facts = {"cut": str(cut), "box": str(self.box)}
        if self.cover is not None:
            facts["cover"] = hashlib.sha256(self.cover.numpy().tobytes()).hexdigest()
        return settings_digest(facts)


@dataclass(frozen=True)
class Cut:
    """How regions are cut out of their images.

    Attributes:
        margin: context around a box, as a share of its width on the left and right, and of its height above and below.
        square: pad the shorter side of a cut to the longer one.
        fill: color of the padding.
        outside: what becomes of the pixels outside of a region's mask: "black", "white" or "keep".

    Raises:
        ValueError: for a negative margin, or another `outside`.
    """

    margin: float = 0.0
    square: bool = False
    fill: Color = WHITE
    outside: Outside = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.margin < math.inf:
            raise ValueError(f"margin must be 0 or more, got {self.margin}")
        if self.outside not in ("black", "white", "keep"):
            raise ValueError(f"outside of a region's mask must be 'black', 'white' or 'keep', got {self.outside!r}")

    def __str__(self) -> str:
        parts = [f"margin {self.margin:g}", f"outside {self.outside}"]
        if self.square:
            red, green, blue = self.fill
            parts.append(f"square #{red:02x}{green:02x}{blue:02x}")
        return ", ".join(parts)

    def cut(self, picture: Picture, region: Region, name: str = "") -> Piece:
        """Cut a region out of its image.

        Args:
            name: of the image, for messages.

        Raises:
            ImageReadError: for a box outside of the image, and for a mask that cannot be read, or selects nothing of
                the box.
        """
        name = name or describe(picture)
        height, width = size_of(picture)
        box = pixel_box(region, height, width, name)
        mask = region.mask
        if isinstance(mask, Polygons | RunLengths):
            try:
                mask = mask.drawn(height, width, region.image_size or (width, height))
            except ValueError as error:
                raise ImageReadError(name, f"the mask of {region}: {error}") from error
            if mask.getbbox() is None:
                raise ImageReadError(name, f"the mask of {region} selects no pixel")
            mask.info[STORED] = 1  # it needs no turning
        cover: Tensor | None = None
        if mask is not None:
            picture, cover = cut_out(picture, mask, self.outside)
        if box is None:
            box = (0, 0, width, height) if cover is None else box_of(cover)

        left, top, right, bottom = self._with_margin(box, height, width)
        if isinstance(picture, Tensor):
            picture = picture[..., top:bottom, left:right]
        elif (left, top, right, bottom) != (0, 0, width, height):
            picture = picture.crop((left, top, right, bottom))
            picture.info.pop(STORED, None)  # its mask is upright as well
        if cover is not None:
            cover = cover[top:bottom, left:right]
            if not cover.any():
                raise ImageReadError(name, f"the mask of {region} selects nothing within its box")
        if self.square:
            picture, cover = self._squared(picture, cover)
        return Piece(picture, cover, box)

    def _with_margin(self, box: Box, height: int, width: int) -> tuple[int, int, int, int]:
        """A box with its context, in whole pixels within the image; at least a pixel."""
        x0, y0, x1, y1 = box
        left, right = self._widened(x0, x1, width)
        top, bottom = self._widened(y0, y1, height)
        return left, top, right, bottom

    def _widened(self, start: float, end: float, length: int) -> tuple[int, int]:
        context = self.margin * (end - start)
        low = max(round(start - context), 0)
        low = min(low, length - 1)
        high = min(round(end + context), length)
        high = max(high, low + 1)
        return low, high

    def _squared(self, picture: Picture, cover: Tensor | None) -> tuple[Picture, Tensor | None]:
        """Pixels and coverage, padded equally on both ends of the shorter side."""
        height, width = size_of(picture)
        side = max(height, width)
        left = (side - width) // 2
        top = (side - height) // 2
        if isinstance(picture, Tensor):
            color = picture.new_tensor(self.fill)[:, None, None] / 255
            padded = color.expand(3, side, side).clone()
            padded[:, top : top + height, left : left + width] = picture
            squared: Picture = padded
        else:
            squared = Image.new("RGB", (side, side), self.fill)
            squared.paste(picture, (left, top))
        if cover is None:
            return squared, None
        padded_cover = torch.zeros(side, side, dtype=cover.dtype)
        padded_cover[top : top + height, left : left + width] = cover
        return squared, padded_cover


def size_of(picture: Picture) -> tuple[int, int]:
    """Height and width."""
    if isinstance(picture, Tensor):
        return picture.shape[-2], picture.shape[-1]
    return picture.height, picture.width


def pixel_box(region: Region, height: int, width: int, name: str) -> Box | None:
    """The box of a region in pixels of its image, clipped where rounding put it outside by a pixel; None without one.

    Raises:
        ImageReadError: for a box that lies outside of the image, or was drawn in an image of another shape.
    """
    across = along = 1.0
    if region.image_size is not None:
        drawn_width, drawn_height = region.image_size
        if not same_shape((drawn_height, drawn_width), (height, width)):
            raise ImageReadError(
                name,
                f"{region} is of an image of {drawn_width} x {drawn_height} pixels, this one has {width} x {height}: "
                "give regions of the upright image",
            )
        across = width / drawn_width
        along = height / drawn_height
    if region.box is None:
        return None
    rounding = _ROUNDING
    if region.image_size is None and are_fractions(region.box):
        across = width
        along = height
        rounding = max(_ROUNDING, _SLACK * width, _SLACK * height)

    left, top, right, bottom = region.box
    box = (left * across, top * along, right * across, bottom * along)
    x0 = max(box[0], 0.0)
    y0 = max(box[1], 0.0)
    x1 = min(box[2], float(width))
    y1 = min(box[3], float(height))
    outside = max(x0 - box[0], y0 - box[1], box[2] - x1, box[3] - y1)
    if outside > rounding or x0 >= x1 or y0 >= y1:
        raise ImageReadError(
            name, f"{region} lies outside of its {width} x {height} pixels: boxes are left, top, right, bottom"
        )
    return x0, y0, x1, y1


def are_fractions(box: Box) -> bool:
    """Whether a box is in fractions of the image's sides, perhaps above 1 by mistake, and not in pixels."""
    if max(box) <= 1:
        return True
    is_whole = [float(side).is_integer() for side in box]
    return max(box) < 2 and not all(is_whole)
