"""Kernel PCA: directions of greatest variance in a kernel's feature space (Schölkopf et al. 1998; NearID, Fig. 5)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kernel = Literal["cosine", "rbf", "linear"]


def kernel_pca(
    vectors: ArrayLike, components: int = 2, kernel: Kernel = "cosine", gamma: float | None = None
) -> NDArray[np.float64]:
    """Project vectors to their first kernel principal components.

    With K_ij = k(x_i, x_j), J = I - 11'/N and the largest eigenvalues l_c of J K J with unit eigenvectors u_c, the
    coordinates are sqrt(l_c) u_c. As in scikit-learn's KernelPCA, the entry of u_c with the largest magnitude is
    positive.

    Args:
        vectors: (N, D), such as embeddings, with N > components.
        components: number of coordinates.
        kernel: "cosine", "linear" (x'y, plain PCA), or "rbf" (exp(-gamma |x - y|^2)). NearID names none.
        gamma: of "rbf"; default 1 / D.

    Returns:
        (N, components), the first with the largest variance.

    Raises:
        ValueError: for vectors of another shape, values that are not finite, an unknown kernel, gamma <= 0, or a gamma
            for another kernel than "rbf".
    """
    x = np.asarray(vectors, dtype=np.float64)
    if x.ndim != 2 or not 0 < components < len(x) or not np.isfinite(x).all():
        raise ValueError(f"kernel PCA to {components} components needs more finite vectors (N, D), got {x.shape}")
    if kernel not in get_args(Kernel):
        raise ValueError(f"unknown kernel {kernel!r}: choose {', '.join(get_args(Kernel))}")
    if gamma is not None and kernel != "rbf":
        raise ValueError(f'gamma is of kernel "rbf", not of {kernel!r}: leave it out')
    if gamma is not None and not gamma > 0:
        raise ValueError(f"gamma must be above 0, got {gamma}")

    if kernel == "cosine":
        length = np.linalg.norm(x, axis=1, keepdims=True)
        x = x / np.where(length > 0, length, 1)
    k = x @ x.T
    if kernel == "rbf":
        square = np.diag(k)
        k = np.exp(-(1 / x.shape[1] if gamma is None else gamma) * (square[:, None] + square - 2 * k).clip(0))

    mean = k.mean(0)
    values, u = np.linalg.eigh(k - mean - mean[:, None] + mean.mean())
    values, u = values[::-1][:components].clip(0), u[:, ::-1][:, :components]
    largest = np.abs(u).argmax(0)
    found: NDArray[np.float64] = u * np.sign(u[largest, range(components)]) * np.sqrt(values)
    return found
