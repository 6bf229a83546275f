"""Where the images of an import go: files with names that say what they are, or bytes within the manifest."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idmetric.data.importers.source import SourceError
from idmetric.io.output import replacing, writing

_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}  # on Windows
_ENDINGS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif", "MPO": ".jpg"}


@dataclass
class Images:
    """Keeps images of a dataset.

    Attributes:
        folder: where bytes become files; None leaves them bytes, in memory and in the manifest.
        dry: write nothing.
        written, reused: files written, and files that were there already with the same content.
        replaced: of those written, how many were there with another content: damaged, or of another dataset.
    """

    folder: Path | None
    dry: bool = False
    written: int = 0
    reused: int = 0
    replaced: int = 0
    _taken: set[int] = field(default_factory=set, repr=False)  # hashes of the paths given to named images

    def keep(self, value: Any, name: str | None, locate: Callable[[str], Path], column: str = "path") -> dict[str, Any]:
        """The columns of a row that hold this image; empty where there is none.

        Args:
            value: bytes, a path, {"bytes": ..., "path": ...} as `datasets` stores images, or None.
            name: of the file, without ending; None names it by its content, so that equal images share a file.
            locate: finds the file that a path means, such as `Source.locate`.
            column: "path", "mask" or "part_mask".

        Raises:
            SourceError: for a value of another kind, a path that may not be, or a name given to two images.
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
            self._take(file, name)
        path = self.folder / file
        there = path.is_file()
        if there and path.stat().st_size == len(data) and path.read_bytes() == data:
            self.reused += 1
            return path
        self.replaced += there
        if not self.dry:
            _write_whole(path, data)
        self.written += 1
        return path

    def _take(self, file: str, name: str) -> None:
        """One file for one image; only a hash of each is kept, for there may be millions."""
        key = int.from_bytes(hashlib.blake2b(file.encode(), digest_size=8).digest(), "big")
        if key in self._taken:
            raise SourceError(f"two images are called {name!r}; one would replace the other at {file}")
        self._taken.add(key)


def safe(name: str) -> str:
    """A name that every file system takes, and no other name turns into, be it one that ignores case; folders stay.

    What is not safe already in every respect (lower-case ASCII, not empty, not reserved on Windows, not too long) gets
    a hash of its part of the name.
    """
    return "/".join(_safe(part) for part in name.split("/"))


def _safe(part: str) -> str:
    plain = re.sub(r"[^\w+=-]+", "_", part, flags=re.ASCII)[:100]
    hashed = re.search(r"-[0-9a-f]{12}$", plain)  # may be what another name turns into
    if part and plain == part == part.lower() and part not in _RESERVED and not hashed:
        return part
    return f"{plain or '_'}-{hashlib.sha256(part.encode(errors='surrogatepass')).hexdigest()[:12]}"


def content(value: Any) -> tuple[bytes | None, str | None]:
    """Bytes or path of an image as tables hold it; neither where there is none.

    Raises:
        SourceError: for a value of another kind.
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
    raise SourceError(f"a {type(value).__name__} holds no image; bytes and paths do")


def _ending(data: bytes) -> str:
    """By content, since published names are often wrong; ".bin" for what is no image, which the check will name."""
    from idmetric.images.opening import open_file

    try:
        with open_file(io.BytesIO(data)) as image:
            return _ENDINGS.get(image.format or "", f".{(image.format or 'bin').lower()}")
    except Exception:  # plugins raise many kinds of error on damaged headers
        return ".bin"


def _write_whole(path: Path, data: bytes) -> None:
    """Whole or not at all, also when the process is killed."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(data)
