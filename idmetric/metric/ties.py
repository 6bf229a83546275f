"""The rule for equal scores, and a check for arrays of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[Any]  # any float type: large float32 arrays are not copied

# Scores that agree in so many decimals are equal. The cosine of one pair of images moves by about 1e-7 in float32, and
# by 1e-16 in float64, with the block, the thread and the place in a batch: noise must not rank copies of an image.
DIGITS = 6
STEP = 10.0**-DIGITS


def comparable(scores: ArrayLike) -> NDArray[np.float64]:
    """Scores of any shape, rounded as everything that ranks, counts hits or applies a threshold compares them.

    A margin is rounded after its subtraction: two scores that differ by noise then tie, wherever they lie.

    >>> comparable([0.1234561, 0.1234564]).tolist()
    [0.123456, 0.123456]
    """
    array = np.asarray(scores, dtype=np.float64)
    return array.round(DIGITS)


def numbers(name: str, values: ArrayLike, ndim: int = 1) -> Numbers:
    """Values as a non-empty array of finite floats with `ndim` dimensions; float32 stays float32.

    Raises:
        ValueError: naming the argument and, for a value that is not finite, its place.
    """
    x = np.asarray(values)
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    if x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension{'s' * (ndim > 1)}, got shape {x.shape}")
    if not x.size:
        raise ValueError(f"{name} must not be empty, got shape {x.shape}")

    is_bad = ~np.isfinite(x)
    bad_indices = np.argwhere(is_bad)
    if len(bad_indices):
        index = tuple(bad_indices[0].tolist())
        position = index[0] if ndim == 1 else index
        raise ValueError(f"{name} must be finite, but {len(bad_indices)} are not, the first {x[index]} at {position}")

    return x
