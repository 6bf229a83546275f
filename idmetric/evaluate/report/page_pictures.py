"""Pictures of a page of `idmetric eval`, made while the models' stream reads the images."""

from __future__ import annotations

from contextlib import suppress

from PIL import Image

from idmetric.metric.images import ImageReadError, read_image
from idmetric.page import room, thumbnail
from idmetric.stream import Item

_LARGEST = 12_000  # bytes of a picture, at most
_MOST = 2_000  # images whose pictures are kept; further ones are read again if the page shows them


class PagePictures:
    """Data addresses of small pictures, by the source of the image in the manifest.

    Args:
        count: images in all, which share the page's room.
    """

    def __init__(self, count: int) -> None:
        self._limit = min(_LARGEST, room(min(count, _MOST)))
        self._uris: dict[str | bytes, str] = {}

    def take(self, item: Item, picture: Image.Image) -> None:
        """Keep the picture of an image; called while it is read."""
        if isinstance(item.image, str | bytes) and len(self._uris) < _MOST:
            self._uris[item.image] = thumbnail(picture, self._limit)

    def uri(self, source: str | bytes) -> str | None:
        """The picture of an image; None if it cannot be read."""
        if source not in self._uris:
            with suppress(ImageReadError):
                return thumbnail(read_image(source), self._limit)
        return self._uris.get(source)
