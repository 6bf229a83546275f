"""The masks of a manifest under a look. Loads no torch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.stream import Look

if TYPE_CHECKING:
    from idmetric.data.old_manifest.table import Manifest


def mask_of(look: Look, manifest: Manifest, row: int) -> Any:
    """The mask to apply to a row; None if its whole image is embedded."""
    if not look.masked:
        return None
    from idmetric.metric.masks import labeled

    return labeled(manifest.source(row, "mask"), look.mask_id)


def check_masks(look: Look, manifest: Manifest) -> None:
    """Warn if only some images have the masks that are needed; a ValueError if none has one."""
    if not look.masked:
        return
    valid = {
        name: np.asarray(manifest.table[name].is_valid()) for name in ("path", "image_bytes", "mask", "mask_bytes")
    }
    has_image, has_mask = valid["path"] | valid["image_bytes"], valid["mask"] | valid["mask_bytes"]
    check_share(int((has_image & has_mask).sum()), int(has_image.sum()))


def check_share(masks: int, images: int) -> None:
    """Warn if only some of the images have masks, as the others are seen whole; a ValueError if none has one."""
    if not masks:
        raise ValueError("subjects alone are to be seen, but no row has a mask: fill column mask (idmetric data masks)")
    if masks < images:
        from idmetric.metric.masks import MaskWarning

        warnings.warn(
            f"{images - masks} of {images} images have no mask: they are seen whole", MaskWarning, stacklevel=3
        )
