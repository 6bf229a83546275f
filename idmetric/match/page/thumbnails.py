"""Small pictures of images, kept from their one decode for the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from idmetric.match.regions import Picture
from idmetric.metric.images.arrays import image_of_pixels

_SIDE = 400  # longest side in pixels; about 10 KB for a photo
_QUALITY = 80


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of an image.

    Attributes:
        jpeg: the file. width, height: of the image itself, in pixels.
    """

    jpeg: bytes
    width: int
    height: int

    @property
    def uri(self) -> str:
        """The file as a data address."""
        return f"data:image/jpeg;base64,{base64.b64encode(self.jpeg).decode('ascii')}"


def thumbnail_of(picture: Picture) -> Thumbnail:
    """Reduce an image."""
    image = image_of_pixels(picture) if isinstance(picture, Tensor) else picture
    small = image.copy()
    # large ones by averages of blocks first, which takes a quarter of the time
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.BILINEAR, reducing_gap=1.0)
    file = io.BytesIO()
    small.save(file, "jpeg", quality=_QUALITY)
    return Thumbnail(file.getvalue(), image.width, image.height)
