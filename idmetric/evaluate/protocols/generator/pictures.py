"""What is taken of each image while the models' stream reads it: its size, and the small pictures that show copies."""

from __future__ import annotations

import io
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.images.kinds import describe
from idmetric.metric.images.opening import open_file
from idmetric.metric.images.small import SIZE, small_picture
from idmetric.stream.item import Item

if TYPE_CHECKING:
    from idmetric.matching.regions import Region

ImageSource = str | bytes  # of a manifest's row


class PicturesTaken:
    """Sizes and small pictures of images, by their source in the manifest; small pictures lie in a temporary file.

    Args:
        regions: of images by source, which get small pictures of their own.
    """

    def __init__(self, regions: Mapping[Any, Sequence[Region]] | None = None) -> None:
        self._regions = regions or {}
        self._sizes: dict[ImageSource, tuple[int, int]] = {}
        self._places: dict[ImageSource, tuple[int, int]] = {}  # offset and length in the file
        self._file = tempfile.TemporaryFile(prefix="idmetric-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()

    def take_size(self, item: Item, data: bytes) -> None:
        """Note an image's size as stored; a `Head` of the stream."""
        if isinstance(item.image, ImageSource):
            with suppress(Exception), open_file(io.BytesIO(data)) as image:  # decoding reports the reason
                self._sizes[item.image] = image.size

    def take(self, item: Item, picture: Image.Image) -> None:
        """Keep the small pictures of an image and its regions; a `Want` of the stream."""
        if not isinstance(item.image, ImageSource):
            return
        pictures = [small_picture(picture)]
        if item.image in self._regions:
            from idmetric.matching import Cut

            name = describe(item.image)
            for region in self._regions[item.image]:
                piece = Cut().cut(picture, region, name).pixels
                assert isinstance(piece, Image.Image)  # as the picture is
                pictures.append(small_picture(piece))
        data = np.stack(pictures).tobytes()
        with self._lock:
            self._places[item.image] = self._file.seek(0, io.SEEK_END), len(data)
            self._file.write(data)

    def size(self, source: ImageSource) -> tuple[int, int]:
        """Width and height of an image as stored."""
        return self._sizes[source]

    def small(self, source: ImageSource) -> NDArray[np.uint8]:
        """Small pictures (1 + regions, SIZE, SIZE, 3) of an image and of its regions."""
        offset, length = self._places[source]
        with self._lock:
            self._file.seek(offset)
            data = self._file.read(length)
        return np.frombuffer(data, np.uint8).reshape(-1, SIZE, SIZE, 3)
