"""Threads: work done ahead while its results are used in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
