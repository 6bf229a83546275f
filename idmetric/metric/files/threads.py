"""Threads: work done ahead while its results are used in order, and NumPy's matrix products on one thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar

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
