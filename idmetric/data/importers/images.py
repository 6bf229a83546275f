"""Images in tables: their bytes or paths, their extensions, and the parts of photos within boxes."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

from PIL import Image

from idmetric.data.old_manifest.errors import ManifestError
from idmetric.metric.images import open_file

_ENDINGS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif", "MPO": ".jpg"}


def content(value: Any) -> tuple[bytes | None, str | None]:
    """(bytes, path) of an image in a table; one of them is None; both are for a row without an image."""
    if isinstance(value, Mapping):
        data, path = value.get("bytes"), value.get("path")
        value = path if data is None else data
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), None
    if isinstance(value, str | os.PathLike):
        return None, os.fspath(value) or None
    if value is None:
        return None, None
    raise ManifestError(f"a {type(value).__name__} is not an image; give bytes or a path")


def ending_of(data: bytes) -> str:
    """The extension by content, because published names are often wrong; ".bin" if the bytes are not an image."""
    try:
        with open_file(io.BytesIO(data)) as image:
            return _ENDINGS.get(image.format or "", f".{(image.format or 'bin').lower()}")
    except Exception:  # plugins raise many kinds of error on damaged headers
        return ".bin"


def png(image: Image.Image) -> bytes:
    """An image as PNG, kept without loss."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
