"""Diversity of a set of images against a loop."""

from __future__ import annotations

import numpy as np
import pytest

from idmetric.evaluate.statistics.diversity import mean_pairwise_distance


def test_pairwise_distance_is_that_of_a_loop() -> None:
    x = np.random.default_rng(0).normal(size=(7, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    k = x @ x.T
    slow = np.mean([1 - k[i, j] for i in range(7) for j in range(i)])
    assert mean_pairwise_distance(k) == pytest.approx(slow)
    assert mean_pairwise_distance(np.ones((3, 3))) == pytest.approx(0)
    assert mean_pairwise_distance(np.eye(4)) == pytest.approx(1)
