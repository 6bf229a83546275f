"""Storage of imported images, as named files or as bytes in the manifest, and the parts of photos within boxes."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from idmetric.data.importers.source import SourceError
from idmetric.io.output import replacing

Box = tuple[int, int, int, int]  # x and y of the top left corner, width, height
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}  # on Windows
_ENDINGS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif", "MPO": ".jpg"}


@dataclass
class Images:
    """Stores the images of a dataset.

    Attributes:
        folder: of the files; None keeps bytes in memory and in the manifest.
        dry: write nothing.
        written, reused, replaced: number of files written, of existing files with the same content, and of written ones
            that were there with another content.
    """

    folder: Path | None
    dry: bool = False
    written: int = 0
    reused: int = 0
    replaced: int = 0
    _taken: set[str] = field(default_factory=set, repr=False)  # the paths given to named images

    def keep(self, value: Any, name: str | None, locate: Callable[[str], Path], column: str = "path") -> dict[str, Any]:
        """The columns of a row that hold this image; {} if there is no image.

        Args:
            value: bytes, a path, {"bytes": ..., "path": ...} as `datasets` stores images, or None.
            name: of the file, without extension; None names it by its content, and equal images share a file.
            locate: returns the file of a path, such as `Source.locate`.
            column: "path", "mask" or "part_mask".

        Raises:
            SourceError: for a value of another type, a forbidden path, or a name that two images share.
            OSError: if a file cannot be written.
        """
        data, path = content(value)
        if data is None:
            return {} if path is None else {column: str(locate(path).absolute())}
        if self.folder is None:
            return {"image_bytes" if column == "path" else f"{column}_bytes": data}
        return {column: str(self._write(data, name).absolute())}

    def _write(self, data: bytes, name: str | None) -> Path:
        assert self.folder is not None
        if name is None:
            digest = hashlib.sha256(data).hexdigest()
            file = f"{digest[:2]}/{digest[:32]}{_ending(data)}"
        else:
            file = f"{safe(name)}{_ending(data)}"
            if file in self._taken:
                raise SourceError(f"two images are called {name!r}; one would replace the other at {file}")
            self._taken.add(file)

        path = self.folder / file
        there = path.is_file()
        if there and path.stat().st_size == len(data) and path.read_bytes() == data:
            self.reused += 1
            return path

        if not self.dry:
            with replacing(path, parents=True) as temporary:
                temporary.write_bytes(data)
        self.written += 1
        self.replaced += there
        return path


def safe(name: str) -> str:
    """A name that is valid and unique on every file system, including those that ignore case; folders stay.

    A part of the name that isn't safe (lower-case ASCII, not empty, not reserved on Windows, not too long) gets a hash
    of the original appended.
    """
    return "/".join(_safe(part) for part in name.split("/"))


def _safe(part: str) -> str:
    plain = re.sub(r"[^\w+=-]+", "_", part, flags=re.ASCII)[:100]
    hashed = re.search(r"-[0-9a-f]{12}$", plain)  # could be the result for another name
    if part and plain == part == part.lower() and part not in _RESERVED and not hashed:
        return part
    return f"{plain or '_'}-{hashlib.sha256(part.encode(errors='surrogatepass')).hexdigest()[:12]}"


def content(value: Any) -> tuple[bytes | None, str | None]:
    """(bytes, path) of an image in a table; one of them, or both if there is no image, is None.

    Raises:
        SourceError: for a value of another type.
    """
    if isinstance(value, dict) and value.keys() <= {"bytes", "path"}:
        data, path = value.get("bytes"), value.get("path")
        value = path if data is None else data
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), None
    if isinstance(value, str | os.PathLike):
        return None, os.fspath(value) or None
    if value is None:
        return None, None
    raise SourceError(f"a {type(value).__name__} is not an image; give bytes or a path")


def _ending(data: bytes) -> str:
    """The extension by content, because published names are often wrong; ".bin" if the bytes are not an image."""
    from idmetric.images.opening import open_file

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


def cropped(image: Image.Image, boxes: Sequence[Box]) -> bytes | None:
    """The part of an upright image in the smallest box around all boxes, as PNG; None if they lie outside of it.

    As `_crop_resize` of ILIAS's feature extraction does.
    """
    left, top = (max(0, min(box[k] for box in boxes)) for k in (0, 1))
    right, bottom = (min(image.size[k], max(box[k] + box[k + 2] for box in boxes)) for k in (0, 1))
    return png(image.crop((left, top, right, bottom))) if left < right and top < bottom else None
