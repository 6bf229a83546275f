"""Files that are written atomically, and errors that say which and why."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from idmetric.metric.files import StrPath

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_TOLD = 40  # characters of a file's name that its temporary one begins with


class OutputError(OSError):
    """A file that cannot be written; the message names it, and says why and how to fix it."""

    def __str__(self) -> str:
        return str(self.strerror)


@contextlib.contextmanager
def replacing(path: Path, parents: bool = False) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends well, and else goes.

    It lies next to `path`, under a name that nobody can guess; a link that stands at `path` is replaced, not followed.
    A device or a pipe (/dev/stdout, /dev/null) is written to as it is.

    Args:
        parents: make the folders on the way.

    Raises:
        OutputError: if a file of that name cannot be written there; the file that was there is unchanged.
    """
    with writing(path):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        if _is_device(path):
            yield path
            return
    temporary = _beside(path)
    try:
        with writing(path, temporary):
            handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # less the umask
            mode = os.fstat(handle).st_mode & 0o777
            os.close(handle)
            yield temporary
            temporary.chmod(mode)  # what wrote it may have created it again
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def check(path: StrPath, parents: bool = False) -> None:
    """Whether `replacing` could write there now, to be asked before long work: a hidden file is made and removed.

    Args:
        parents: folders that are not there yet will be made; now none is.
    """
    path = Path(path)
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if _is_device(path):
            return
    target = path  # or the first folder on the way that is not there yet
    while parents and not target.parent.exists():
        target = target.parent
    temporary = _beside(target)
    try:
        with writing(path, temporary), temporary.open("xb") as file:
            file.write(b"\0")  # a full disk has room for the name alone
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def refuse_irregular(path: StrPath) -> None:
    """Refuse a pipe or a device, which might never end; links count as what they lead to, folders pass.

    Raises:
        OSError: for a pipe or a device, and if the file does not exist, or it cannot be looked at.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(f"{os.fspath(path)!r} is a pipe or a device, not a file: remove it")


def file_id(path: StrPath) -> tuple[int, int] | str | None:
    """Equal only for names of the same regular file: links, and other spellings if the disk ignores case.

    None if it does not exist, or is a folder, a pipe or a device.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    if not status.st_ino:  # a file system without numbers of files, where all files would count as one
        return os.path.normcase(os.path.realpath(path))
    return status.st_dev, status.st_ino


def is_same_file(a: str, b: str) -> bool:
    """Whether two paths lead to one file."""
    if os.path.realpath(a) == os.path.realpath(b):
        return True
    id_a = file_id(a)
    return id_a is not None and id_a == file_id(b)


def _is_device(path: Path) -> bool:
    """A device or pipe, also a link in /dev that leads to a file, as /dev/stdout may."""
    return path.exists() and not path.is_dir() and (not path.is_file() or path.parent == Path("/dev"))


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:_TOLD]}.{uuid.uuid4().hex[:12]}")


@contextlib.contextmanager
def writing(path: StrPath, *also: StrPath) -> Iterator[None]:
    """Errors inside that mean `path` cannot be written say so, and how to fix it.

    Args:
        also: other names that it has while it is written. Errors that name other files pass as they are, unless these
            lie in a folder of such a name.

    Raises:
        OutputError: for a full disk, a folder that is read-only or not there, or safetensors' error about any of them.
    """
    try:
        yield
    except OutputError as error:
        if error.filename not in [os.fspath(name) for name in also]:
            raise
        message = str(error).replace(repr(error.filename), repr(os.fspath(path)))
        raise OutputError(error.errno, message, os.fspath(path)) from error
    except OSError as error:
        if error.errno not in _REASONS or not _is_of(error.filename, (path, *also)):
            raise
        message = _explain(path, _REASONS[error.errno])
        raise OutputError(error.errno, message, os.fspath(path)) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # safetensors hides the system's error in its own
            raise
        reason = str(error)
        number = re.search(r"os error (\d+)", reason)
        if number is not None:
            reason = _REASONS.get(int(number[1]), reason)
        raise OutputError(errno.EIO, _explain(path, reason), os.fspath(path)) from error


def _is_of(name: object, paths: Iterable[StrPath]) -> bool:
    """Whether an error's file name is one of the paths or lies below one; an error without a name counts."""
    if name is None:
        return True
    file = Path(str(name))
    return any(file.is_relative_to(path) for path in paths)


_REASONS = {
    **dict.fromkeys(_FULL, "the disk is full, or a limit on file sizes is reached: free space, or name another place"),
    **dict.fromkeys(_CLOSED, "its folder is read-only for you: change its permissions, or name another place"),
    **dict.fromkeys(_NO_DESCRIPTORS, "too many open files"),
    errno.ENOENT: "its folder is not there: make it, or name another place",
    errno.EEXIST: "there is a file of that name: name another place",
    errno.ENOTDIR: "what should be its folder is a file: name another place",
    errno.EISDIR: "there is a folder of that name: name another place",
    errno.ENAMETOOLONG: "its name is too long: give a shorter one",
}


def _explain(path: StrPath, reason: str) -> str:
    return f"cannot write {os.fspath(path)!r}: {reason}"
