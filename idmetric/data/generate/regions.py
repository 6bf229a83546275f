"""Connected regions of masks: the largest one, the ones at the border, and the mask of a region as an image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.generate.errors import Rejected
from idmetric.data.generate.weights import need


def regions(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Label (H, W) of each pixel's connected region (4 neighbors): 1, 2, ..., 0 outside the mask."""
    need("cv2")
    import cv2

    labels: NDArray[np.int32] = cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)[1]
    return labels


def touching_rim(mask: NDArray[np.bool_], rim: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The connected regions of a mask that reach the rim."""
    labels = regions(mask)
    found: NDArray[np.bool_] = np.isin(labels, np.setdiff1d(labels[rim], [0]))
    return found


def largest(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The largest connected region of a mask; an empty mask stays empty."""
    labels = regions(mask)
    sizes = np.bincount(labels.ravel(), weights=mask.ravel())
    found: NDArray[np.bool_] = mask & (labels == sizes.argmax())
    return found


def mask_of(body: NDArray[np.bool_], least: float, most: float, name: str) -> Image.Image:
    """The mask as an image, "L", 0 or 255.

    Raises:
        Rejected: if it covers less than `least` or more than `most` of the picture.
    """
    covered = float(body.mean())
    if not least <= covered <= most:
        raise Rejected(f"{name} covers {covered:.1%} of the picture")
    return Image.fromarray(body.astype(np.uint8) * 255)
