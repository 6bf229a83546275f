"""Diversity of a set of images against loops and SciPy."""

from __future__ import annotations

import numpy as np
import pytest

from idmetric.evaluate.statistics.diversity import mean_pairwise_distance, vendi_score

linalg = pytest.importorskip("scipy.linalg")


def cosines(count: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, size))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, x @ x.T


@pytest.mark.parametrize(("count", "size"), [(2, 5), (6, 16), (9, 3)])
def test_vendi_is_the_von_neumann_entropy(count: int, size: int) -> None:
    x, k = cosines(count, size, count)
    density = k / count + 1e-13 * np.eye(count)  # the logarithm of a singular matrix is not defined
    slow = np.exp(-np.trace(density @ linalg.logm(density)).real)
    assert vendi_score(k) == pytest.approx(slow, rel=1e-5)
    dual = np.linalg.eigvalsh(x.T @ x / count)  # the same spectrum, of the features
    dual = dual[dual > 1e-12]
    assert vendi_score(k) == pytest.approx(np.exp(-(dual * np.log(dual)).sum()), rel=1e-9)


def test_known_sets() -> None:
    assert vendi_score(np.eye(5)) == pytest.approx(5)
    assert vendi_score(np.ones((5, 5))) == pytest.approx(1)
    two = np.kron(np.eye(2), np.ones((3, 3)))  # two kinds, three copies of each
    assert vendi_score(two) == pytest.approx(2)
    assert mean_pairwise_distance(np.ones((3, 3))) == pytest.approx(0)
    assert mean_pairwise_distance(np.eye(4)) == pytest.approx(1)


def test_pairwise_distance_is_that_of_a_loop() -> None:
    _, k = cosines(7, 4, 0)
    slow = np.mean([1 - k[i, j] for i in range(7) for j in range(i)])
    assert mean_pairwise_distance(k) == pytest.approx(slow)
