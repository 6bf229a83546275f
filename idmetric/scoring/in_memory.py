"""Images in memory, which stand in the lists of a request among the paths of files."""

from __future__ import annotations

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
