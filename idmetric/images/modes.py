"""Modes of PIL images: 16-bit values, transparency, and conversion to RGB."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.images.arrays import scale16
from idmetric.images.kinds import ImageReadError, describe


def released_rgb(image: Image.Image, name: str | None = None) -> Image.Image:
    """An image as ID-Sim's and NearID's releases read it: `image.convert("RGB")` and nothing else.

    EXIF orientation is ignored, alpha and transparent palette entries are dropped (the colours stored under them show),
    and the installed Pillow decides how 16-bit values are converted.

    Raises:
        ImageReadError: if Pillow cannot convert this mode.
    """
    found = convert(image, "RGB", name or describe(image))
    found = found.copy() if found is image else found
    found.info = {}  # or its EXIF block would have it turned later
    return found


def sixteen(image: Image.Image, name: str) -> NDArray[np.uint16]:
    """The values of an integer image (I, I;16, ...)."""
    array = np.asarray(image)
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 65535:
        raise ImageReadError(name, f"integer pixels must lie in [0, 65535], found [{low}, {high}]: rescale them")
    return array.astype(np.uint16)


def eight_bit(image: Image.Image, name: str) -> Image.Image:
    """Integer images as L, or LA where one value means transparent; others as they are."""
    if image.mode == "La":  # premultiplied grey converts to nothing else
        return image.convert("LA")
    if not image.mode.startswith("I"):
        return image
    values = sixteen(image, name)
    grey = Image.fromarray(scale16(values))
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
    return grey


def convert(image: Image.Image, mode: str, name: str) -> Image.Image:
    try:
        return image if image.mode == mode else image.convert(mode)
    except (OSError, TypeError, ValueError) as error:  # such as a transparency entry of the wrong kind
        raise ImageReadError(name, f"mode {image.mode} cannot be made {mode} ({error}): convert it first") from error


def has_alpha(image: Image.Image) -> bool:
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        return True
    return "transparency" in image.info and (image.mode in ("1", "L", "P", "RGB") or image.mode.startswith("I"))
