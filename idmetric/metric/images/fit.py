"""Ways to bring an image of any shape to a model's input size: squash it, crop its center, or pad it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from PIL import Image

from idmetric.metric.images.kinds import RESAMPLE, Color, Sides

if TYPE_CHECKING:
    from torch import Tensor

Resize = Literal["squash", "crop", "hub-crop", "pad"]
CROPS = ("crop", "hub-crop")
_LEAST = 0.1  # of crop_pct; with the next one it bounds the memory of a resized image
_MOST_RATIO = 200  # of the sides of an image that is cropped


@dataclass(frozen=True)
class Fit:
    """How an image is brought to a model's input size.

    Args:
        resize: "squash" changes both sides to the size, whatever the shape. "crop" resizes the shorter side to
            size / crop_pct and cuts out the center, as torchvision's Resize and CenterCrop do. "hub-crop" does the same
            as the image processors of transformers, which round the corner of the center down. "pad" resizes the
            longer side to the size and adds equal borders to the other one.
        crop_pct: share of the shorter side that a crop keeps, 0.1 to 1.

    Raises:
        ValueError: for another `resize`, or a share out of range.
    """

    resize: Resize = "squash"
    crop_pct: float = 1.0

    def __post_init__(self) -> None:
        names = get_args(Resize)
        if self.resize not in names:
            raise ValueError(f"unknown resize {self.resize!r}: choose {', '.join(names)}")
        if not _LEAST <= self.crop_pct <= 1:
            raise ValueError(f"crop_pct = {self.crop_pct}: a share from {_LEAST} to 1 is needed")

    def __str__(self) -> str:
        if self.resize in CROPS:
            return f"{self.resize} {self.crop_pct:g}"
        return self.resize

    def image(self, image: Image.Image, size: Sides, interpolation: str, border: Color) -> Image.Image:
        """An RGB image at `size` (height, width), resized by Pillow; `border` is the color of padding."""
        planned, (top, left) = self.plan(image.height, image.width, size)
        planned_size = planned[::-1]  # Pillow's sizes are (width, height)
        if image.size != planned_size:
            image = image.resize(planned_size, RESAMPLE[interpolation])

        height, width = size
        if self.resize in CROPS:
            return image.crop((left, top, left + width, top + height))
        if self.resize == "pad":
            framed = Image.new("RGB", (width, height), border)
            framed.paste(image, (-left, -top))
            return framed
        return image

    def pixels(self, pixels: Tensor, size: Sides, interpolation: str, border: Color) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at `size`, differentiably; at that size already they are returned as they are.

        So pixels that were fitted once are not cropped again.
        """
        from idmetric.metric.images.resize import resize_pixels

        height, width = pixels.shape[-2:]
        if (height, width) == tuple(size):
            return resize_pixels(pixels, size, interpolation)
        planned, corner = self.plan(height, width, size)
        resized = resize_pixels(pixels, planned, interpolation)
        if self.resize != "pad":
            return _window(resized, corner, size)
        color = resized.new_tensor(border).view(3, 1, 1) / 255
        return color + _window(resized - color, corner, size)  # borders of 0 become the color

    def cover(self, cover: Tensor, size: Sides, floats: bool) -> Tensor:
        """Coverage (..., H, W) by a mask, averaged to `size`; 0 on padding.

        Args:
            floats: whether the image was given as float pixels, which stay as they are at that size (see `pixels`).
        """
        from idmetric.metric.images.resize import average_to

        height, width = cover.shape[-2:]
        if floats and (height, width) == tuple(size):
            return cover
        planned, corner = self.plan(height, width, size)
        resized = average_to(cover, planned)
        return _window(resized, corner, size)

    def plan(self, height: int, width: int, size: Sides) -> tuple[Sides, Sides]:
        """The size to resize to, and the top left corner in it of the part that is seen (negative with padding).

        ValueError for an image that is too narrow to be cropped.
        """
        if self.resize == "squash":
            return size, (0, 0)

        # the sides to resize to, by the shorter side for a crop and by the longer one for padding
        shorter = min(height, width)
        longer = max(height, width)
        if self.resize in CROPS:
            if longer > _MOST_RATIO * shorter:
                raise ValueError(f"its sides differ by more than {_MOST_RATIO} to 1, too narrow for a center crop")
            planned_shorter = math.floor(min(size) / self.crop_pct)
            planned_longer = int(planned_shorter * longer / shorter)  # as torchvision and transformers round
        else:
            planned_longer = min(size)
            planned_shorter = max(1, round(planned_longer * shorter / longer))
        planned = (planned_shorter, planned_longer)
        if height > width:
            planned = (planned_longer, planned_shorter)

        # half of what is cut off, or of the border, where it is negative
        cut_y = planned[0] - size[0]
        cut_x = planned[1] - size[1]
        if self.resize == "hub-crop":
            return planned, (cut_y // 2, cut_x // 2)
        return planned, (round(cut_y / 2), round(cut_x / 2))


SQUASH = Fit()


def _window(x: Tensor, corner: Sides, size: Sides) -> Tensor:
    """The part of (..., H, W) with this top left corner and size, 0 outside."""
    import torch.nn.functional as F

    top, left = corner
    bottom = top + size[0]
    right = left + size[1]
    height, width = x.shape[-2:]
    edges = (-left, right - width, -top, bottom - height)  # negative ones cut off
    if not any(edges):
        return x
    return F.pad(x, edges)
