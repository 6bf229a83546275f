"""Select the subject of images by masks and boxes: one image of any kind, or a batch of pixels with its graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from idmetric.metric.images.arrays import check_pixels, float_pixels, is_float
from idmetric.metric.images.kinds import (
    WHITE,
    Color,
    ImageLike,
    ImageReadError,
    MaskId,
    Outside,
    describe,
    naming,
)
from idmetric.metric.images.masks import Labeled, MaskLike, read_mask, same_shape
from idmetric.metric.images.read import read_image
from idmetric.metric.images.resize import average_to

Boxes = Sequence[Sequence[int]] | Tensor  # (left, top, right, bottom) of each image, in whole pixels
Cut = tuple[int, int, int, int]


def cut_out(
    image: ImageLike,
    mask: MaskLike,
    outside: Outside = "black",
    *,
    mask_id: MaskId | None = None,
    background: Color = WHITE,
) -> tuple[Image.Image | Tensor, Tensor]:
    """The subject of an image: the pixels outside its mask painted over or cut off, at the image's own size.

    Args:
        image, background: as for `read_image`. mask, mask_id: as for `read_mask`.
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
    cover = read_mask(mask, size, image=subject, mask_id=mask_id)
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
        cover = _cut(cover, box)
        subject = _cut(subject, box) if isinstance(subject, Tensor) else subject.crop(box)
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


# Batches


def subject_of(
    x: Tensor, masks: Tensor | None, boxes: Boxes | None, outside: Outside = "black"
) -> tuple[list[Tensor], list[Tensor] | None]:
    """The pixels of each image that show the subject.

    Args:
        x: pixels (B, 3, H, W) in [0, 1].
        masks: (B, h, w) or (B, 1, h, w), bool or in [0, 1]; averaged to the pixels' size.
        boxes: right and bottom are excluded. Masks are cut too.
        outside: what becomes of pixels outside of a mask: see `cut_out`.

    Returns:
        The whole batch in a list of one, or, where something is cut, a list of images (1, 3, h, w); and their masks
        (B, H, W) or (1, h, w), None without.

    Raises:
        ValueError: for masks or boxes that do not fit, or select nothing.
    """
    if masks is None:
        if boxes is None:
            return [x], None
        return _cut_each(x, _cuts(boxes, x)), None

    cover = coverage(masks, x)
    if outside != "keep":
        weight = cover[:, None]
        x = x * weight
        if outside == "white":
            x = x + (1 - weight)
    if boxes is None and outside != "crop":
        return [x], [cover]

    # each image's box, or the mask's box in it
    height, width = x.shape[-2:]
    cuts = [(0, 0, width, height)] * len(x)
    if boxes is not None:
        cuts = _cuts(boxes, x)
    for i, cut in enumerate(cuts):
        inside = _cut(cover[i].detach(), cut)
        if not inside.any():
            raise ValueError(f"the mask of image {i} selects nothing inside its box {cut}")
        if outside == "crop":
            x0, y0, _, _ = cut
            left, top, right, bottom = box_of(inside)
            cuts[i] = (x0 + left, y0 + top, x0 + right, y0 + bottom)
    return _cut_each(x, cuts), _cut_each(cover, cuts)


def coverage(masks: Tensor, x: Tensor) -> Tensor:
    """Masks as how much of each pixel of x is subject, (B, H, W)."""
    cover = masks
    if masks.ndim == 4 and masks.shape[1] == 1:
        cover = masks[:, 0]
    if cover.ndim != 3 or len(cover) != len(x) or not cover.numel():
        raise ValueError(f"masks must have shape ({len(x)}, h, w) or ({len(x)}, 1, h, w), got {tuple(masks.shape)}")
    _, mask_height, mask_width = cover.shape
    height, width = x.shape[-2:]
    if not same_shape((mask_height, mask_width), (height, width)):
        raise ValueError(
            f"masks of {mask_width}x{mask_height} pixels have another shape than images of {width}x{height}: "
            "turn or resize them as the images were"
        )

    cover = cover.to(x.device, x.dtype)
    if not torch.compiler.is_compiling():  # looking at values would break the graph
        check_pixels(cover)
        is_empty = cover.detach().amax((1, 2)) <= 0
        empty = is_empty.nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"the masks of images {empty} are empty: leave these images out, or give others")
    return average_to(cover, (height, width))


def _cut(x: Tensor, cut: Cut) -> Tensor:
    left, top, right, bottom = cut
    return x[..., top:bottom, left:right]


def _cut_each(batch: Tensor, cuts: Sequence[Cut]) -> list[Tensor]:
    """Each image of a batch (B, ..., H, W) cut, as a batch of one."""
    return [_cut(batch[i : i + 1], cut) for i, cut in enumerate(cuts)]


def _cuts(boxes: Boxes, x: Tensor) -> list[Cut]:
    """The box of each image of x, checked."""
    height, width = x.shape[-2:]
    rows = torch.as_tensor(boxes, dtype=torch.float64, device="cpu")
    if rows.shape != (len(x), 4):
        raise ValueError(f"boxes must have shape ({len(x)}, 4), got {tuple(rows.shape)}")

    cuts: list[Cut] = []
    for i, box in enumerate(rows.tolist()):
        left, top, right, bottom = box
        is_whole = all(side.is_integer() for side in box)
        is_within = 0 <= left < right <= width and 0 <= top < bottom <= height
        if not (is_whole and is_within):
            raise ValueError(
                f"box {i} {tuple(box)} must be (left, top, right, bottom) in whole pixels within {width} x {height}"
            )
        cuts.append((int(left), int(top), int(right), int(bottom)))
    return cuts
