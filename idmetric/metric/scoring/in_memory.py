"""Images in memory, which stand in the lists of a request among the paths of files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ImageInMemory(str):
    """The name of an image in memory, such as image[3], in place of a file's path.

    Attributes:
        image: of any kind of `ImageLike` but a path.
    """

    image: Any

    def __new__(cls, name: str, image: Any) -> ImageInMemory:
        path = super().__new__(cls, name)
        path.image = image
        return path


def source_of(path: str | None) -> Any:
    """What is read: the image in memory, or else the path."""
    return path.image if isinstance(path, ImageInMemory) else path


@contextmanager
def under_their_names(*paths: str | None) -> Iterator[None]:
    """Have errors about images in memory call them by their names."""
    from idmetric.metric.images.kinds import ImageReadError, describe  # Pillow: not for --help

    try:
        yield
    except ImageReadError as error:
        for path in paths:
            if isinstance(path, ImageInMemory) and error.source == describe(path.image):
                raise ImageReadError(path, error.reason) from error
        raise
