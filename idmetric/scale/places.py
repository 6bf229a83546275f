"""Places of images and results: local paths, and addresses of object stores, which fsspec opens.

An address from the user is opened. An address in a table or list comes from whoever wrote that file: it is opened only
if each of its protocols is the protocol of the table or list itself, or one that the user allowed. No other module
opens addresses.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from idmetric.embed.keys import content
from idmetric.gallery.errors import GalleryError
from idmetric.gallery.sources import walk
from idmetric.images.paths import is_hidden
from idmetric.io.json_file import MOST
from idmetric.io.output import replacing, writing

_BUCKETS = ("s3", "gs", "gcs", "abfs", "abfss")
_WEB = ("http", "https", "ftp", "ftps")
_INDIRECT = ("reference", "generic")  # their contents name other addresses, of any protocol
_LOCAL = frozenset({"file", "local"})
_PROTOCOL = "[a-z][a-z0-9.-]*"
# chained protocols (simplecache::s3://), host or bucket, path; a host with ? or # would carry options
_ADDRESS = re.compile(rf"({_PROTOCOL}(?:::{_PROTOCOL})*)://([^/?#]*)(?:/(.*))?", re.IGNORECASE | re.DOTALL)


class ScaleError(RuntimeError):
    """A source or a folder of embeddings cannot be used; the message says why and how to fix it."""


@dataclass(frozen=True)
class Place:
    """A file or folder.

    Attributes:
        path: in the file system. system: fsspec's; None for this machine's files.
        name: an absolute path or an address, for messages.
        allow: protocols that addresses in the file may have.
    """

    path: str
    name: str
    system: Any = None
    allow: frozenset[str] = _LOCAL

    def child(self, path: str) -> Place:
        """Return the place of a path relative to this folder, of an absolute path, or of an address.

        Raises:
            ScaleError: for an address with a protocol that is not in `allow`, before anything is opened.
        """
        if "://" in path:
            protocols = _parsed(path)[0].split("::")
            if refused := [protocol for protocol in protocols if protocol not in self.allow]:
                raise ScaleError(
                    f"{path!r} is not opened: a table or list names it, and {refused[0]} is not allowed there; if you "
                    f"trust it, add --allow {refused[0]} (in Python allow=[{refused[0]!r}])"
                )
            return place(path, allow=self.allow)
        if path.startswith("/") or (self.system is None and os.path.isabs(path)):
            own = self.name.removesuffix(self.path) if self.name != self.path else ""
            return replace(self, path=path, name=own + path)
        return replace(self, path=f"{self.path.rstrip('/')}/{path}", name=f"{self.name.rstrip('/')}/{path}")

    @property
    def parent(self) -> Place:
        """The folder that holds it."""
        return replace(self, path=self.path.rpartition("/")[0], name=self.name.rpartition("/")[0])

    def kind(self) -> str:
        """Return "file", "folder" or "nothing"."""
        if self.system is None:
            return "folder" if os.path.isdir(self.path) else "file" if os.path.isfile(self.path) else "nothing"
        with self._naming():
            try:
                return "folder" if self.system.info(self.path)["type"] == "directory" else "file"
            except FileNotFoundError:
                return "nothing"

    def read(self, most: int = MOST) -> bytes:
        """Read all bytes; OSError if that fails, there are more than `most`, or it may have no end (pipe, device)."""
        if self.system is None:
            return content(self.path, most)
        with self._naming(), self.system.open(self.path, "rb") as file:
            data: bytes = file.read(most + 1)
        if len(data) > most:
            raise OSError(f"it has more than {most} bytes")
        return data

    def opened(self) -> Any:
        """Return an open file for pyarrow."""
        if self.system is None:
            import pyarrow as pa

            return pa.OSFile(self.path)
        with self._naming():
            return self.system.open(self.path, "rb")

    def files(self) -> list[str]:
        """Return the files below a folder, except hidden ones, as sorted paths relative to it.

        Raises:
            ScaleError: if it cannot be listed.
        """
        try:
            if self.system is None:
                return [path.relative_to(self.path).as_posix() for path in walk(Path(self.path))]
            with self._naming():
                found = self.system.find(self.path)
        except GalleryError as error:
            raise ScaleError(str(error)) from error
        except OSError as error:
            raise ScaleError(f"cannot list {self.name!r}: {error}") from error
        base = len(self.path.strip("/")) + 1
        names = [path.lstrip("/")[base:] for path in found]
        return sorted(name for name in names if not any(is_hidden(part) for part in name.split("/")))

    def make(self) -> None:
        """Make the folder."""
        with self._naming(), writing(self.name):
            if self.system is None:
                os.makedirs(self.path, exist_ok=True)
            else:
                self.system.makedirs(self.path, exist_ok=True)

    def delete(self) -> None:
        """Delete the file if it exists."""
        if self.system is None:
            Path(self.path).unlink(missing_ok=True)
        elif self.kind() == "file":
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


def place(address: str | os.PathLike[str], system: Any = None, allow: Iterable[str] = ()) -> Place:
    """Return the place of an address from the user.

    Args:
        address: a local path, or `scheme://...` that fsspec knows (`file://`; with s3fs or gcsfs `s3://`, `gs://`).
        system: a file system of fsspec or pyarrow, in which the address is a path.
        allow: protocols that addresses in this table or list may have in addition to its own.

    Raises:
        ScaleError: for an unknown scheme, a store that cannot be opened, and addresses of web servers.
    """
    text, more = os.fspath(address), frozenset(allow)
    if system is not None and not _is_local(system):
        return Place(text.rstrip("/"), text.rstrip("/"), _of_fsspec(system), more)
    if "://" not in text:
        return Place(os.path.abspath(text), os.path.abspath(text), None, _LOCAL | more)
    protocols, host, below = _parsed(text)
    if not host and protocols in _BUCKETS:
        raise ScaleError(f"{text!r} names no bucket: {protocols}://bucket/folder")
    if protocols in _LOCAL:
        return Place(f"/{below}".rstrip("/") or "/", text.rstrip("/"), None, _LOCAL | more)
    found, base = _opened(protocols, host)
    return Place((base + below).rstrip("/") or "/", text.rstrip("/"), found, more | set(protocols.split("::")))


def checked_protocols(allow: str | Iterable[str]) -> tuple[str, ...]:
    """Check the protocols that the user allows in tables and lists, such as "s3".

    Raises:
        ValueError: for a protocol that is never opened, or text that cannot name one.
    """
    names = tuple(name.removesuffix("://").lower() for name in ([allow] if isinstance(allow, str) else allow))
    for name in names:
        if not re.fullmatch(_PROTOCOL, name):
            raise ValueError(f"allow={name!r} is not the name of a protocol, such as s3")
        if name in _WEB + _INDIRECT:
            raise ValueError(f"allow={name!r}: addresses of this protocol are never opened")
    return names


def _parsed(text: str) -> tuple[str, str, str]:
    """Split an address into protocols (chained by ::), host and path; open nothing.

    Raises:
        ScaleError: for an address that is never opened.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or "::" in found[2]:  # zip://a.png::http://host
        raise ScaleError(f"{text!r} is not an address of the form protocol://host/path")
    protocols = found[1].lower()
    for protocol in protocols.split("::"):
        if protocol in _WEB:
            raise ScaleError(f"{text!r}: addresses of web servers are not fetched: download it and name the file")
        if protocol in _INDIRECT:
            raise ScaleError(f"{text!r}: {protocol}:// leads to other addresses, and is not opened: name these")
    return protocols, found[2], found[3] or ""


@lru_cache(maxsize=64)
def _opened(protocols: str, host: str) -> tuple[Any, str]:
    """Return the file system of an address, and the prefix of its paths."""
    import fsspec

    try:  # what follows is a name, not a URI: it may hold spaces, %, ? and #
        found, path = fsspec.core.url_to_fs(f"{protocols}://{host}/x")
    except Exception as error:  # fsspec's packages raise errors of many kinds
        raise ScaleError(
            f"{protocols}://{host}: fsspec does not open it ({str(error) or type(error).__name__}): check its name, "
            "the network and your credentials, install fsspec's package for it, or, in Python, give filesystem="
        ) from error
    return found, path[:-1]


def _is_local(system: Any) -> bool:
    """Whether a file system of fsspec or pyarrow is that of this machine, with its locks and renames."""
    names: Any = getattr(system, "type_name", None) or getattr(system, "protocol", ())
    return bool(_LOCAL.intersection([names] if isinstance(names, str) else names))


def _of_fsspec(system: Any) -> Any:
    from fsspec import AbstractFileSystem
    from fsspec.implementations.arrow import ArrowFSWrapper

    return system if isinstance(system, AbstractFileSystem) else ArrowFSWrapper(system)
