"""The masks of a manifest under a look, and the error for images that cannot be used. Loads no torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.metric.files.tables import first_few
from idmetric.stream.item import Look

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

_SHOWN = 20  # unreadable images that an error lists


def mask_of(look: Look, manifest: Manifest, row: int) -> Any:
    """The mask to apply to a row; None if its whole image is embedded."""
    if not look.masked:
        return None
    from idmetric.metric.images.masks import labeled

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


class UnreadableError(ValueError):
    """Images cannot be used; `problems` maps each row to the reason."""

    def __init__(self, message: str, problems: Mapping[int, str]) -> None:
        super().__init__(message, problems)  # the arguments, by which an exception is copied
        self.message = message
        self.problems = dict(problems)

    @classmethod
    def of(cls, manifest: Manifest, problems: Mapping[int, str]) -> UnreadableError:
        """The error of some rows of a manifest."""
        names = manifest.column("id")
        lines = [f"{names[row]}: {reason}" for row, reason in problems.items()]
        listed = "\n  ".join(first_few(lines, _SHOWN))
        message = f"{len(lines)} images cannot be used; fix them, or leave them out (--on-error skip):\n  {listed}"
        return cls(message, problems)

    def __str__(self) -> str:
        return self.message


def check_share(masks: int, images: int) -> None:
    """Warn if only some of the images have masks, as the others are seen whole; a ValueError if none has one."""
    if not masks:
        raise ValueError("subjects alone are to be seen, but no row has a mask: fill column mask (idmetric data masks)")
    if masks < images:
        from idmetric.metric.images.masks import MaskWarning

        warnings.warn(
            f"{images - masks} of {images} images have no mask: they are seen whole", MaskWarning, stacklevel=3
        )
