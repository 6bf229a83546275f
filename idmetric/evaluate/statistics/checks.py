"""Checks that statistics share: finite numbers, shapes, and boolean labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.ties import STEP, comparable

Numbers = NDArray[Any]  # any float type: large float32 arrays are not copied
Truths = NDArray[np.bool_]


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


def first_highest(scores: Numbers) -> int:
    """Index of the highest of scores (N,); of equal ones the first."""
    nearly_highest = scores >= scores.max() - 2 * STEP  # rounding a long row would take ten times as long
    candidates = np.flatnonzero(nearly_highest)
    best = comparable(scores[candidates]).argmax()
    return int(candidates[best])


def truths(name: str, values: ArrayLike) -> Truths:
    """Values as booleans, which may be given as 0 and 1.

    Raises:
        ValueError: for other values, such as NaN or labels of -1 and 1, which would all count as true.
    """
    x = np.asarray(values)
    if x.dtype == np.bool_:
        return x
    if not np.isin(x, (0, 1)).all():
        raise ValueError(f"{name} must be booleans, or 0 and 1, got others among {x.dtype} values")
    return x.astype(bool)


def labeled(
    scores: ArrayLike, relevant: ArrayLike, names: tuple[str, str] = ("scores", "relevant")
) -> tuple[NDArray[np.float64], Truths]:
    """Scores (N,), `comparable`, and a boolean label (N,) for each."""
    score_array = numbers(names[0], scores)
    relevant_array = truths(names[1], relevant)
    _check_shapes(score_array, relevant_array, names)
    return comparable(score_array), relevant_array


def paired(
    x: ArrayLike,
    y: ArrayLike,
    names: tuple[str, str] = ("x", "y"),
) -> tuple[Numbers, Numbers]:
    """Two arrays (N,) of finite float64 numbers."""
    x_array = numbers(names[0], x)
    y_array = numbers(names[1], y)
    _check_shapes(x_array, y_array, names)
    return x_array.astype(np.float64), y_array.astype(np.float64)


def _check_shapes(x: Numbers, y: Numbers, names: tuple[str, str]) -> None:
    if x.shape != y.shape:
        raise ValueError(f"{names[0]} and {names[1]} must be of one shape (N,), got {x.shape} and {y.shape}")
