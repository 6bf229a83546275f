"""Digests that files hold of their own bytes, so that a file that was damaged on its way is refused.

    save_sealed(tensors, path, metadata)    # a safetensors file
    content = {**BLANK, **content}          # in the JSON of a file
    seal(path)                              # writes the digest over the zeros
    seal_problem(path)                      # "", or that a byte has changed since

They protect from damage, not from a forger, who can compute them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import mmap
import os
import re
import stat
import sys
import tomllib
import types
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar, get_args, get_origin

if TYPE_CHECKING:
    from torch import Tensor


# Files: atomic output, JSON, TOML, CSV and text of unknown origin, locks, progress.

StrPath = str | os.PathLike[str]


# Files that are written atomically, and errors that say which and why.

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


def check_writable(path: StrPath, parents: bool = False) -> None:
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


# JSON, TOML and text from files that anybody may have written, and JSON of results.

MOST_BYTES = 2**30  # bytes


def read_text(path: StrPath, most: int = MOST_BYTES) -> str:
    """The whole text of a file, see `decoded_text`.

    Args:
        most: bytes that it may have.

    Raises:
        OSError: as `read_bytes`. ValueError: if it is not text.
    """
    return decoded_text(read_bytes(path, most))


def decoded_text(data: bytes, encoding: str | None = None) -> str:
    """The text of a file, without a byte order mark; by default UTF-8, UTF-16 or UTF-32 by its first four bytes.

    Raises:
        UnicodeDecodeError: if it is not text.
    """
    return data.decode(encoding or json.detect_encoding(data)).removeprefix("\ufeff")


def read_bytes(path: StrPath, most: int = MOST_BYTES) -> bytes:
    """All bytes of a file; OSError if it cannot be read, has more than `most`, or may never end (a pipe, a device)."""
    refuse_irregular(path)
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"it has more than {most} bytes")
    return data


def read_json_file(path: StrPath, most: int = MOST_BYTES) -> Any:
    """The value in a JSON file, or in one of TOML, if its name ends in .toml; errors as `read_text` and `parse`."""
    content = read_text(path, most)
    if os.fspath(path).lower().endswith(".toml"):
        return tomllib.loads(content)
    return parse_json(content)


def json_text(value: Any, **options: Any) -> str:
    """JSON of results; NaN and infinity, which JSON cannot hold, become null.

    Args:
        options: of `json.dumps`.
    """
    return json.dumps(_plain(value), allow_nan=False, **options)


def _plain(value: Any) -> Any:
    """A value with None for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def parse_json(text: str | bytes, unique: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        unique: refuse an object with two values of one name, of which otherwise the last counts.

    Raises:
        ValueError: if it is not JSON, or too deeply nested for Python (`json` raises RecursionError there).
    """
    try:
        return json.loads(text, object_pairs_hook=_unique if unique else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of names and values; ValueError for a name that occurs twice."""
    names = dict(pairs)
    if len(names) < len(pairs):
        occurring = [name for name, _ in pairs]
        repeated = next(name for name in names if occurring.count(name) > 1)
        raise ValueError(f"{repeated!r} occurs twice: rename or remove one")
    return names


# Values of JSON files and command lines, checked against type hints, and as messages show them. Loads no torch.

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    Path: "a path",
    dict: "an object",
    Mapping: "an object",
}


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def accept(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to a type hint: lists become tuples, 1 becomes 1.0. NaN and infinity are refused.

    Args:
        name: of the setting, for the message.
        hint: int, float, bool, str, Path, a Literal, a tuple, a mapping, or a union of one of them with None.

    Raises:
        ValueError: with the name, the value and the type that is needed.
    """
    try:
        return _converted(value, hint)
    except (ValueError, OverflowError):  # OverflowError: a whole number beyond all floats
        raise ValueError(f"{name} = {shown(value)}: {_wanted(hint)} is needed") from None


def from_text(text: str, hint: Any) -> Any:
    """Read a value of a type hint from a command line; text that does not fit stays text, which `accept` refuses."""
    kind, choices, optional = parts_of(hint)
    if optional and text.lower() == "none":
        return None
    if kind is Literal:
        return {str(choice): choice for choice in choices}.get(text, text)
    if kind in (str, Path):
        return text
    try:
        if kind in (int, float):
            return kind(text)
        return parse_json(text)
    except ValueError:
        return text


def parts_of(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """The type of a hint (int, tuple, Literal, ...), its arguments in brackets, and whether it is `X | None`."""
    parts = get_args(hint)
    if len(parts) == 2 and parts[1] is types.NoneType:
        return (*parts_of(parts[0])[:2], True)
    return get_origin(hint) or hint, parts, False


def shown(value: Any) -> str:
    """A value for messages, shortened to 80 characters."""
    text = repr(value)
    if len(text) <= 80:
        return text
    return text[:77] + "..."


def printable(text: str) -> str:
    r"""Text in one line for a terminal or Markdown: characters that control them or turn the direction are escaped.

    >>> printable("a\x1b[2J\n")
    'a\\x1b[2J\\n'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def first_few(lines: Sequence[str], shown: int = 10) -> list[str]:
    """The first lines and, if there are more, a line with their number.

    >>> first_few(["a", "b", "c"], shown=2)
    ['a', 'b', 'and 1 more']
    """
    more = len(lines) - shown
    if more <= 0:
        return list(lines)
    return [*lines[:shown], f"and {more} more"]


def _converted(value: Any, hint: Any) -> Any:
    kind, parts, optional = parts_of(hint)
    if value is None and optional:
        return None
    if kind is tuple and isinstance(value, list | tuple):
        if ... in parts:
            parts = parts[:1] * len(value)
        # of another length, zip raises the ValueError
        return tuple(_converted(item, part) for item, part in zip(value, parts, strict=True))
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) is int:
        value = float(value)

    is_truth_value = isinstance(value, bool)  # which Python counts as a whole number
    if kind is Literal and value in parts:
        return value
    if kind is Literal or not isinstance(value, kind) or is_truth_value != (kind is bool):
        raise ValueError
    if kind is float and not math.isfinite(value):
        raise ValueError
    return value


