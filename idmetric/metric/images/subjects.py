"""Select the subject of each image in a batch of pixels, by masks and boxes, with the graph of the pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from idmetric.metric.images.arrays import check_pixels
from idmetric.metric.images.coverage import same_shape
from idmetric.metric.images.kinds import Outside
from idmetric.metric.images.regions import Cut, box_of, cut_to
from idmetric.metric.images.resize import average_to

Boxes = Sequence[Sequence[int]] | Tensor  # (left, top, right, bottom) of each image, in whole pixels


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
        inside = cut_to(cover[i].detach(), cut)
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


def _cut_each(batch: Tensor, cuts: Sequence[Cut]) -> list[Tensor]:
    """Each image of a batch (B, ..., H, W) cut, as a batch of one."""
    return [cut_to(batch[i : i + 1], cut) for i, cut in enumerate(cuts)]


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
