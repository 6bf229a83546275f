"""Images of any kind to RGB pixels: reading, masks, resizing, and which files a path names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy

if TYPE_CHECKING:
    from idmetric.images.arrays import check_pixels, released_rgb
    from idmetric.images.kinds import ImageLike, ImageReadError, MultiFrameWarning, Outside, Preprocessing, describe
    from idmetric.images.masks import Labeled, MaskWarning, SeveralLabelsError, read_mask
    from idmetric.images.read import is_single, load_batch, read_image, split_images, to_pixels
    from idmetric.images.resize import resize_pixels

__all__ = [
    "ImageLike",
    "ImageReadError",
    "Labeled",
    "MaskWarning",
    "MultiFrameWarning",
    "Outside",
    "Preprocessing",
    "SeveralLabelsError",
    "check_pixels",
    "describe",
    "is_single",
    "load_batch",
    "read_image",
    "read_mask",
    "released_rgb",
    "resize_pixels",
    "split_images",
    "to_pixels",
]

_IN_READ = ("is_single", "load_batch", "read_image", "split_images", "to_pixels")
_IN_MASKS = ("Labeled", "MaskWarning", "SeveralLabelsError", "read_mask")
_IN_KINDS = ("ImageLike", "ImageReadError", "MultiFrameWarning", "Outside", "Preprocessing", "describe")
__getattr__, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(("check_pixels", "released_rgb"), "idmetric.images.arrays"),
        **dict.fromkeys(_IN_KINDS, "idmetric.images.kinds"),
        **dict.fromkeys(_IN_MASKS, "idmetric.images.masks"),
        **dict.fromkeys(_IN_READ, "idmetric.images.read"),
        "resize_pixels": "idmetric.images.resize",
    },
)
