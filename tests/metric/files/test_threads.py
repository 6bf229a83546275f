"""Work ahead is bounded and in order."""

from __future__ import annotations

import time

import pytest

from idmetric.metric.files import in_order


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