def _wanted(hint: Any) -> str:
    """A type hint in words, for messages."""
    kind, parts, optional = parts_of(hint)
    if kind is Literal:
        words = f"one of {', '.join(map(str, parts))}"
    elif kind is tuple:
        count = "" if ... in parts else f"{len(parts)} "
        words = f"a list of {count}{'numbers' if parts[0] in (int, float) else 'values'}"
    else:
        words = _WORDS[kind]
    if optional:
        return f"{words} or nothing"
    return words


DIGITS = 32
BLANK = {"digest": "0" * DIGITS}
_FIELD = re.compile(rb'"digest": ?"([0-9a-f]{%d})"' % DIGITS)  # within a text of JSON, its quotes have backslashes


def new_digest() -> hashlib.blake2b:
    """An empty digest; its text has `DIGITS` hexadecimal digits."""
    return hashlib.blake2b(digest_size=DIGITS // 2)


def seal(path: Path) -> None:
    """Write the digest of a file over the zeros of `BLANK` in it."""
    digests = _digests(path)
    if digests is None:
        raise ValueError(f"{path} has no place for a digest")
    start, _, digest = digests
    with path.open("r+b") as file:
        file.seek(start)
        file.write(digest)


def save_sealed(tensors: dict[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with the digest of its bytes; equal contents give equal bytes."""
    from safetensors.torch import save_file

    save_file(tensors, path, {**BLANK, **metadata})
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # safetensors writes it in any order
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))
    seal(path)


def seal_problem(path: Path) -> str:
    """Compare a file's bytes with the digest in it: why they do not match, or "".

    Raises:
        OSError: if the file cannot be read.
    """
    refuse_irregular(path)
    if not path.stat().st_size:
        return "it is empty"
    digests = _digests(path)
    if digests is None:
        return "it has no digest of its bytes"
    _, stored, digest = digests
    if stored != digest:
        return "its bytes do not match the digest in it"
    return ""


def _digests(path: Path) -> tuple[int, bytes, bytes] | None:
    """The position of the digest in a file, that digest, and the digest of its bytes with zeros in that place.

    None for a file without a digest.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        field = _FIELD.search(data)
        if field is None:
            return None
        start, end = field.span(1)
        del field  # a match keeps the memory open

        digest = new_digest()
        with memoryview(data) as view:
            digest.update(view[:start])
            digest.update(b"0" * DIGITS)
            digest.update(view[end:])
        return start, data[start:end], digest.hexdigest().encode()


# One lock for all folders that one process may change at a time.

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)  # as on Lustre, FUSE or NFS


@contextmanager
def locked(path: Path, busy: Exception, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock on a file during the block. The system releases it when the process ends, however it ends.

    Where the file system has no locks, the block runs without one, with a warning.

    Args:
        path: the lock file, which stays in its folder.
        busy: raised if another process holds the lock.
        wait: wait for the other process instead.

    Raises:
        OutputError: if the file cannot be written or locked. OSError: if it is a link, a pipe or a device.
    """
    from filelock import FileLock, Timeout  # not for --help

    # before filelock, which follows links, waits for pipes and makes folders on the way
    if path.is_symlink():
        raise OSError(f"{os.fspath(path)!r} should be a lock file and is a link: remove it")
    with writing(path):
        if path.exists():
            refuse_irregular(path)
        path.open("ab").close()

    # a soft lock would take the file, which stays here, for another process that holds the lock
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=wait, poll_interval=0.2)
    except Timeout:
        raise busy from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            reason = f"cannot lock {os.fspath(path)!r}: {error.strerror or error}: name a folder on another disk"
            raise OutputError(error.errno, reason, os.fspath(path)) from error
        message = f"the file system of {os.fspath(path.parent)!r} has no locks: let no other process change this folder"
        warnings.warn(message, stacklevel=3)

    try:
        yield
    finally:
        lock.release()


# Threads: work done ahead while its results are used in order.

Item = TypeVar("Item")
Done = TypeVar("Done")


def in_order(
    work: Callable[[Item], Done], items: Iterable[Item], *, threads: int, waiting: int
) -> Generator[Done, None, None]:
    """`map(work, items)`, with up to `waiting` results under way or ready while one is used.

    Args:
        items: taken one by one, by the caller's thread, as there is room.
        threads: 0: work in the caller's thread, one item at a time. waiting: at least 1.

    Raises:
        Whatever `work` raises, where its result would have come; what has not begun then never does.
    """
    if not threads:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[Done]] = deque()
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                if len(ahead) > waiting:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:  # also where nobody wants the rest
            pool.shutdown(cancel_futures=True)


# Optional packages: the error for one that is not installed, and the extra that brings it.


class MissingExtraError(ImportError):
    """An optional package that is not installed; the message has the command that installs it."""


def install(extra: str) -> str:
    """The command that installs an optional extra; its first form, wherever the package itself was installed from."""
    return f"pip install 'idmetric[{extra}]' (in a copy of the repository: pip install '.[{extra}]')"


def need(extra: str, purpose: str, **packages: str) -> None:
    """Check that optional packages are installed, before any work and without importing them.

    Args:
        extra: the extra of this package that brings them. purpose: who needs them, e.g. "--html".
        packages: the name that Python imports -> the name to print, e.g. `sklearn="scikit-learn"`.

    Raises:
        MissingExtraError: naming all that are missing.
    """
    missing = [name for module, name in packages.items() if not _is_installed(module)]
    if missing:
        raise MissingExtraError(f"{purpose} needs {' and '.join(missing)}: {install(extra)}")


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None


# Names and modules that are imported on first use, so that importing the package stays quick and loads no torch.
#
# __getattr__, __dir__ = lazy(__name__, {"read_image": "idmetric.metric.images"})


# Progress of long work: a bar on stderr, and numbers for a writer of logs.

T = TypeVar("T")
REDRAW = 0.1  # seconds


class _Stderr:
    """A stream that loses what it cannot write, as on a full disk, instead of stopping the work.

    tqdm keeps its lock if writing fails, and the bars of other threads would then wait forever.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write text, if possible."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, if possible."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress:
    """tqdm's bar on stderr, called with (done, total), or (done, None) where the total is unknown.

    In a log, where a bar cannot be redrawn, it is written every half minute, so that short work stays silent.

    Args:
        unit: of the counts, in the plural. show: False silences it. verb: that the line begins with, such as
            "embedded".
    """

    def __init__(self, unit: str, show: bool = True, *, verb: str = "") -> None:
        self.unit = unit
        self.show = show
        self.verb = verb
        self._bar: Any = None

    def __call__(self, done: int, total: int | None) -> None:
        """Show the counts, now and then."""
        if not self.show or sys.stderr is None:  # there is none in a program without a console
            return
        if self._bar is not None and (total != self._bar.total or done < self._bar.n):  # another piece of work
            self.clear()
        if self._bar is None:
            from tqdm import tqdm  # a command's --help does without

            seconds = 30.0  # in a log
            if sys.stderr.isatty():
                seconds = REDRAW
            self._bar = tqdm(
                desc=self.verb or None,
                unit=f" {self.unit}",
                total=total,
                leave=False,
                file=_Stderr(sys.stderr),
                mininterval=seconds,
                delay=seconds,
                dynamic_ncols=True,
            )
        self._bar.update(done - self._bar.n)

    def over(self, items: Iterable[T], total: int | None = None) -> Iterator[T]:
        """The items; each counts as done when the next is asked for."""
        with self:
            for done, item in enumerate(items, 1):
                yield item
                self(done, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Clear the line on a terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
