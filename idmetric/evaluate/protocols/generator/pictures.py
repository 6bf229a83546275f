"""What is taken of each image while the models' stream reads it: its size, and the small pictures that show copies."""

from __future__ import annotations

import io
import tempfile
import threading
import weakref

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.images import SIZE, small_picture
from idmetric.stream import Item

ImageSource = str | bytes  # of a manifest's row


class PicturesTaken:
    """Sizes and small pictures of images, by their source in the manifest; small pictures lie in a temporary file."""

    def __init__(self) -> None:
        self._sizes: dict[ImageSource, tuple[int, int]] = {}
        self._places: dict[ImageSource, int] = {}  # in the file
        self._file = tempfile.TemporaryFile(prefix="idmetric-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()

    def take(self, item: Item, picture: Image.Image) -> None:
        """Note the size of an image, and keep its small picture; called while it is read."""
        if not isinstance(item.image, ImageSource):
            return
        self._sizes[item.image] = picture.size
        data = small_picture(picture).tobytes()
        with self._lock:
            self._places[item.image] = self._file.seek(0, io.SEEK_END)
            self._file.write(data)

    def size(self, source: ImageSource) -> tuple[int, int]:
        """Width and height of an image, upright."""
        return self._sizes[source]

    def small(self, source: ImageSource) -> NDArray[np.uint8]:
        """The small picture (SIZE, SIZE, 3) of an image."""
        with self._lock:
            self._file.seek(self._places[source])
            data = self._file.read(SIZE * SIZE * 3)
        return np.frombuffer(data, np.uint8).reshape(SIZE, SIZE, 3)
