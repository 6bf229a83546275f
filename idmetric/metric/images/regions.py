"""Select the subject of one image of any kind by its mask; `subjects` does so for batches of pixels."""

from __future__ import annotations

from typing import get_args

import numpy as np
from PIL import Image
from torch import Tensor

from idmetric.metric.images.arrays import float_pixels, is_float
from idmetric.metric.images.coverage import read_mask
from idmetric.metric.images.kinds import (
    WHITE,
    Color,
    ImageLike,
    ImageReadError,
    Outside,
    describe,
    naming,
)
from idmetric.metric.images.masks import Labeled, MaskLike
from idmetric.metric.images.read import read_image

Cut = tuple[int, int, int, int]


def cut_out(
    image: ImageLike,
    mask: MaskLike,
    outside: Outside = "black",
    *,
    background: Color = WHITE,
) -> tuple[Image.Image | Tensor, Tensor]:
    """The subject of an image: the pixels outside its mask painted over or cut off, at the image's own size.

    Args:
        image, background: as for `read_image`. mask: as for `read_mask`.
        outside: "black" or "white" paints, "crop" paints black and cuts to the box of the pixels that the mask
            covers by half (or at all, if none is), "keep" leaves the image as it is.

    Returns:
        The image, a float tensor (3, h, w) with its graph for float images, else a PIL image; and the mask's coverage
        (h, w).

    Raises:
        ImageReadError: if one of them cannot be read, they do not fit, or the mask selects nothing.
        ValueError: for another `outside`.
    """
    if outside not in get_args(Outside):
        raise ValueError(f"unknown outside {outside!r}: choose one of {', '.join(get_args(Outside))}")
    subject: Image.Image | Tensor
    if isinstance(image, Tensor | np.ndarray) and is_float(image):
        with naming(image):
            subject = float_pixels(image, background)
        size = (subject.shape[1], subject.shape[2])
    else:
        subject = read_image(image, background=background)
        size = (subject.height, subject.width)
    cover = read_mask(mask, size, image=subject)
    if not cover.any():
        source = mask.source if isinstance(mask, Labeled) else mask
        raise ImageReadError(describe(source), "it is empty: a mask must select something, white = subject")
    if outside == "keep":
        return subject, cover

    # paint the rest
    fill = 255 if outside == "white" else 0
    if isinstance(subject, Tensor):
        weight = cover.to(subject.device, subject.dtype)
        subject = subject * weight + fill / 255 * (1 - weight)
    else:
        around = np.empty(cover.shape, np.uint8)
        for around_row, cover_row in zip(around, cover.numpy(), strict=True):  # row by row takes little memory
            around_row[:] = 255 - (cover_row * 255).round()
        subject.paste((fill, fill, fill), mask=Image.fromarray(around))

    if outside == "crop":
        box = box_of(cover)
        cover = cut_to(cover, box)
        subject = cut_to(subject, box) if isinstance(subject, Tensor) else subject.crop(box)
    return subject, cover


def box_of(cover: Tensor) -> Cut:
    """Left, top, right, bottom (both excluded) of the pixels that a mask (H, W) covers by half, else at all."""
    inside = cover >= 0.5  # faint edges, as compression makes them, do not count
    if not inside.any():
        inside = cover > 0
    rows = inside.any(1).nonzero().flatten().tolist()
    columns = inside.any(0).nonzero().flatten().tolist()
    left, right = columns[0], columns[-1] + 1
    top, bottom = rows[0], rows[-1] + 1
    return left, top, right, bottom


def cut_to(x: Tensor, cut: Cut) -> Tensor:
    """The part of (..., H, W) within left, top, right, bottom."""
    left, top, right, bottom = cut
    return x[..., top:bottom, left:right]
