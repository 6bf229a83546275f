"""Select the subject of each image in a batch of pixels, by masks, with the graph of the pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from idmetric.metric.images.arrays import check_pixels
from idmetric.metric.images.coverage import same_shape
from idmetric.metric.images.kinds import Outside
from idmetric.metric.images.regions import Cut, box_of, cut_to
from idmetric.metric.images.resize import average_to


def subject_of(x: Tensor, masks: Tensor | None, outside: Outside = "black") -> tuple[list[Tensor], list[Tensor] | None]:
    """The pixels of each image that show the subject.

    Args:
        x: pixels (B, 3, H, W) in [0, 1].
        masks: (B, h, w) or (B, 1, h, w), bool or in [0, 1]; averaged to the pixels' size.
        outside: what becomes of pixels outside of a mask: see `cut_out`.

    Returns:
        The whole batch in a list of one, or, with "crop", a list of images (1, 3, h, w); and their masks (B, H, W) or
        (1, h, w), None without.

    Raises:
        ValueError: for masks that do not fit, or select nothing.
    """
    if masks is None:
        return [x], None

    cover = coverage(masks, x)
    if outside != "keep":
        weight = cover[:, None]
        x = x * weight
        if outside == "white":
            x = x + (1 - weight)
    if outside != "crop":
        return [x], [cover]
    cuts = [box_of(image_cover) for image_cover in cover.detach()]
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
