"""How different are the images of a set? From their similarities to each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.arrays import numbers

Array = NDArray[np.float64]


def mean_pairwise_distance(similarities: ArrayLike) -> float:
    """Mean of 1 - similarity over all unordered pairs; higher = more different.

    Args:
        similarities: (N, N), N >= 2; the diagonal is not read.

    Raises:
        ValueError: for another shape, or numbers that are not finite.
    """
    s = _square(similarities, 2)
    return float(1 - s[~np.eye(len(s), dtype=bool)].mean())


def vendi_score(similarities: ArrayLike) -> float:
    """Effective number of different images, 1..N: exp(-sum(l log l)) over the eigenvalues l of K / N.

    Args:
        similarities: K (N, N), positive semi-definite with ones on the diagonal, such as cosines of embeddings.

    Raises:
        ValueError: for another matrix.

    References:
        Friedman and Dieng, "The Vendi Score: A Diversity Evaluation Metric for Machine Learning", TMLR 2023, eq. 1.
    """
    k = _square(similarities, 1)
    values = np.linalg.eigvalsh((k + k.T) / 2 / len(k))
    if values[0] < -1e-4:
        raise ValueError("similarities must be positive semi-definite: use cosines of embeddings")
    kept = values[values > 1e-12]
    return float(np.exp(-(kept * np.log(kept)).sum()))


def _square(similarities: ArrayLike, least: int) -> Array:
    s = numbers("similarities", similarities, 2).astype(np.float64)
    if s.shape[0] != s.shape[1] or len(s) < least:
        raise ValueError(f"similarities must be (N, N) of at least {least} images, got {s.shape}")
    return s
