"""Files: atomic output, text and JSON of unknown origin, locks; threads, extras and progress. Loads no torch."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
import sys
import tempfile
import tomllib
import types
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

if TYPE_CHECKING:
    from torch import Tensor

StrPath = str | os.PathLike[str]
Item = TypeVar("Item")
Done = TypeVar("Done")
MOST_BYTES = 2**30  # that a text or a JSON file may have
REDRAW = 0.1  # seconds between two drawings of a bar of progress
_TOLD = 40  # characters of a file's name that its temporary one begins with
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_FULL = "the disk is full, or a limit on file sizes is reached: free space, or name another place"
_CLOSED = "its folder is read-only for you: change its permissions, or name another place"
_REASONS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EACCES: _CLOSED,
    errno.EPERM: _CLOSED,
    errno.EROFS: _CLOSED,
    errno.EMFILE: "too many open files",
    errno.ENOENT: "its folder is not there: make it, or name another place",
    errno.EEXIST: "there is a file of that name: name another place",
    errno.ENOTDIR: "what should be its folder is a file: name another place",
    errno.EISDIR: "there is a folder of that name: name another place",
    errno.ENAMETOOLONG: "its name is too long: give a shorter one",
}

# Output


class OutputError(OSError):
    """A file that cannot be written; the message names it, and says why and how to fix it."""

    def __str__(self) -> str:
        return str(self.strerror)


@contextmanager
def replacing(path: Path, parents: bool = False) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends well, and else goes.

    It lies next to `path`, under a name that nobody can guess; a link that stands at `path` is replaced, not followed.
    A device or a pipe (/dev/stdout, /dev/null) is written to as it is.

    Args:
        parents: make the folders on the way.

    Raises:
        OutputError: if a file of that name cannot be written there; the file that was there is unchanged.
    """
    if _is_device(path):
        with writing(path):
            yield path
        return
    temporary = path.with_name(f".{path.name[:_TOLD]}.{uuid.uuid4().hex[:12]}")
    with writing(path, temporary):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch(exist_ok=False)
            yield temporary
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def check_writable(path: StrPath, parents: bool = False) -> None:
    """Whether `replacing` could write there now, to be asked before long work: a hidden file is made and removed.

    Args:
        parents: folders that are not there yet will be made; now none is.
    """
    path = Path(path)
    folder = path.parent
    with writing(path, *path.parents):
        while parents and not folder.exists():
            folder = folder.parent
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if not _is_device(path):
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0")  # a full disk has room for the name alone


@contextmanager
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
    except OSError as error:
        named = path if error.filename is None else error.filename
        is_of = any(Path(named).absolute().is_relative_to(Path(name).absolute()) for name in (path, *also))
        if isinstance(error, OutputError) or error.errno not in _REASONS or not is_of:
            raise
        raise _output_error(path, _REASONS[error.errno], error.errno) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # safetensors hides the system's error in its own
            raise
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise _output_error(path, _REASONS.get(code, str(error)), code) from error


def _output_error(path: StrPath, reason: str, code: int) -> OutputError:
    return OutputError(code, f"cannot write {os.fspath(path)!r}: {reason}", os.fspath(path))


def _is_device(path: Path) -> bool:
    """A device or pipe, also a link in /dev that leads to a file, as /dev/stdout may."""
    return path.exists() and not path.is_dir() and (not path.is_file() or path.parent == Path("/dev"))


