"""NumPy's matrix products on one thread, where they are too small to be shared out.

On threads they take as long, and the threads that wait for each other keep the cores from those that decode images.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the block, if the main thread runs it: OpenBLAS may ignore the limits of others.

    Without threadpoolctl, which scikit-learn brings along, nothing is limited.
    """
    pools = _pools() if threading.current_thread() is threading.main_thread() else None
    with pools.limit(limits=1, user_api="blas") if pools is not None else nullcontext():
        yield


@cache
def _pools() -> Any:
    """The thread pools of the libraries that are loaded, found once: NumPy is loaded where a block is entered."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
