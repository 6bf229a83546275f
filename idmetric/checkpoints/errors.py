"""CheckpointError, and contexts that make other errors into it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be found, fetched or understood; the message says which, and the way out."""


@contextlib.contextmanager
def naming(what: str | os.PathLike[str]) -> Iterator[None]:
    """Errors about a checkpoint raised inside say which file it is."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(what)}: {error}") from error


@contextlib.contextmanager
def understanding(what: str | os.PathLike[str]) -> Iterator[None]:
    """Errors that values of an unexpected kind lead to say which files they are in."""
    try:
        yield
    except CheckpointError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, re.error) as error:
        raise CheckpointError(
            f"{os.fspath(what)!r} holds a damaged checkpoint: {type(error).__name__}: {error}"
        ) from error
