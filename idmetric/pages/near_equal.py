"""Frames of a clip that look alike: the page shows one of them."""

from __future__ import annotations

import io
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.pages.pictures import Thumbnail

NEAR_EQUAL = 0.01  # mean absolute difference of small pictures, in 0..1
_SIDE = 32  # of these pictures, in pixels

SmallPicture = NDArray[np.float64]


def grouped(
    order: Sequence[int], kinds: Sequence[Hashable], thumbnails: Sequence[Thumbnail], limit: int
) -> dict[int, list[int]]:
    """Group images that are near-equal and of one kind.

    Args:
        order: of the images; the first one of a group stands for it.
        kinds: of each image; None for one that stays alone.
        limit: the number of groups. Further images that belong to none of them are left out.

    Returns:
        The first image of each group -> all of its images, both by the order.
    """
    groups: dict[int, list[int]] = {}
    pictures_of_kinds: dict[Hashable, dict[int, SmallPicture]] = {}
    for image in order:
        representative = None
        if kinds[image] is not None:
            picture = _reduced(thumbnails[image])
            pictures = pictures_of_kinds.setdefault(kinds[image], {})
            representative = _near_equal(picture, pictures)
        if representative is not None:
            groups[representative].append(image)
        elif len(groups) < limit:
            groups[image] = [image]
            if kinds[image] is not None:
                pictures[image] = picture
    return groups


def _near_equal(picture: SmallPicture, pictures: dict[int, SmallPicture]) -> int | None:
    """The first of the pictures that is near-equal to this one."""
    for image, shown in pictures.items():
        if np.abs(picture - shown).mean() < NEAR_EQUAL:
            return image
    return None


def _reduced(thumbnail: Thumbnail) -> SmallPicture:
    with Image.open(io.BytesIO(thumbnail.jpeg)) as image:
        image.draft("RGB", (_SIDE, _SIDE))  # decodes a small version
        small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.asarray(small, dtype=float) / 255
