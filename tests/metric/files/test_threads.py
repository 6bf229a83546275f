"""Work ahead is bounded and in order; BLAS has one thread within a block, and its own number after it."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from idmetric.metric.files.blas import one_thread
from idmetric.metric.files.threads import in_order
from idmetric.scoring import copies

PIXELS = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)


def threads() -> set[int]:
    """The threads of NumPy's own library; SciPy has another."""
    pools = [pool for pool in ThreadpoolController().info() if pool["user_api"] == "blas"]
    return {pool["num_threads"] for pool in pools if "numpy" in pool["filepath"]}


def test_a_block_has_one_thread_and_leaves_the_number_as_it_was() -> None:
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = threads()
        with one_thread():
            with one_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == before


def test_a_block_of_another_thread_leaves_the_main_thread_alone() -> None:
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = threads()
        with one_thread():
            other = threading.Thread(target=lambda: copies.take_print(PIXELS))
            other.start()
            other.join()
            assert threads() == {1}
        assert threads() == before


def test_work_ahead_is_bounded_in_order_and_stops() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 20:
            raise ValueError("twenty")
        time.sleep(0.002 * (number % 3))
        return number * number

    results = []
    stream = in_order(work, range(1000), threads=3, waiting=5)
    for _ in range(20):
        results.append(next(stream))
        assert max(begun) <= len(results) + 5
    with pytest.raises(ValueError, match="twenty"):
        next(stream)
    assert results == [number * number for number in range(20)]
    assert max(begun) <= 25
