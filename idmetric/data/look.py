"""The masks of a manifest under a look. Loads no torch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from idmetric.stream import Look

if TYPE_CHECKING:
    import pandas as pd


def mask_of(look: Look, table: pd.DataFrame, row: int) -> Any:
    """The mask to apply to a row; None if its whole image is embedded."""
    if not look.masked:
        return None
    from idmetric.metric.masks import labeled

    return labeled(table["mask"][row], look.mask_id)


def check_masks(look: Look, table: pd.DataFrame) -> None:
    """Warn if only some images have the masks that are needed; a ValueError if none has one."""
    if look.masked:
        has_image, has_mask = table["path"].notna(), table["mask"].notna()
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
