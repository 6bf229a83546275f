"""Where the images of an import go: files with names that say what they are, or bytes within the manifest."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.data.importers.source import SourceError

_ENDINGS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif", "MPO": ".jpg"}


@dataclass
class Images:
    """Keeps images of a dataset.

    Attributes:
        folder: where bytes become files; None leaves them bytes, in memory and in the manifest.
        dry: write nothing.
        written, reused: files written, and files that were there already.
    """

    folder: Path | None
    dry: bool = False
    written: int = 0
    reused: int = 0

    def keep(self, value: Any, name: str | None, root: Path, column: str = "path") -> dict[str, Any]:
        """The columns of a row that hold this image; empty where there is none.

        Args:
            value: bytes, a path (relative to root), {"bytes": ..., "path": ...} as `datasets` stores images, or None.
            name: of the file, without ending; None names it by its content, so that equal images share a file.
            root: folder of the dataset.
            column: "path", "mask" or "part_mask".

        Raises:
            SourceError: for a value of another kind, or a file that cannot be written.
        """
        data, path = content(value)
        if data is None:
            return {} if path is None else {column: str((root / path).absolute())}
        if self.folder is None:
            return {"image_bytes" if column == "path" else f"{column}_bytes": data}
        return {column: str(self._write(data, name).absolute())}

    def _write(self, data: bytes, name: str | None) -> Path:
        assert self.folder is not None
        if name is None:
            digest = hashlib.sha256(data).hexdigest()
            name = f"{digest[:2]}/{digest[:32]}"
        path = self.folder / f"{safe(name)}{_ending(data)}"
        if path.is_file() and path.stat().st_size == len(data):
            self.reused += 1
            return path
        if not self.dry:
            _write_whole(path, data)
        self.written += 1
        return path


def safe(name: str) -> str:
    """A name that every file system takes, and no other name turns into; folders stay."""
    return "/".join(_safe(part) for part in name.split("/") if part)


def _safe(part: str) -> str:
    plain = re.sub(r"[^\w+=-]+", "_", part, flags=re.ASCII)[:100]
    return part if plain == part else f"{plain}-{hashlib.sha256(part.encode()).hexdigest()[:12]}"


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
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return _ENDINGS.get(image.format or "", f".{(image.format or 'bin').lower()}")
    except Exception:  # plugins raise many kinds of error on damaged headers
        return ".bin"


def _write_whole(path: Path, data: bytes) -> None:
    """Whole or not at all, also when the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
