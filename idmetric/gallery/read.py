"""Read an image with its mask, and name it by its content."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from idmetric.gallery.index import GalleryItem
from idmetric.metric.images import ImageReadError, Named, Outside, is_animated, open_file
from idmetric.metric.masks import MaskId
from idmetric.stream import Item, Look

if TYPE_CHECKING:
    from idmetric.gallery.sources import Entry
    from idmetric.metric.embedder import Embedder


@dataclass(frozen=True)
class Masking:
    """Whether a gallery sees subjects alone, where images have masks. outside, mask_id: see `Embedder.embed`."""

    masked: bool
    outside: Outside
    mask_id: MaskId | None

    @property
    def look(self) -> Look:
        """As the stream takes it."""
        return Look(self.masked, self.outside, self.mask_id)

    def about(self, metric: Embedder) -> dict[str, str]:
        """Everything that embeddings depend on: the model, its weights as they are now, and these settings."""
        return metric.about(self.outside if self.masked else None, self.mask_id)


def mask_name(image: Entry | GalleryItem) -> str:
    """What messages call the mask of an image."""
    return image.files[-1] if image.files else f"of {image.place}"


def to_embed(entry: Entry, masking: Masking, source: Any, heads: dict[Any, FileHead]) -> Item:
    """An entry as an item of the stream, which reads it in a thread, and notes the head of its file by `source`."""

    def read() -> Named:
        data = _bytes(entry.image, entry.place, entry.place)
        heads[source] = head_of(data.getvalue())
        return data

    mask = None
    if masking.masked and entry.mask is not None:
        mask = partial(_bytes, entry.mask, mask_name(entry), entry.place)
    return Item(entry.place, read, mask, source=source)


def _bytes(read: Callable[[], bytes], name: str, place: str) -> Named:
    """The bytes of a file under the name that messages use; ImageReadError if it cannot be read."""
    try:
        return Named(read(), name)
    except OSError as error:
        other_file = f"{error.filename}: " if error.filename not in (None, place) else ""
        raise ImageReadError(place, f"{other_file}{error.strerror or error}") from error


@dataclass(frozen=True)
class FileHead:
    """Facts about a file: width and height as stored, 0 if its head cannot be read; its bytes; several frames."""

    width: int = 0
    height: int = 0
    size: int = 0
    is_animation: bool = False


def head_of(data: bytes) -> FileHead:
    """Read the head of an image's file."""
    with suppress(Exception), open_file(io.BytesIO(data)) as opened:  # decoding reports the reason
        return FileHead(*opened.size, len(data), is_animated(opened))
    return FileHead(size=len(data))
