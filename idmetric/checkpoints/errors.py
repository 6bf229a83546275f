"""CheckpointError, and contexts that turn other errors into it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be found, fetched or understood; the message says which, and how to fix it."""


@contextlib.contextmanager
def understanding(what: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in a CheckpointError raised inside, and turn errors caused by unexpected values in it into one."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(what)}: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, re.error) as error:
        raise CheckpointError(
            f"{os.fspath(what)!r} holds a damaged checkpoint: {type(error).__name__}: {error}"
        ) from error
