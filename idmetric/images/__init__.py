"""Images of any kind to RGB pixels: reading, masks, resizing, and which files a path names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy

if TYPE_CHECKING:
    from idmetric.images.masks import Labelled, MaskWarning, SeveralLabelsError, read_mask
    from idmetric.images.read import ImageLike, ImageReadError, MultiFrameWarning, read_image, to_pixels

_LAZY = {
    "ImageLike": "idmetric.images.read",
    "ImageReadError": "idmetric.images.read",
    "Labelled": "idmetric.images.masks",
    "MaskWarning": "idmetric.images.masks",
    "MultiFrameWarning": "idmetric.images.read",
    "SeveralLabelsError": "idmetric.images.masks",
    "read_image": "idmetric.images.read",
    "read_mask": "idmetric.images.masks",
    "to_pixels": "idmetric.images.read",
}

__all__ = [
    "ImageLike",
    "ImageReadError",
    "Labelled",
    "MaskWarning",
    "MultiFrameWarning",
    "SeveralLabelsError",
    "read_image",
    "read_mask",
    "to_pixels",
]

__getattr__, __dir__ = lazy(__name__, _LAZY)
