"""Small pictures of images, kept from their one decode for the page."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from idmetric.match.page.pictures import data_uri
from idmetric.match.regions import Picture
from idmetric.metric.images.arrays import image_of_pixels

_SIDE = 400  # longest side in pixels; about 10 KB for a photo
_QUALITY = 80
_STRIP = 3_000  # bytes in a timeline's strip


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of an image.

    Attributes:
        jpeg: the file. width, height: of the image itself, in pixels.
    """

    jpeg: bytes
    width: int
    height: int

    def smaller(self) -> str:
        """A still smaller picture for the strip of a timeline, as a data address."""
        return data_uri(Image.open(io.BytesIO(self.jpeg)), _STRIP)


def thumbnail_of(picture: Picture) -> Thumbnail:
    """Reduce an image."""
    image = image_of_pixels(picture) if isinstance(picture, Tensor) else picture
    share = min(1.0, _SIDE / max(image.size))
    size = (max(1, round(share * image.width)), max(1, round(share * image.height)))
    # large ones by averages of blocks first, which takes a quarter of the time
    small = image.resize(size, Image.Resampling.BILINEAR, reducing_gap=1.0)
    file = io.BytesIO()
    small.save(file, "jpeg", quality=_QUALITY)
    return Thumbnail(file.getvalue(), image.width, image.height)
