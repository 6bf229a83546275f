"""Select the subject of each image of a batch by masks and boxes, differentiably.

The same as `masks.cut_out` for one image, for pixels (B, 3, H, W) that carry a graph, on their own device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from idmetric.images.coverage import average_to, box_of, same_shape
from idmetric.images.kinds import SLACK
from idmetric.images.read import Outside

Boxes = Sequence[Sequence[int]] | Tensor  # (left, top, right, bottom) of each image, in whole pixels
Cut = tuple[int, int, int, int]


def subject_of(
    x: Tensor, masks: Tensor | None, boxes: Boxes | None, outside: Outside = "black"
) -> tuple[list[Tensor], list[Tensor] | None]:
    """The pixels of each image that show the subject.

    Args:
        x: pixels (B, 3, H, W) in [0, 1].
        masks: (B, h, w) or (B, 1, h, w), bool or in [0, 1]; averaged to the pixels' size.
        boxes: right and bottom are excluded. Masks are cut too.
        outside: what becomes of pixels outside of a mask: see `masks.cut_out`.

    Returns:
        The whole batch in a list of one, or, where something is cut, a list of images (1, 3, h, w); and their masks
        (B, H, W) or (1, h, w), None without.

    Raises:
        ValueError: for masks or boxes that do not fit, or select nothing.
    """
    cover = None if masks is None else coverage(masks, x)
    if cover is not None and outside != "keep":
        shown = cover[:, None]
        x = x * shown if outside != "white" else x * shown + (1 - shown)
    to_mask = cover is not None and outside == "crop"
    if boxes is None and not to_mask:
        return [x], None if cover is None else [cover]
    cuts = _cuts(boxes, x)
    if cover is None:
        return [_cut(x[i : i + 1], cut) for i, cut in enumerate(cuts)], None
    for i, cut in enumerate(cuts):
        if not _cut(cover[i].detach(), cut).any():
            raise ValueError(f"the mask of image {i} selects nothing inside its box {cut}")
    if to_mask:
        cuts = [_within(cover[i].detach(), cut) for i, cut in enumerate(cuts)]
    return [_cut(x[i : i + 1], c) for i, c in enumerate(cuts)], [_cut(cover[i : i + 1], c) for i, c in enumerate(cuts)]


def coverage(masks: Tensor, x: Tensor) -> Tensor:
    """Masks as how much of each pixel of x is subject, (B, H, W).

    Raises:
        ValueError: for another shape, values outside [0, 1], or a mask that selects nothing.
    """
    if not isinstance(masks, Tensor):
        raise ValueError(f"masks must be a tensor (B, h, w), got {type(masks).__name__}: use torch.stack or as_tensor")
    cover = masks[:, 0] if masks.ndim == 4 and masks.shape[1] == 1 else masks
    if cover.ndim != 3 or len(cover) != len(x) or 0 in cover.shape:
        raise ValueError(f"masks must have shape ({len(x)}, h, w) or ({len(x)}, 1, h, w), got {tuple(masks.shape)}")
    if not same_shape((cover.shape[1], cover.shape[2]), (x.shape[2], x.shape[3])):
        raise ValueError(
            f"masks of {cover.shape[2]}x{cover.shape[1]} pixels have another shape than images of {x.shape[3]}x"
            f"{x.shape[2]}: turn or resize them as the images were"
        )
    cover = cover.to(x.device, x.dtype)
    if not torch.compiler.is_compiling():  # looking at values would break the graph
        low, high = torch.stack(torch.aminmax(cover.detach())).tolist()
        if not (low >= -SLACK and high <= 1 + SLACK):
            raise ValueError(f"masks must be bool or lie in [0, 1], found [{low:.4g}, {high:.4g}]: divide by 255?")
        empty = (cover.detach().amax((1, 2)) <= 0).nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"the masks of images {empty} are empty: leave these images out, or give others")
    return average_to(cover, (x.shape[-2], x.shape[-1]))


def _cut(x: Tensor, cut: Cut) -> Tensor:
    left, top, right, bottom = cut
    return x[..., top:bottom, left:right]


def _cuts(boxes: Boxes | None, x: Tensor) -> list[Cut]:
    height, width = x.shape[-2:]
    if boxes is None:
        return [(0, 0, width, height)] * len(x)
    if isinstance(boxes, Tensor) and boxes.ndim != 2:
        raise ValueError(f"boxes must have shape ({len(x)}, 4), got {tuple(boxes.shape)}")
    rows = boxes.tolist() if isinstance(boxes, Tensor) else [list(box) for box in boxes]
    if len(rows) != len(x):
        raise ValueError(f"{len(rows)} boxes for {len(x)} images: give one for each")
    found: list[Cut] = []
    for i, row in enumerate(rows):
        if len(row) != 4 or not all(isinstance(v, int | float) and float(v).is_integer() for v in row):
            raise ValueError(f"box {i} must be (left, top, right, bottom) in whole pixels, got {row}: round it")
        left, top, right, bottom = map(int, row)
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise ValueError(f"box {i} {(left, top, right, bottom)} does not lie within {width} x {height} pixels")
        found.append((left, top, right, bottom))
    return found


def _within(cover: Tensor, cut: Cut) -> Cut:
    """The mask's bounding box inside a box."""
    left, top, right, bottom = box_of(_cut(cover, cut))
    return cut[0] + left, cut[1] + top, cut[0] + right, cut[1] + bottom
