"""Outliers of a group by their distances from its center."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST = 4  # distances below which quartiles say nothing


def outliers(distances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the distances above Tukey's fence, Q3 + 1.5 (Q3 - Q1), with linearly interpolated quartiles.

    Args:
        distances: (N,), of the members from the center, without the center itself; fewer than 4 have no outlier.

    References:
        Tukey, Exploratory Data Analysis, 1977.
    """
    if len(distances) < LEAST:
        return np.zeros(len(distances), dtype=bool)
    low, high = np.quantile(distances, (0.25, 0.75))
    found: NDArray[np.bool_] = distances > high + 1.5 * (high - low)
    return found
