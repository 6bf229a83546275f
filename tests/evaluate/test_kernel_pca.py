from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from idmetric.evaluate.kernel_pca import kernel_pca


@pytest.mark.parametrize("kernel", ["cosine", "rbf", "linear"])
@pytest.mark.parametrize("components", [1, 2, 4])
def test_coordinates_are_scikit_learns(kernel: Any, components: int) -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    x = np.random.default_rng(components).normal(0.3, 1, (23, 7))
    for gamma in (None, 0.05) if kernel == "rbf" else (None,):
        expected = decomposition.KernelPCA(components, kernel=kernel, gamma=gamma).fit_transform(x)
        np.testing.assert_allclose(kernel_pca(x, components, kernel, gamma), expected, atol=1e-9)


def test_the_linear_kernel_is_pca() -> None:
    x = np.random.default_rng(0).normal(size=(15, 4)) @ np.diag([5, 3, 1, 0.2])
    centered = x - x.mean(0)
    _, values, directions = np.linalg.svd(centered, full_matrices=False)
    found = kernel_pca(x, 3, "linear")
    np.testing.assert_allclose(np.abs(found), np.abs(centered @ directions[:3].T), atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), values[:3])


def test_cosine_ignores_lengths() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 5))
    longer = x * rng.uniform(0.5, 3, (12, 1))
    np.testing.assert_allclose(kernel_pca(longer), kernel_pca(x), atol=1e-9)
    assert not np.allclose(kernel_pca(longer, kernel="linear"), kernel_pca(x, kernel="linear"))
    assert np.isfinite(kernel_pca(np.vstack([x, np.zeros(5)]))).all()


def test_points_on_a_line_have_one_coordinate() -> None:
    found = kernel_pca(np.outer(np.arange(6.0), [1.0, 2.0]), 2, "linear")
    np.testing.assert_allclose(np.diff(found[:, 0]) ** 2, 5, atol=1e-9)
    np.testing.assert_allclose(found[:, 1], 0, atol=1e-6)


def test_wrong_input_is_named() -> None:
    for x, options, message in (
        (np.zeros(4), {}, r"needs more finite vectors \(N, D\), got \(4,\)"),
        (np.zeros((2, 4)), {}, "kernel PCA to 2 components"),
        (np.full((4, 4), np.nan), {}, "finite"),
        (np.zeros((4, 4)), {"kernel": "poly"}, "unknown kernel 'poly': choose cosine, rbf, linear"),
        (np.zeros((4, 4)), {"kernel": "rbf", "gamma": 0.0}, "gamma must be above 0"),
        (np.zeros((4, 4)), {"gamma": 0.5}, 'gamma is of kernel "rbf"'),
    ):
        with pytest.raises(ValueError, match=message):
            kernel_pca(x, **options)  # type: ignore[arg-type]
