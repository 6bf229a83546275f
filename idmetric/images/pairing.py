"""Which mask belongs to which image of a list."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from idmetric.images import paths as inputs
from idmetric.images.masks import Labelled, MaskLike, labelled
from idmetric.images.read import ImageLike, ImageReadError

Images = ImageLike | Sequence[ImageLike]
Masks = MaskLike | Sequence[MaskLike | None] | None


def split_masks(masks: Masks, images: Sequence[Any]) -> list[MaskLike | None]:
    """A mask, or None, for each image; of a folder of masks, the ones at the images' paths.

    Raises:
        ValueError: if there are more or fewer, or for a folder if an image is not a file or two would share a mask.
        ImageReadError: naming an image without a mask in the folder.
    """
    if masks is None:
        return [None] * len(images)
    given = masks.source if isinstance(masks, Labelled) else masks
    if isinstance(given, str | os.PathLike) and os.path.isdir(given):
        in_folder = _masks_in(given, images)
        return [labelled(mask, masks.mask_id) for mask in in_folder] if isinstance(masks, Labelled) else [*in_folder]
    if isinstance(masks, list | tuple):
        found = list(masks)
    elif isinstance(masks, Tensor) and masks.ndim in (3, 4):
        # (N, H, W) or (N, 1, H, W): one mask for each image
        found = list(masks)
    else:
        found = [masks]
    if len(found) != len(images):
        raise ValueError(f"{len(found)} masks for {len(images)} images: give one for each (None where there is none)")
    return found


def _masks_in(folder: str | os.PathLike[str], images: Sequence[Any]) -> list[str]:
    paths = [os.fspath(image) for image in images if isinstance(image, str | os.PathLike)]
    if len(paths) != len(images):
        raise ValueError(f"masks in the folder {os.fspath(folder)!r} are found by the images' paths: give files")
    found = []
    for path, mask in zip(paths, inputs.masks_of(folder, paths), strict=True):
        if mask is None:
            raise ImageReadError(*inputs.absent_mask(folder, path))
        found.append(mask)
    return found
