"""Where images and results lie: local paths, and addresses of object stores, as pyarrow's file systems."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from idmetric.gallery.index import GalleryError
from idmetric.gallery.sources import content, walk
from idmetric.inputs import is_hidden
from idmetric.output import replacing, writing
from idmetric.text_file import MOST

# files appear there whole when they are closed; elsewhere they are written beside and then renamed
_WHOLE = ("s3", "gcs", "abfs")
_BUCKETS = ("s3", "gs", "gcs", "abfs", "abfss")
_WEB = ("http", "https", "ftp", "ftps")


class ScaleError(RuntimeError):
    """Something about a source or a folder of embeddings; the message says what, and the way out."""


@dataclass(frozen=True)
class Place:
    """A file or folder.

    Attributes:
        path: in the file system. system: pyarrow's; None for this machine's files.
        name: what people call it: an absolute path or an address.
    """

    path: str
    name: str
    system: Any = None

    def child(self, path: str) -> Place:
        """What lies in this folder under a relative path; an absolute path or an address stands for itself."""
        if "://" in path:
            return place(path)
        if path.startswith("/") or (self.system is None and os.path.isabs(path)):
            own = self.name[: -len(self.path)] if self.system is not None and self.name.endswith(self.path) else ""
            return Place(path, own + path, self.system)
        return Place(f"{self.path.rstrip('/')}/{path}", f"{self.name.rstrip('/')}/{path}", self.system)

    @property
    def parent(self) -> Place:
        """The folder that it lies in."""
        return Place(self.path.rpartition("/")[0], self.name.rpartition("/")[0], self.system)

    @property
    def local(self) -> Path | None:
        """Where it lies on this machine's disks; None if it does not, or nobody knows."""
        return Path(self.path) if self.system is None or self.system.type_name == "local" else None

    def info(self) -> tuple[str, int]:
        """("file", its size), ("folder", 0) or ("nothing", 0)."""
        if self.system is None:
            kind = "folder" if os.path.isdir(self.path) else "file" if os.path.isfile(self.path) else "nothing"
            return kind, os.path.getsize(self.path) if kind == "file" else 0
        from pyarrow.fs import FileType

        found = self.system.get_file_info(self.path)
        kinds = {FileType.Directory: "folder", FileType.File: "file"}
        return kinds.get(found.type, "nothing"), found.size or 0

    def read(self, most: int = MOST) -> bytes:
        """All bytes; OSError if it cannot be read, has more than `most`, or may have no end (a pipe, a device)."""
        if self.system is None:
            return content(self.path, most)
        try:
            with self.system.open_input_stream(self.path) as file:
                data: bytes = file.read(most + 1)
        except ValueError as error:  # pyarrow's way to say that there can be no such name
            raise OSError(str(error)) from error
        if len(data) > most:
            raise OSError(f"it has more than {most} bytes")
        return data

    def opened(self) -> Any:
        """What pyarrow's Parquet reader takes."""
        if self.system is None:
            return self.path
        return self.system.open_input_file(self.path)

    def files(self) -> list[str]:
        """Files below a folder, hidden ones left out, as paths relative to it, in order.

        Raises:
            ScaleError: if it cannot be listed.
        """
        if self.system is None:
            try:
                return [path.relative_to(self.path).as_posix() for path in walk(Path(self.path))]
            except GalleryError as error:
                raise ScaleError(str(error)) from error
        from pyarrow.fs import FileSelector, FileType

        try:
            found = self.system.get_file_info(FileSelector(self.path, recursive=True))
        except OSError as error:
            raise ScaleError(f"cannot list {self.name!r}: {error}") from error
        base = len(self.path.rstrip("/")) + 1
        names = [info.path[base:] for info in found if info.type == FileType.File]
        return sorted(name for name in names if not any(is_hidden(part) for part in name.split("/")))

    def hidden(self) -> dict[str, float | None]:
        """The hidden files of a folder itself, and when they were written last (seconds of Unix time), if known."""
        if self.system is None:
            with os.scandir(self.path) as found:
                return {entry.name: entry.stat().st_mtime for entry in found if entry.name.startswith(".")}
        from pyarrow.fs import FileSelector

        infos = self.system.get_file_info(FileSelector(self.path))
        return {i.base_name: i.mtime_ns and i.mtime_ns / 1e9 for i in infos if i.base_name.startswith(".")}

    def make(self) -> None:
        """Make the folder."""
        if self.system is not None:
            self.system.create_dir(self.path, recursive=True)
            return
        with writing(self.name):
            os.makedirs(self.path, exist_ok=True)

    def delete(self) -> None:
        """Delete the file, if it is there."""
        if self.system is None:
            Path(self.path).unlink(missing_ok=True)
        elif self.info()[0] == "file":
            self.system.delete_file(self.path)

    @contextmanager
    def replacing(self) -> Iterator[Any]:
        """What Parquet is written to; it takes the file's place when the block ends well, and else goes."""
        if self.system is None:
            with replacing(Path(self.path)) as temporary, open(temporary, "wb") as file:
                yield file
            return
        direct = self.system.type_name in _WHOLE
        folder, _, name = self.path.rpartition("/")
        beside = self.path if direct else f"{folder}/.{name}.{uuid.uuid4().hex[:12]}"
        try:
            with self.system.open_output_stream(beside) as file:
                yield file
            if not direct:
                self.system.move(beside, self.path)
        except BaseException:
            if not direct and self.system.get_file_info(beside).is_file:
                self.system.delete_file(beside)
            raise


def place(address: str | os.PathLike[str], system: Any = None) -> Place:
    """Where an address leads.

    Args:
        address: a local path, or `scheme://...` that pyarrow or an installed fsspec knows (`s3://`, `gs://`, `file://`).
        system: a file system of pyarrow or fsspec, in which the address is a path.

    Raises:
        ScaleError: for a scheme that nobody knows, a store that cannot be opened, and addresses of web servers.
    """
    text = os.fspath(address)
    if system is not None:
        return Place(text.rstrip("/"), text.rstrip("/"), _of_pyarrow(system))
    if "://" not in text:
        return Place(os.path.abspath(text), os.path.abspath(text))
    scheme, _, rest = text.partition("://")
    host, _, below = rest.partition("/")
    if scheme in _WEB:
        raise ScaleError(f"{text!r}: addresses of web servers are not fetched: download it and name the file")
    if not host and scheme in _BUCKETS:
        raise ScaleError(f"{text!r} names no bucket: {scheme}://bucket/folder")
    found, base = _opened(scheme, host)
    return Place((base + below).rstrip("/") or "/", text.rstrip("/"), found)


@lru_cache(maxsize=64)
def _opened(scheme: str, host: str) -> tuple[Any, str]:
    """The file system of an address's beginning, and what stands before its paths in it."""
    from pyarrow import fs

    text = f"{scheme}://{host}/x"  # what follows is a name and no URI: it may hold spaces, %, ? and #
    try:
        found, path = fs.FileSystem.from_uri(text)
    except (ValueError, OSError) as unknown:
        try:
            import fsspec

            inner, path = fsspec.core.url_to_fs(text)
            found = _of_pyarrow(inner)
        except (ImportError, ValueError) as error:
            raise ScaleError(
                f"{scheme}://{host}: neither pyarrow ({unknown}) nor fsspec ({error}) opens it: check its name, the "
                "network and your credentials, install fsspec's package for it, or, in Python, give filesystem="
            ) from error
    return found, path[:-1]


def _of_pyarrow(system: Any) -> Any:
    from pyarrow import fs

    return system if isinstance(system, fs.FileSystem) else fs.PyFileSystem(fs.FSSpecHandler(system))
