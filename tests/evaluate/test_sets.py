"""Distances of sets against double loops, torchmetrics and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from idmetric.evaluate import sets
from idmetric.evaluate.sets import centroid_similarity, cmmd, frechet_distance

linalg = pytest.importorskip("scipy.linalg")


def two(n: int, m: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(d, d))
    return rng.normal(size=(n, d)) @ mix, rng.normal(size=(m, d)) + 0.3


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("sigma", [10.0, 1.5])
def test_cmmd_is_a_double_loop(biased: bool, sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "_ROWS", 4)
    x, y = two(7, 5, 3)

    def mean(a: np.ndarray, b: np.ndarray, itself: bool) -> float:
        return float(np.mean([math.exp(-sum((p - q) ** 2) / (2 * sigma**2)) for i, p in enumerate(a)
                              for j, q in enumerate(b) if itself or i != j]))  # fmt: skip

    expected = mean(x, x, biased) + mean(y, y, biased) - 2 * mean(x, y, True)
    assert cmmd(x, y, sigma=sigma, biased=biased) == pytest.approx(1000 * expected, rel=1e-9)
    assert cmmd(x, y, sigma=sigma, scale=1, biased=biased) == pytest.approx(expected, rel=1e-9)


def test_the_published_cmmd_has_sigma_10_and_a_factor_of_1000() -> None:
    x, y = np.array([[1.0, 0], [1, 0]]), np.array([[-1.0, 0], [-1, 0]])
    assert cmmd(x, y) == pytest.approx(1000 * (2 - 2 * math.exp(-4 / 200)))


def test_only_the_unbiased_cmmd_is_zero_on_average() -> None:
    rng = np.random.default_rng(0)
    pairs = [(unit(rng.normal(size=(6, 16))), unit(rng.normal(size=(6, 16)))) for _ in range(400)]
    found = {b: np.array([cmmd(x, y, biased=b) for x, y in pairs]) for b in (True, False)}
    error = found[False].std() / math.sqrt(len(pairs))
    assert abs(found[False].mean()) < 4 * error
    assert found[True].mean() == pytest.approx(10 * (1 / 6 + 1 / 6), rel=0.05)  # as the docstring says: cosines of 0
    assert min(found[True]) >= 0


def test_cmmd_is_nearly_the_distance_of_the_means() -> None:
    x, y = (unit(s) for s in two(30, 40, 16))
    assert cmmd(x, y, biased=True) == pytest.approx(10 * np.square(x.mean(0) - y.mean(0)).sum(), rel=0.03)


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
    assert cmmd(x, x, biased=True) == pytest.approx(0, abs=1e-9)
    assert centroid_similarity(x, x) == pytest.approx(1)
    for measure in (cmmd, frechet_distance, centroid_similarity):
        assert measure(x, y) == pytest.approx(measure(y, x))


def test_centroids_are_compared_by_cosine() -> None:
    x, y = two(9, 7, 4)
    a, b = np.sum(x, 0), np.sum(y, 0)
    assert centroid_similarity(x, y) == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)))


def test_what_is_no_set_is_refused() -> None:
    for measure in (cmmd, frechet_distance):
        with pytest.raises(ValueError, match="at least 2 images"):
            measure(np.ones((1, 3)), np.ones((4, 3)))
        with pytest.raises(ValueError, match=r"\(N, D\) and \(M, D\)"):
            measure(np.ones((2, 3)), np.ones((4, 2)))
    with pytest.raises(ValueError, match="finite"):
        cmmd(np.array([[1.0], [np.inf]]), np.ones((4, 1)))
    with pytest.raises(ValueError, match="cancel out"):
        centroid_similarity(np.array([[1.0], [-1.0]]), np.ones((4, 1)))
