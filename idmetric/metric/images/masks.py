"""Masks in any arrangement: one for each image, a batch, a folder of them; `coverage` reads them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import Tensor

from idmetric.metric.images import paths as inputs
from idmetric.metric.images.kinds import ImageLike, ImageReadError, is_image_like
from idmetric.metric.images.kinds import MaskId as MaskId  # part of this module


class MaskWarning(UserWarning):
    """A mask that can be used, but probably selects something else than was meant."""


@dataclass(frozen=True)
class Labeled:
    """A mask and the label of its subject: takes the place of a mask wherever one is given."""

    source: Any
    mask_id: MaskId


MaskLike = ImageLike | Labeled
Images = ImageLike | Sequence[ImageLike]
Masks = MaskLike | Sequence[MaskLike | None] | None


def labeled(masks: Any, mask_id: MaskId | None) -> Any:
    """Masks in any arrangement that `Embedder.embed` takes, each with its label; unchanged without one."""
    if masks is None or mask_id is None or isinstance(masks, Labeled):
        return masks
    if not _are_several(masks):
        return Labeled(masks, mask_id)
    return [labeled(mask, mask_id) for mask in _without_gaps(masks)]


def _are_several(masks: Any) -> TypeGuard[Iterable[Any]]:
    if isinstance(masks, Tensor):
        return masks.ndim in (3, 4)
    return isinstance(masks, Iterable) and not isinstance(masks, Mapping) and not is_image_like(masks)


def _without_gaps(masks: Iterable[Any]) -> list[Any]:
    """Masks as a list; NaN, with which pandas marks an empty cell, becomes None."""
    return [None if isinstance(mask, float) and math.isnan(mask) else mask for mask in masks]


def split_masks(masks: Masks, images: Sequence[Any]) -> list[MaskLike | None]:
    """A mask, or None, for each image; of a folder of masks, the ones at the images' paths.

    Raises:
        ValueError: if there are more or fewer, or for a folder if an image is not a file or two would share a mask.
        ImageReadError: naming an image without a mask in the folder.
    """
    if masks is None:
        return [None] * len(images)

    # a folder, perhaps with a label for all masks in it
    folder: Any = masks
    mask_id = None
    if isinstance(masks, Labeled):
        folder = masks.source
        mask_id = masks.mask_id
    if isinstance(folder, str | os.PathLike) and os.path.isdir(folder):
        files = [os.fspath(image) for image in images if isinstance(image, str | os.PathLike)]
        if len(files) != len(images):
            raise ValueError(f"masks in the folder {os.fspath(folder)!r} are found by the images' paths: give files")
        mask_files = inputs.masks_of(folder, files)
        if None in mask_files:
            image_without_mask = files[mask_files.index(None)]
            raise ImageReadError(*inputs.absent_mask(folder, image_without_mask))
        return [labeled(mask, mask_id) for mask in mask_files]

    mask_list: list[Any] = [masks]
    if _are_several(masks):
        mask_list = _without_gaps(masks)
    if len(mask_list) != len(images):
        raise ValueError(
            f"{len(mask_list)} masks for {len(images)} images: give one for each (None where there is none)"
        )
    return mask_list