@contextmanager
def locked(path: Path, busy: Exception, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock on a file during the block. The system releases it when the process ends, however it ends.

    Args:
        path: the lock file, which stays in its folder.
        busy: raised if another process holds the lock. wait: wait for it instead.

    Raises:
        OutputError: if the file cannot be written or locked. OSError: if it is a link, a pipe or a device.
    """
    from filelock import FileLock, Timeout  # not for --help

    if path.is_symlink():  # which filelock would follow
        raise OSError(f"{os.fspath(path)!r} should be a lock file and is a link: remove it")
    if path.exists():
        refuse_irregular(path)
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        with writing(path):
            lock.acquire(blocking=wait, poll_interval=0.2)
    except Timeout:
        raise busy from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OutputError):
            raise
        raise _output_error(path, f"{error}: name a folder on a disk that has locks", errno.ENOLCK) from error
    try:
        yield
    finally:
        lock.release()


# Input


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


def read_bytes(path: StrPath, most: int = MOST_BYTES) -> bytes:
    """All bytes of a file; OSError if it cannot be read, has more than `most`, or may never end (a pipe, a device)."""
    refuse_irregular(path)
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"it has more than {most} bytes")
    return data


def decoded_text(data: bytes, encoding: str | None = None) -> str:
    """The text of a file, without a byte order mark; by default UTF-8, UTF-16 or UTF-32 by its first four bytes.

    Raises:
        UnicodeDecodeError: if it is not text.
    """
    return data.decode(encoding or json.detect_encoding(data)).removeprefix("\ufeff")


def read_text(path: StrPath, most: int = MOST_BYTES) -> str:
    """The whole text of a file of at most so many bytes; OSError as `read_bytes`, ValueError if it is not text."""
    return decoded_text(read_bytes(path, most))


def read_json_file(path: StrPath, most: int = MOST_BYTES) -> Any:
    """The value in a JSON file, or in TOML, if its name ends in .toml; errors as `read_text` and `parse_json`."""
    content = read_text(path, most)
    if os.fspath(path).lower().endswith(".toml"):
        return tomllib.loads(content)
    return parse_json(content)


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
    names: dict[str, Any] = {}
    for name, value in pairs:
        if name in names:
            raise ValueError(f"{name!r} occurs twice: rename or remove one")
        names[name] = value
    return names


# Text


def json_text(value: Any, **options: Any) -> str:
    """JSON of results, by `json.dumps` with these options; NaN and infinity, which JSON cannot hold, become null."""
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


# Threads, optional packages, progress


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


class Progress:
    """tqdm's bar on stderr, called with (done, total), or (done, None) where the total is unknown.

    In a log, where a bar cannot be redrawn, it is written every half minute, so that short work stays silent.

    Args:
        unit: of the counts, in the plural. show: False silences it. verb: that the line begins with.
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

            seconds = REDRAW if sys.stderr.isatty() else 30.0
            about = {"desc": self.verb or None, "unit": f" {self.unit}", "leave": False, "dynamic_ncols": True}
            self._bar = tqdm(total=total, mininterval=seconds, delay=seconds, **about)
        self._bar.update(done - self._bar.n)

    def over(self, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
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


# Values of JSON files and command lines, checked against type hints

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    Path: "a path",
    dict: "an object",
    Mapping: "an object",
}


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


# Digests that files hold of their own bytes, so that a file that was damaged on its way is refused

BLANK = {"digest": "0" * 32}
_FIELD = re.compile(rb'"digest": ?"([0-9a-f]{32})"')  # within a text of JSON, its quotes have backslashes


def save_sealed(tensors: dict[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with the digest of its bytes; equal contents give equal bytes."""
    from safetensors.torch import save_file

    save_file(tensors, path, {**BLANK, **metadata})
    with path.open("r+b") as file:  # safetensors writes metadata in any order
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))
    seal(path)


def seal(path: Path) -> None:
    """Write the digest of a file over the zeros of `BLANK` in it."""
    start, _, digest = _digests(path)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(digest)


def seal_problem(path: Path) -> str:
    """Compare a file's bytes with the digest in it: why they do not match, or ""; OSError if it cannot be read."""
    refuse_irregular(path)
    try:
        _, stored, digest = _digests(path)
    except ValueError as error:
        return str(error)
    return "" if stored == digest else "its bytes do not match the digest in it"


def _digests(path: Path) -> tuple[int, bytes, bytes]:
    """The position of the digest in a file, that digest, and the digest of its bytes with zeros in that place."""
    data = memoryview(path.read_bytes())
    field = _FIELD.search(data)
    if field is None:
        raise ValueError("it has no digest of its bytes")
    start, end = field.span(1)
    digest = hashlib.blake2b(data[:start], digest_size=16)
    digest.update(BLANK["digest"].encode())
    digest.update(data[end:])
    return start, field[1], digest.hexdigest().encode()
