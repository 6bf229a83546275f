"""How different are the images of a set, by their similarities to each other?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def mean_pairwise_distance(similarities: ArrayLike) -> float:
    """Mean of 1 - similarity over all unordered pairs; higher = more different.

    Args:
        similarities: (N, N), N >= 2; the diagonal is not read.
    """
    s = np.asarray(similarities, dtype=np.float64)
    is_pair = ~np.eye(len(s), dtype=bool)
    return float(1 - s[is_pair].mean())


def vendi_score(similarities: ArrayLike) -> float:
    """Effective number of different images, 1..N: exp(-sum(l log l)) over the eigenvalues l of K / N.

    Args:
        similarities: K (N, N), positive semi-definite with ones on the diagonal, such as cosines of embeddings.

    References:
        Friedman and Dieng, "The Vendi Score: A Diversity Evaluation Metric for Machine Learning", TMLR 2023, eq. 1.
    """
    k = np.asarray(similarities, dtype=np.float64)
    symmetric = (k + k.T) / 2
    values = np.linalg.eigvalsh(symmetric / len(k))
    positive = values[values > 1e-12]
    entropy = -(positive @ np.log(positive))
    return float(np.exp(entropy))
