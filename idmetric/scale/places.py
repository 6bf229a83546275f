"""Places of images and results: local paths, and addresses of object stores, which fsspec opens.

Only an address that the user gives is opened, by `place`; an address in a table is refused (`chunks`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from idmetric.embed.keys import content
from idmetric.gallery.errors import GalleryError
from idmetric.gallery.sources import walk
from idmetric.images.paths import is_hidden
from idmetric.io.output import replacing, writing

_WEB = ("http://", "https://", "ftp://")
_STAMPS = ("size", "ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created")


class ScaleError(RuntimeError):
    """A source or a folder of embeddings cannot be used; the message says why and how to fix it."""


@dataclass(frozen=True)
class Place:
    """A file or folder: its path, and fsspec's file system; None for this machine's files."""

    path: str
    system: Any = None

    @property
    def name(self) -> str:
        """The absolute path or the address."""
        return self.path if self.system is None else str(self.system.unstrip_protocol(self.path))

    def child(self, path: str) -> Place:
        """Return the place of a path relative to this folder, or of an absolute path."""
        return replace(self, path=os.path.join(self.path, path))

    def kind(self) -> str:
        """Return "file", "folder" or "nothing"."""
        if self.system is None:
            return "folder" if os.path.isdir(self.path) else "file" if os.path.isfile(self.path) else "nothing"
        with self._naming():
            return "folder" if self.system.isdir(self.path) else "file" if self.system.exists(self.path) else "nothing"

    def read(self) -> bytes:
        """Read all bytes; OSError if that fails."""
        if self.system is None:
            return content(self.path)
        with self._naming():
            data: bytes = self.system.cat_file(self.path)
        return data

    def opened(self) -> Any:
        """Return an open file for pyarrow."""
        if self.system is None:
            return open(self.path, "rb")
        with self._naming():
            return self.system.open(self.path, "rb")

    def stamp(self) -> str:
        """Return size and time of the file, which differ once it has changed; empty if it cannot be found."""
        try:
            if self.system is not None:
                with self._naming():
                    return _stamp(self.system.info(self.path))
            found = os.stat(self.path)
        except OSError:
            return ""
        return f"{found.st_size} {found.st_mtime_ns}"

    def files(self) -> dict[str, str]:
        """Return the files below a folder, except hidden ones, as sorted relative paths, with their stamps.

        Raises:
            ScaleError: if it cannot be listed.
        """
        try:
            if self.system is None:
                names = [path.relative_to(self.path).as_posix() for path in walk(Path(self.path))]
                return {name: self.child(name).stamp() for name in names}
            with self._naming():
                found = self.system.find(self.path, detail=True)
        except (GalleryError, OSError) as error:
            raise ScaleError(f"cannot list {self.name!r}: {error}") from error
        base = len(self.path.strip("/")) + 1
        below = {path.lstrip("/")[base:]: _stamp(info) for path, info in sorted(found.items())}
        return {name: stamp for name, stamp in below.items() if not any(map(is_hidden, name.split("/")))}

    def make(self) -> None:
        """Make the folder."""
        with self._naming(), writing(self.name):
            if self.system is None:
                os.makedirs(self.path, exist_ok=True)
            else:
                self.system.makedirs(self.path, exist_ok=True)

    def delete(self) -> None:
        """Delete the file."""
        if self.system is None:
            Path(self.path).unlink(missing_ok=True)
        else:
            self.system.rm_file(self.path)

    @contextmanager
    def replacing(self) -> Iterator[Path]:
        """A temporary file on this machine that takes the place of this one if the block succeeds."""
        if self.system is None:
            with replacing(Path(self.path)) as temporary:
                yield temporary
            return
        with tempfile.TemporaryDirectory(prefix="idmetric-") as folder:
            yield Path(folder) / "file"
            with self._naming():
                self.system.put_file(f"{folder}/file", self.path)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Turn the many kinds of errors of fsspec's packages into OSErrors."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self.name}: {type(error).__name__}: {error}") from error


def place(address: str | os.PathLike[str]) -> Place:
    """Return the place of a local path, or of an address that fsspec knows (with s3fs or gcsfs `s3://`, `gs://`).

    Raises:
        ScaleError: for an address that cannot be opened, or of a web server.
    """
    text = os.fspath(address)
    if "://" not in text:
        return Place(os.path.abspath(text))
    if text.lower().startswith(_WEB):
        raise ScaleError(f"{text!r}: addresses of web servers are not fetched: download it and name the file")
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    try:
        system, path = fsspec.core.url_to_fs(text)
    except Exception as error:  # fsspec's packages raise errors of many kinds
        raise ScaleError(
            f"{text!r}: fsspec does not open it ({str(error) or type(error).__name__}): check its name, network "
            "and your credentials, or install fsspec's package for it"
        ) from error
    return Place(path) if isinstance(system, LocalFileSystem) else Place(path.rstrip("/"), system)


def _stamp(info: dict[str, Any]) -> str:
    return " ".join(str(info[key]) for key in _STAMPS if key in info)
