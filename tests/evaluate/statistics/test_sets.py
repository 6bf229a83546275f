"""Distances of sets against double loops, torchmetrics and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from idmetric.evaluate.statistics.sets import (
    centroid_similarity,
    cmmd,
    frechet_distance,
    mean_pairwise_distance,
    vendi_score,
)

linalg = pytest.importorskip("scipy.linalg")


def two(n: int, m: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(d, d))
    return rng.normal(size=(n, d)) @ mix, rng.normal(size=(m, d)) + 0.3


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_cmmd_is_a_double_loop() -> None:
    x, y = two(7, 5, 3)

    def mean(a: np.ndarray, b: np.ndarray, itself: bool) -> float:
        return float(np.mean([math.exp(-sum((p - q) ** 2) / 200) for i, p in enumerate(a) for j, q in enumerate(b)
                              if itself or i != j]))  # fmt: skip

    expected = mean(x, x, False) + mean(y, y, False) - 2 * mean(x, y, True)
    assert cmmd(x, y) == pytest.approx(1000 * expected, rel=1e-9)


def test_cmmd_is_zero_on_average() -> None:
    rng = np.random.default_rng(0)
    found = np.array([cmmd(unit(rng.normal(size=(6, 16))), unit(rng.normal(size=(6, 16)))) for _ in range(400)])
    assert abs(found.mean()) < 4 * found.std() / math.sqrt(len(found))


@pytest.mark.parametrize(("n", "m", "d"), [(40, 30, 6), (40, 4, 6), (5, 4, 9)])
def test_frechet_is_that_of_torchmetrics_and_scipy(n: int, m: int, d: int) -> None:
    fid = pytest.importorskip("torchmetrics.image.fid")
    x, y = two(n, m, d)
    means, spreads = [s.mean(0) for s in (x, y)], [np.cov(s.T) for s in (x, y)]
    root = linalg.sqrtm(spreads[0] @ spreads[1]).real
    expected = np.square(means[0] - means[1]).sum() + np.trace(spreads[0] + spreads[1] - 2 * root)
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-5)
    tensors = [torch.from_numpy(a) for a in (means[0], spreads[0], means[1], spreads[1])]
    assert frechet_distance(x, y) == pytest.approx(float(fid._compute_fid(*tensors)), rel=1e-4)


def test_sets_are_not_apart_from_themselves() -> None:
    x, y = two(9, 7, 4)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)
    assert centroid_similarity(x, x) == pytest.approx(1)
    for measure in (cmmd, frechet_distance, centroid_similarity):
        assert measure(x, y) == pytest.approx(measure(y, x))


# One set


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
