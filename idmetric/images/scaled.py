"""JPEG files scaled while they are decoded: most of a large photo's pixels are never computed.

libjpeg decodes at 1/2, 1/4 or 1/8 of the sides, from fewer coefficients of each block of 8 x 8 pixels. The model's
resize then starts from that image. Its result differs slightly from that of all pixels, so scores carry a mark
(`mark_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast, get_args

from PIL import ExifTags, Image

Decode = Literal["exact", "fast"]  # all pixels of a file, or as many as `scale` leaves
Needed = Callable[[int, int], tuple[int, int]]  # (height, width) of an upright image -> those that it is resized to

# Both sides stay at least this many times those of the model's resize: its filter still averages over several pixels.
# At once these sides, images of the packaged model move three to six times as far (docs/reports/speed.md).
MARGIN = 2
LEAST = 192  # no side becomes smaller: the search for copies compares images of 96 x 96 pixels


def checked(decode: str) -> Decode:
    """The name of a way to decode; ValueError for another."""
    if decode not in get_args(Decode):
        raise ValueError(f"unknown decode {decode!r}: choose {' or '.join(get_args(Decode))}")
    return cast(Decode, decode)


def mark_of(decode: Decode) -> str:
    """The part of a model's label that tells its embeddings from those of all pixels."""
    return "" if decode == "exact" else f"[{decode} decoding]"


def scale(image: Image.Image, needed: Needed, upright: bool) -> None:
    """Have an opened file, not yet decoded, decoded at the smallest scale that keeps `MARGIN` and `LEAST`.

    Args:
        image: changed in place if it is a JPEG; other formats are left alone.
        needed: the size that the image will be resized to.
        upright: whether it will be turned by its EXIF orientation.
    """
    if image.format not in ("JPEG", "MPO"):
        return
    turned = upright and _is_turned(image)
    height, width = image.size if turned else image.size[::-1]
    try:
        rows, columns = (max(MARGIN * side, LEAST) for side in needed(height, width))
    except ValueError:  # of a shape that the model refuses: reported when it is resized
        return
    image.draft(None, (rows, columns) if turned else (columns, rows))  # None keeps the mode


def _is_turned(image: Image.Image) -> bool:
    """Whether EXIF's orientation exchanges width and height."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    except Exception:  # a damaged EXIF block, by which the image is not turned
        return False
