from __future__ import annotations

import statistics

import numpy as np
import pytest

from idmetric.evaluate.outliers import outliers


@pytest.mark.parametrize("seed", range(5))
def test_outliers_lie_above_the_fence(seed: int) -> None:
    values = np.random.default_rng(seed).exponential(size=30)
    low, _, high = statistics.quantiles(values.tolist(), n=4, method="inclusive")
    expected = [value > high + 1.5 * (high - low) for value in values]
    assert outliers(values).tolist() == expected
    assert any(expected)


def test_a_few_distances_have_no_outlier() -> None:
    assert not outliers(np.array([0.1, 0.1, 9.0])).any()
    assert outliers(np.array([0.1, 0.1, 0.1, 9.0])).tolist() == [False, False, False, True]
