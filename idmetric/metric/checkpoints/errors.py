"""CheckpointError, and contexts that turn other errors into it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from idmetric.metric.files import StrPath
from idmetric.metric.files.typed import printable

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
    """Name the file in a CheckpointError raised inside, and turn errors caused by unexpected values in it into one."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(what)}: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, re.error) as error:
        raise CheckpointError(
            f"{os.fspath(what)!r} holds a damaged checkpoint: {type(error).__name__}: {error}"
        ) from error
