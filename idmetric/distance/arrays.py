"""Cosine distances of NumPy arrays, without torch: those of `idmetric.distance.cosine` for tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def cosine_distance(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """1 - cos(a, b) along the last axis (ID-Sim Eq. 4): |a - b|^2 / 2 of unit vectors, exactly 0 for equal ones.

    Args:
        a, b: features, shape (..., D), broadcast against each other. Computed in float32 or better.

    Returns:
        Shape (...), range [0, 2]; 0 = same direction, 1 where one of them is zero.
    """
    x, y = _unit(a), _unit(b)
    found: NDArray[Any] = np.square(x - y).sum(-1) / 2 + _lost(x) + _lost(y)
    return found


def cosine_matrix(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """1 - cos of every row of a (N, D) with every row of b (M, D): shape (N, M), range [0, 2]."""
    found: NDArray[Any] = np.maximum(1 - _unit(a) @ _unit(b).T, 0)  # rounding may leave -1e-7; NaN stays
    return found


def _unit(x: NDArray[Any]) -> NDArray[Any]:
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    found: NDArray[Any] = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
    return found


def _lost(unit: NDArray[Any]) -> NDArray[Any]:
    """The share that a vector of zeros is missing in |a - b|^2 / 2 = 1 - a.b: half of its unit length squared."""
    lost = (1 - np.square(unit).sum(-1)) / 2
    return np.where(lost > 0.25, lost, 0)  # of all others it is rounding
