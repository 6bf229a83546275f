"""Small pictures for a page: WebP of bounded size, as data addresses, and JPEG from the one decode of an image."""

from __future__ import annotations

import base64
import io
import math

from PIL import Image

_SIDE = 640  # longest side in pixels, if there is room
_LEAST = 48  # side in pixels below which a picture shows nothing
_TOTAL = 11_000_000  # bytes for all pictures of a page; text adds a third
_LARGEST, _SMALLEST = 60_000, 2_000  # bytes for one picture
_QUALITY = 80
_DENSITY = 0.1  # bytes per pixel of a plain photo; sizes that are surely too large are not tried
_JPEG_DENSITY = 0.15  # bytes per pixel of most photos


def room(count: int) -> int:
    """Return the bytes for each of so many pictures; a page of up to 2,000 pictures stays below 25 MB."""
    return max(_SMALLEST, min(_LARGEST, _TOTAL // max(count, 1)))


def data_uri(picture: Image.Image, limit: int) -> str:
    """Encode a picture as a data address of at most `limit` bytes (before base64), or with the side `_LEAST`."""
    small = picture.convert("RGB")
    side_that_may_fit = round(math.sqrt(limit / _DENSITY))
    side = max(_LEAST, side_that_may_fit)
    side = min(_SIDE, max(small.size), side)
    while True:
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        small.save(file, "webp", quality=_QUALITY, method=1)
        data = file.getvalue()
        if len(data) <= limit or side <= _LEAST:
            return f"data:image/webp;base64,{base64.b64encode(data).decode('ascii')}"
        # the bytes grow a little more slowly than the area
        shrink = min(0.9, 0.95 * math.sqrt(limit / len(data)))
        side = max(_LEAST, int(side * shrink))


def jpeg_uri(picture: Image.Image, limit: int) -> str:
    """As `data_uri`, a JPEG of an RGB picture in a tenth of the time."""
    side = max(_LEAST, round(math.sqrt(limit / _JPEG_DENSITY)))
    small = averaged(picture, side)
    while True:
        data = jpeg_of(small)
        if len(data) <= limit or max(small.size) <= _LEAST:
            return jpeg_address(data)
        shrink = min(0.9, 0.95 * math.sqrt(limit / len(data)))
        side = max(_LEAST, int(shrink * max(small.size)))
        small.thumbnail((side, side), Image.Resampling.BILINEAR)


def averaged(picture: Image.Image, side: int) -> Image.Image:
    """Reduce a picture to about this longer side, by averages of whole blocks: a resize takes five times as long."""
    block = max(1, round(max(picture.size) / side))
    return picture.reduce(block)


def jpeg_of(picture: Image.Image) -> bytes:
    """A picture as a JPEG file."""
    file = io.BytesIO()
    picture.save(file, "jpeg", quality=_QUALITY)
    return file.getvalue()


def jpeg_address(data: bytes) -> str:
    """A JPEG file as a data address."""
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode('ascii')}"
