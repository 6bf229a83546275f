"""Work that is given up when it makes no progress.

Every byte restarts the timeout of an HTTP client, so a server that sends one now and then would hold it forever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def watched(work: Callable[[], T], patience: float, progress: Callable[[], object] | None = None) -> T:
    """Return the result of `work`, which runs in a thread of its own.

    Args:
        patience: seconds without progress after which TimeoutError is raised; the thread keeps running until its work
            or the process ends.
        progress: a value that changes whenever there is progress; None: there is none until the work is done.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised again below
            outcome.set_exception(error)

    threading.Thread(target=run, name="idmetric download", daemon=True).start()
    last_value: object = None
    last_change = time.monotonic()
    while not wait([outcome], timeout=min(patience / 4, 1)).done:
        value = progress() if progress is not None else None
        now = time.monotonic()
        if value != last_value:
            last_value = value
            last_change = now
        elif now - last_change > patience:
            raise TimeoutError(f"no progress in {patience:g} s")
    return outcome.result()
