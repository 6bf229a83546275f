"""Checks that all statistics share: shapes, finite numbers, and boolean labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

    finite = np.isfinite(x)
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        at = place[0] if ndim == 1 else place
        raise ValueError(f"{name} must be finite, but {(~finite).sum()} are not, the first {x[place]} at {at}")

    return x


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


def labelled(
    scores: ArrayLike, relevant: ArrayLike, names: tuple[str, str] = ("scores", "relevant")
) -> tuple[Numbers, Truths]:
    """Scores (N,) and a boolean label (N,) for each.

    Raises:
        ValueError: if they are empty, not of one shape, or not finite and not booleans.
    """
    s, r = numbers(names[0], scores), truths(names[1], relevant)
    if s.shape != r.shape:
        raise ValueError(f"{names[0]} and {names[1]} must be of one shape (N,), got {s.shape} and {r.shape}")
    return s, r


def paired(x: ArrayLike, y: ArrayLike, names: tuple[str, str] = ("x", "y")) -> tuple[Numbers, Numbers]:
    """Two arrays (N,) of finite float64 numbers.

    Raises:
        ValueError: if they are empty, not of one shape, or not finite.
    """
    a, b = numbers(names[0], x).astype(np.float64), numbers(names[1], y).astype(np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{names[0]} and {names[1]} must be of one shape (N,), got {a.shape} and {b.shape}")
    return a, b
