"""CheckpointError, and contexts that turn other errors into it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be found, fetched or understood; the message says which, and how to fix it."""


@contextlib.contextmanager
def naming(what: str | os.PathLike[str]) -> Iterator[None]:
    """Prefix a CheckpointError raised inside with the name of the file."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(what)}: {error}") from error


@contextlib.contextmanager
def understanding(what: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors caused by unexpected values in a file into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, re.error) as error:
        raise CheckpointError(
            f"{os.fspath(what)!r} holds a damaged checkpoint: {type(error).__name__}: {error}"
        ) from error
