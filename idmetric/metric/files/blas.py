"""NumPy's matrix products on one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit NumPy's OpenBLAS to one thread in the block, if the main thread runs it: it may ignore limits of others.

    Other libraries, which torch may share, keep their threads.

    For products too small to be shared out: on threads they take as long, and the threads that wait for each other keep
    the cores from threads that decode images.

    Without threadpoolctl, which scikit-learn brings along, nothing is limited.
    """
    limit: AbstractContextManager[Any] = nullcontext()
    if threading.current_thread() is threading.main_thread() and _pools() is not None:
        limit = _pools().limit(limits=1)
    with limit:
        yield


@cache
def _pools() -> Any:
    """The thread pools of the libraries that are loaded, found once: NumPy is loaded where a block is entered."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(internal_api="openblas")
