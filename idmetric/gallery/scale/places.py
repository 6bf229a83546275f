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

from idmetric.gallery.sources import GalleryError, walk
from idmetric.metric.files.output import replacing, writing
from idmetric.metric.images.paths import is_hidden
from idmetric.metric.scoring.keys import content

_WEB = ("http://", "https://", "ftp://")
# what stores call a file's hash or the time of its last change
_STAMPS = ("ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created")


class ScaleError(RuntimeError):
    """A source or a folder of embeddings cannot be used; the message says why and how to fix it."""


@dataclass(frozen=True)
class Place:
    """A file or folder: its path, and fsspec's file system."""

    path: str
    system: Any

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return "file" in self.system.protocol

    @property
    def name(self) -> str:
        """The absolute path or the address."""
        return self.path if self.is_local else str(self.system.unstrip_protocol(self.path))

    def child(self, path: str) -> Place:
        """Return the place of a path relative to this folder, or of an absolute path."""
        return replace(self, path=os.path.join(self.path, path))

    def kind(self) -> str:
        """Return "file", "folder" or "nothing"."""
        with self._naming():
            return "folder" if self.system.isdir(self.path) else "file" if self.system.exists(self.path) else "nothing"

    def read(self) -> bytes:
        """Read all bytes; OSError if that fails."""
        if self.is_local:
            return content(self.path)
        with self._naming():
            data: bytes = self.system.cat_file(self.path)
        return data

    def opened(self) -> Any:
        """Return an open file for pyarrow; ScaleError for a pipe or a device."""
        if self.is_local and os.path.exists(self.path) and not os.path.isfile(self.path):
            raise ScaleError(f"{self.name!r} is a pipe, a device or a folder: name a file, or remove it")
        with self._naming():
            return self.system.open(self.path, "rb")

    def stamp(self) -> str:
        """Return size and time of the file, which differ once it has changed; empty if it cannot be found."""
        try:
            with self._naming():
                info = self.system.info(self.path)
        except OSError:
            return ""
        return f"{info.get('size')} {next((info[key] for key in _STAMPS if key in info), '')}"

    def files(self) -> list[str]:
        """Return the files below a folder, except hidden ones, as sorted relative paths."""
        try:
            if self.is_local:
                return [path.relative_to(self.path).as_posix() for path in walk(Path(self.path))]
            with self._naming():
                found = self.system.find(self.path)
        except (GalleryError, OSError) as error:
            raise ScaleError(f"cannot list {self.name!r}: {error}") from error
        base = len(self.path.strip("/")) + 1
        names = sorted(path.lstrip("/")[base:] for path in found)
        return [name for name in names if not any(map(is_hidden, name.split("/")))]

    def make(self) -> None:
        """Make the folder."""
        with self._naming(), writing(self.name):
            self.system.makedirs(self.path, exist_ok=True)

    def delete(self) -> None:
        """Delete the file."""
        with self._naming():
            self.system.rm_file(self.path)

    @contextmanager
    def replacing(self) -> Iterator[Path]:
        """A temporary file on this machine that takes the place of this one if the block succeeds."""
        if self.is_local:
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
    """Return the place of a local path, or of an address that fsspec knows (with s3fs or gcsfs `s3://`, `gs://`)."""
    text = os.fspath(address)
    if text.lower().startswith(_WEB):
        raise ScaleError(f"{text!r}: addresses of web servers are not fetched: download it and name the file")
    if "://" in text and (
        "::" in text or text.count("://") > 1
    ):  # simplecache::http://HOST/..., reference://http://...
        raise ScaleError(
            f"{text!r}: an address inside an address is not opened: copy the data, and name the file or folder"
        )
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    if "://" not in text:
        return Place(os.path.abspath(text), LocalFileSystem())
    try:
        system, path = fsspec.core.url_to_fs(text)
    except Exception as error:  # fsspec's packages raise errors of many kinds
        raise ScaleError(
            f"{text!r}: fsspec does not open it ({str(error) or type(error).__name__}): check its name, network "
            "and your credentials, or install fsspec's package for it"
        ) from error
    return Place(path.rstrip("/"), system)
