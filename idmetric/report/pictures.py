"""Small pictures inside a page: WebP (or JPEG) of bounded size, as data addresses."""

from __future__ import annotations

import base64
import io
import math

from PIL import Image, features

SIDE = 640  # longest side in pixels, where there is room
_LEAST = 48  # below which a picture shows nothing
_TOTAL = 12_500_000  # bytes for all pictures of a page; a third more as text
_LARGEST, _SMALLEST = 60_000, 2_000  # bytes for one picture
_QUALITY = 80
_DENSITY = 0.1  # bytes for a pixel of a plain photo: what is sure to be too large is not tried


def room(count: int) -> int:
    """Bytes for each of so many pictures: a page stays below 25 MB up to two thousand, and grows slowly after."""
    return max(_SMALLEST, min(_LARGEST, _TOTAL // max(count, 1)))


def data_uri(picture: Image.Image, limit: int) -> str:
    """A picture as an address that holds it, of at most `limit` bytes (before base64) unless it is tiny already."""
    kind, data = compressed(picture, limit)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def compressed(picture: Image.Image, limit: int) -> tuple[str, bytes]:
    """File type and bytes of a picture, scaled down until they are at most `limit`, or its side is `_LEAST`."""
    kind = "webp" if features.check("webp") else "jpeg"
    small = picture.convert("RGB")
    side = min(SIDE, max(small.size), max(_LEAST, round(math.sqrt(limit / _DENSITY))))
    while True:
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        small.save(file, kind, quality=_QUALITY, **({"method": 1} if kind == "webp" else {}))
        data = file.getvalue()
        if len(data) <= limit or side <= _LEAST:
            return kind, data
        # bytes grow a little slower than the area
        side = max(_LEAST, int(side * min(0.9, 0.95 * math.sqrt(limit / len(data)))))
