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
