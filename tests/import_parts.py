"""Files of published datasets in small, and imports that must fail, for the tests of the importers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from idmetric.data.importers.run import import_dataset
from idmetric.data.old_manifest.errors import ManifestError


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def png(value: int, size: tuple[int, int] = (6, 4), kind: str = "PNG") -> bytes:
    """An image of one color, which encodes its number."""
    return encoded(Image.new("RGB", size, (value % 256, value // 256, 7)), kind)


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_all(root: Path, *names: str, data: bytes = png(1)) -> None:
    """Files of the same content."""
    for name in names:
        put(root / name, data)


def refuses(message: str, kind: str, source: Any, **given: Any) -> None:
    """An import stops with this message, a regular expression."""
    with pytest.raises(ManifestError, match=message):
        import_dataset(kind, source, **given)
