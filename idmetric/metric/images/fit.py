"""Ways to bring an image of any shape to a model's input size: squash it, crop its center, or pad it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from PIL import Image

from idmetric.metric.images.kinds import RESAMPLE, Color

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
        if self.resize not in get_args(Resize):
            raise ValueError(f"unknown resize {self.resize!r}: choose {', '.join(get_args(Resize))}")
        if not _LEAST <= self.crop_pct <= 1:
            raise ValueError(f"crop_pct = {self.crop_pct}: a share from {_LEAST} to 1 is needed")

    def __str__(self) -> str:
        return f"{self.resize} {self.crop_pct:g}" if self.resize in CROPS else self.resize

    def image(self, image: Image.Image, size: tuple[int, int], interpolation: str, border: Color) -> Image.Image:
        """An RGB image at `size` (height, width), resized by Pillow; `border` is the color of padding."""
        (height, width), (top, left) = self.plan(image.height, image.width, size)
        if image.size != (width, height):
            image = image.resize((width, height), RESAMPLE[interpolation])
        if self.resize in CROPS:
            return image.crop((left, top, left + size[1], top + size[0]))
        if self.resize == "pad":
            framed = Image.new("RGB", (size[1], size[0]), border)
            framed.paste(image, (-left, -top))
            return framed
        return image

    def pixels(self, pixels: Tensor, size: tuple[int, int], interpolation: str, border: Color) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at `size`, differentiably; at that size already they are returned as they are.

        So pixels that were fitted once are not cropped again.
        """
        from idmetric.metric.images.resize import resize_pixels

        if tuple(pixels.shape[-2:]) == tuple(size):
            return resize_pixels(pixels, size, interpolation)
        planned, corner = self.plan(pixels.shape[-2], pixels.shape[-1], size)
        found = resize_pixels(pixels, planned, interpolation)
        if self.resize != "pad":
            return _window(found, corner, size)
        color = found.new_tensor(border).view(3, 1, 1) / 255
        return color + _window(found - color, corner, size)  # borders of 0 become the color

    def cover(self, cover: Tensor, size: tuple[int, int], floats: bool) -> Tensor:
        """Coverage (..., H, W) by a mask, averaged to `size`; 0 on padding.

        Args:
            floats: whether the image was given as float pixels, which stay as they are at that size (see `pixels`).
        """
        from idmetric.metric.images.resize import average_to

        if floats and tuple(cover.shape[-2:]) == tuple(size):
            return cover
        planned, corner = self.plan(cover.shape[-2], cover.shape[-1], size)
        return _window(average_to(cover, planned), corner, size)

    def plan(self, height: int, width: int, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """The size to resize to, and the top left corner in it of the part that is seen (negative with padding).

        ValueError for an image that is too narrow to be cropped.
        """
        if self.resize == "squash":
            return size, (0, 0)
        shorter, longer = min(height, width), max(height, width)
        if self.resize in CROPS:
            if longer > _MOST_RATIO * shorter:
                raise ValueError(f"its sides differ by more than {_MOST_RATIO} to 1, too narrow for a center crop")
            side = math.floor(min(size) / self.crop_pct)
            other = int(side * longer / shorter)  # as torchvision and transformers round
        else:
            other = min(size)
            side = max(1, round(other * shorter / longer))
        planned = (side, other) if height <= width else (other, side)
        cut = (planned[0] - size[0], planned[1] - size[1])
        if self.resize == "hub-crop":
            return planned, (cut[0] // 2, cut[1] // 2)
        return planned, (round(cut[0] / 2), round(cut[1] / 2))


SQUASH = Fit()


def _window(x: Tensor, corner: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The part of (..., H, W) with this top left corner and size, 0 outside."""
    import torch.nn.functional as F

    (top, left), (rows, columns) = corner, x.shape[-2:]
    edges = (-left, left + size[1] - columns, -top, top + size[0] - rows)
    return F.pad(x, edges) if any(edges) else x
