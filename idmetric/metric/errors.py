"""CheckpointError, and contexts that turn other errors into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from idmetric.metric.files import StrPath, printable

# The error for requests that do not fit.


class RequestError(ValueError):
    """The images, pairs, masks or options of a request do not fit; the message says how to fix them.

    Attributes:
        reason: what does not fit, and how to fix it.
        source: the path, folder or pattern that cannot be used; "" where the reason is about something else.
    """

    def __init__(self, reason: str, source: str = "") -> None:
        super().__init__(reason, source)  # the arguments, by which an exception is copied
        self.reason = reason
        self.source = source

    def __str__(self) -> str:
        return f"{self.source!r}: {self.reason}" if self.source else self.reason


class NonFiniteError(ValueError):
    """Embeddings or distances that are NaN or infinite; the message names the images and how to fix it.

    Attributes:
        rows: the images concerned, by their place in the batch.
    """

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = list(rows)


_MOST = 1000  # characters of a message


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be found, fetched or understood; the message says which, and how to fix it.

    The message is one short line without control characters, whatever names and values are in the checkpoint.
    """

    def __init__(self, message: str) -> None:
        line = printable(" ".join(message.splitlines()))
        if len(line) > _MOST:
            line = f"{line[:_MOST]} ..."
        super().__init__(line)


def check_file(path: StrPath) -> None:
    """Refuse a pipe or a device, for which reading would wait, by CheckpointError."""
    if not os.path.isfile(path):
        raise CheckpointError(f"cannot read {os.fspath(path)!r}: the file does not exist")


@contextlib.contextmanager
def understanding(what: StrPath) -> Iterator[None]:
    """Name the file in a CheckpointError raised inside, and turn every other error into one."""
    try:
        yield
    except CheckpointError as error:
        if os.fspath(what) in str(error):
            raise
        raise CheckpointError(f"{os.fspath(what)}: {error}") from error
    except Exception as error:  # of many kinds, for unexpected values
        raise CheckpointError(f"{os.fspath(what)!r} cannot be used: {type(error).__name__}: {error}") from error
