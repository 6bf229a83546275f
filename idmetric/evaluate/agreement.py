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
    if _flat(a) or _flat(b):
        return _undefined(a, constant)
    return float(np.corrcoef(a, b)[0, 1])


def spearman(x: ArrayLike, y: ArrayLike, *, constant: float | None = None) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, equal values (`arrays.comparable`) sharing their mean rank.

    Arguments, range and errors as in `pearson`; needs SciPy (extra `eval`).
    """
    from scipy import stats

    a, b = map(comparable, _two(x, y, "Spearman's correlation"))
    if _flat(a) or _flat(b):
        return _undefined(a, constant)
    return float(stats.spearmanr(a, b).statistic)


def kendall(x: ArrayLike, y: ArrayLike, *, constant: float | None = None) -> float:
    """Kendall's tau-b: pairs in the same order minus pairs in opposite order, over the pairs that ties allow.

    tau_b = (C - D) / sqrt((T - T_x) (T - T_y)), T = N (N - 1) / 2 pairs, T_x and T_y of them tied in x and y (Kendall
    1945). Arguments, range and errors as in `pearson`; needs SciPy (extra `eval`).
    """
    from scipy import stats

    a, b = map(comparable, _two(x, y, "Kendall's tau"))
    if _flat(a) or _flat(b):
        return _undefined(a, constant)
    return float(stats.kendalltau(a, b).statistic)


class Mean(NamedTuple):
    """A mean correlation and its standard error, which is None for a single correlation."""

    mean: float
    error: float | None


def fisher_mean(correlations: Sequence[float] | ArrayLike, *, limit: float = 0.999) -> Mean:
    """Mean correlation by Fisher's z (NearID, supplement E.2, equation 6), and its standard error.

    r = tanh(mean of atanh(r_k)). The error is that of the plain mean of the r_k, not of z, as in NearID's Table 2:
    standard deviation (N - 1) / sqrt(N).

    >>> round(fisher_mean([0.2, 0.8]).mean, 4)
    0.5721

    Args:
        correlations: (N,), in [-1, 1].
        limit: correlations are clipped to +-limit, since z is infinite at 1 (as in NearID's code).

    Raises:
        ValueError: if there are no correlations, or one is outside [-1, 1].
    """
    r = numbers("correlations", correlations).astype(np.float64)
    if np.abs(r).max() > 1 + 1e-9:
        raise ValueError(f"correlations must be in [-1, 1], got {r[np.abs(r).argmax()]}")
    mean = float(np.tanh(np.arctanh(r.clip(-limit, limit)).mean()))
    return Mean(mean, float(r.std(ddof=1) / np.sqrt(len(r))) if len(r) > 1 else None)


def _two(x: ArrayLike, y: ArrayLike, what: str) -> tuple[Array, Array]:
    a, b = paired(x, y)
    if len(a) < 2:
        raise ValueError(f"{what} needs two items at least, got {len(a)}")
    return a, b


def _flat(x: Array) -> bool:
    """Whether values differ by rounding errors alone."""
    return bool(x.std() <= 1e-12 * np.abs(x).max())


def _undefined(a: Array, constant: float | None) -> float:
    if constant is None:
        raise ValueError(f"{'x' if _flat(a) else 'y'} does not vary over its {len(a)} items: no correlation is defined")
    return constant
