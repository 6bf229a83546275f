"""CPU threads over independent pieces of work, instead of within each operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def over_threads(function: Callable[[_Item], _Result], items: Sequence[_Item], most: int) -> list[_Result]:
    """`[function(item) for item in items]` without a graph, on up to `most` of torch's threads.

    Each operation on a megabyte takes tens of microseconds, about as long as threads need to meet at its end, and far
    longer where other processes use the cores. Pieces that meet once, at the end, have no such wait.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(items), most)
    if workers < 2:
        with torch.no_grad():
            return [function(item) for item in items]

    def alone(item: _Item) -> _Result:
        with torch.no_grad():  # grad mode, like the number of threads, belongs to a thread
            return function(item)

    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(alone, items))
    finally:
        torch.set_num_threads(threads)  # what threads begun later take over
