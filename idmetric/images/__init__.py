"""Images of any kind to RGB pixels: reading, masks, resizing, and which files a path names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy

if TYPE_CHECKING:
    from idmetric.images.arrays import check_pixels
    from idmetric.images.kinds import ImageLike, ImageReadError, MultiFrameWarning, Outside, Preprocessing, describe
    from idmetric.images.masks import Labelled, MaskWarning, SeveralLabelsError, read_mask
    from idmetric.images.modes import released_rgb
    from idmetric.images.read import is_single, load_batch, read_image, split_images, to_pixels
    from idmetric.images.resize import resize_pixels

_LAZY = {
    "ImageLike": "idmetric.images.kinds",
    "ImageReadError": "idmetric.images.kinds",
    "Labelled": "idmetric.images.masks",
    "MaskWarning": "idmetric.images.masks",
    "MultiFrameWarning": "idmetric.images.kinds",
    "Outside": "idmetric.images.kinds",
    "Preprocessing": "idmetric.images.kinds",
    "SeveralLabelsError": "idmetric.images.masks",
    "check_pixels": "idmetric.images.arrays",
    "describe": "idmetric.images.kinds",
    "is_single": "idmetric.images.read",
    "load_batch": "idmetric.images.read",
    "read_image": "idmetric.images.read",
    "read_mask": "idmetric.images.masks",
    "released_rgb": "idmetric.images.modes",
    "resize_pixels": "idmetric.images.resize",
    "split_images": "idmetric.images.read",
    "to_pixels": "idmetric.images.read",
    # what version 0.1, where this was one module, had here too
    **dict.fromkeys(("MAX_PIXELS", "SLACK", "STORED", "WHITE"), "idmetric.images.kinds"),
    **dict.fromkeys(("channels_last", "float_pixels", "is_float"), "idmetric.images.arrays"),
    **dict.fromkeys(("convert", "eight_bit", "has_alpha", "sixteen"), "idmetric.images.modes"),
    **dict.fromkeys(("open_file", "open_image"), "idmetric.images.opening"),
    "place": "idmetric.images.resize",
}

__all__ = [
    "ImageLike",
    "ImageReadError",
    "Labelled",
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

__getattr__, __dir__ = lazy(__name__, _LAZY)
