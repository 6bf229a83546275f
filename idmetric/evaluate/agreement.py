"""Correlations of a metric with human ratings, an oracle or another metric, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.arrays import comparable, numbers, paired

Array = NDArray[np.float64]


def pearson(x: ArrayLike, y: ArrayLike, *, constant: float | None = None) -> float:
    """Pearson's correlation: how close y is to a linear function of x.

    >>> pearson([1, 2, 3], [2, 4, 6])
    1.0

    Args:
        x, y: (N,), N >= 2.
        constant: returned if x or y does not vary, which leaves the correlation undefined; None raises an error.
            NearID's released code returns 0.

    Returns:
        In [-1, 1]; 1 = y rises with x.

    Raises:
        ValueError: if x or y does not vary (see `constant`), shapes differ, or a number is not finite.
    """
    a, b = _two(x, y, "Pearson's correlation")
    u, v = _centered(a), _centered(b)
    if u is None or v is None:
        return _undefined(a, b, constant)
    return float(np.clip(u @ v / np.sqrt(u @ u) / np.sqrt(v @ v), -1, 1))


def spearman(x: ArrayLike, y: ArrayLike, *, constant: float | None = None) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, equal values (`arrays.comparable`) sharing their mean rank.

    Arguments, range and errors as in `pearson`.
    """
    a, b = map(comparable, _two(x, y, "Spearman's correlation"))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return _undefined(a, b, constant)
    return pearson(mean_ranks(a), mean_ranks(b))


def kendall(x: ArrayLike, y: ArrayLike, *, constant: float | None = None) -> float:
    """Kendall's tau-b: pairs in the same order minus pairs in opposite order, over the pairs that ties allow.

    tau_b = (C - D) / sqrt((T - T_x) (T - T_y)), T = N (N - 1) / 2 pairs, T_x and T_y of them tied in x and y (Kendall
    1945). Arguments, range and errors as in `pearson`; needs SciPy (extra `eval`).
    """
    from scipy import stats

    a, b = map(comparable, _two(x, y, "Kendall's tau"))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return _undefined(a, b, constant)
    return float(stats.kendalltau(a, b).statistic)


class Mean(NamedTuple):
    """A mean correlation and its standard error, which is None for a single correlation."""

    mean: float
    error: float | None


def fisher_mean(
    correlations: Sequence[float] | ArrayLike, weights: ArrayLike | None = None, *, limit: float = 0.999
) -> Mean:
    """Mean correlation by Fisher's z (NearID, supplement E.2, equation 6), and its standard error.

    r = tanh(sum of w atanh(r_k) / sum of w). The error is that of the plain mean of the r_k, not of z, as in NearID's
    Table 2: standard deviation (N - 1) / sqrt(N); with weights,
    sqrt(N / (N - 1) sum of w^2 (r_k - their weighted mean)^2) / sum of w, the same for equal ones.

    >>> round(fisher_mean([0.2, 0.8]).mean, 4)
    0.5721

    Args:
        correlations: (N,), in [-1, 1].
        weights: (N,), > 0; None = equal. Weights n_k - 3 for correlations of n_k items weight each z by its precision.
        limit: correlations are clipped to +-limit, since z is infinite at 1 (as in NearID's code).

    Raises:
        ValueError: if there are no correlations, one is outside [-1, 1], or a weight is not positive.
    """
    r = numbers("correlations", correlations).astype(np.float64)
    if np.abs(r).max() > 1 + 1e-9:
        raise ValueError(f"correlations must be in [-1, 1], got {r[np.abs(r).argmax()]}")
    if not 0 < limit < 1:
        raise ValueError(f"limit must be between 0 and 1, got {limit}")

    r, w = paired(r, np.ones(len(r)) if weights is None else weights, ("correlations", "weights"))
    if w.min() <= 0:
        raise ValueError(f"weights must be above 0, got {w.min()}: leave such correlations out")

    w = w / w.sum()
    mean = float(np.tanh(w @ np.arctanh(r.clip(-limit, limit))))
    if len(r) == 1:
        return Mean(mean, None)
    spread = np.sum((w * (r - w @ r)) ** 2)
    return Mean(mean, float(np.sqrt(len(r) / (len(r) - 1) * spread)))


def mean_ranks(values: ArrayLike) -> Array:
    """Ranks (N,) from 1, lowest first; equal values share their mean rank."""
    _, place, counts = np.unique(numbers("values", values), return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


def _two(x: ArrayLike, y: ArrayLike, what: str) -> tuple[Array, Array]:
    a, b = paired(x, y)
    if len(a) < 2:
        raise ValueError(f"{what} needs two items at least, got {len(a)}")
    return a, b


def _undefined(a: Array, b: Array, constant: float | None) -> float:
    if constant is None:
        which = "x" if _centered(a) is None else "y"
        raise ValueError(f"{which} does not vary over its {len(a)} items: no correlation is defined")
    return constant


def _centered(x: Array) -> Array | None:
    """Deviations from the mean in units of the largest one; None if they are mere rounding errors."""
    scale = np.abs(x).max()
    if scale == 0:
        return None
    x = x / scale  # squares and sums neither overflow nor vanish
    deviation: Array = x - x.mean()
    return None if deviation.std() < 1e-12 else deviation / np.abs(deviation).max()
