"""Correlations of a metric with human ratings, an oracle or another metric, their mean, and how far people agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from idmetric.evaluate.statistics.checks import numbers, paired
from idmetric.metric.files import need
from idmetric.metric.ties import comparable


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
    a, b = paired(x, y)
    if len(a) < 2:
        raise ValueError(f"a correlation needs two items at least, got {len(a)}")

    for name, values in ("x", a), ("y", b):
        if values.std() > 1e-12 * np.abs(values).max():  # less is rounding
            continue
        if constant is None:
            raise ValueError(f"{name} does not vary over its {len(a)} items: no correlation is defined")
        return constant

    return float(np.corrcoef(a, b)[0, 1])


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, equal values (`comparable`) sharing their mean rank.

    Arguments, range and errors as in `pearson`; needs SciPy (extra `eval`).
    """
    need("eval", "Spearman's correlation", scipy="SciPy")
    from scipy.stats import rankdata

    a, b = paired(x, y)
    return pearson(rankdata(comparable(a)), rankdata(comparable(b)))


def kendall(x: ArrayLike, y: ArrayLike) -> float:
    """Kendall's tau-b: pairs in the same order minus pairs in opposite order, over the pairs that ties allow.

    tau_b = (C - D) / sqrt((T - T_x) (T - T_y)), T = N (N - 1) / 2 pairs, T_x and T_y of them tied in x and y (Kendall
    1945). Arguments, range and errors as in `pearson`; needs SciPy (extra `eval`).
    """
    need("eval", "Kendall's correlation", scipy="SciPy")
    from scipy.stats import kendalltau

    a, b = comparable(x), comparable(y)
    pearson(a, b)  # raises where no correlation is defined
    return float(kendalltau(a, b).statistic)


def fisher_mean(correlations: ArrayLike, *, limit: float = 0.999) -> tuple[float, float | None]:
    """Mean correlation by Fisher's z (NearID, supplement E.2, equation 6), and its standard error (None for N = 1).

    r = tanh(mean of atanh(r_k)). The error is that of the plain mean of the r_k, not of z, as in NearID's Table 2:
    standard deviation (N - 1) / sqrt(N).

    >>> round(fisher_mean([0.2, 0.8])[0], 4)
    0.5721

    Args:
        correlations: (N,), in [-1, 1].
        limit: correlations are clipped to +-limit, since z is infinite at 1 (as in NearID's code).
    """
    r = numbers("correlations", correlations).astype(np.float64)
    z = np.arctanh(r.clip(-limit, limit))
    mean = float(np.tanh(z.mean()))
    if len(r) == 1:
        return mean, None
    deviation = r.std(ddof=1)
    return mean, float(deviation / np.sqrt(len(r)))


def rating_alpha(ratings: ArrayLike) -> float:
    """Krippendorff's alpha of ratings at interval level, as DreamBench++ reports it (`krippendorff_analysis.py`).

    Disagreement of two ratings is their squared difference, so that 3 and 4 disagree less than 0 and 4. With m_u the
    ratings of item u, and n = sum of m_u (Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011)::

        observed = 1 / n sum over u of (sum over ordered pairs of ratings of u of (x - y)^2) / (m_u - 1)
        expected = 1 / (n (n - 1)) sum over ordered pairs of all ratings of (x - y)^2
        alpha    = 1 - observed / expected

    Over the ordered pairs of m numbers, (x - y)^2 sums to 2 m times the sum of squares around their mean.

    >>> round(rating_alpha([[0, 1], [4, 4], [2, 3], [0, 0]]), 4)
    0.9186

    Args:
        ratings: (items, raters), on one scale; NaN where a rater did not rate an item. Items with fewer than two
            ratings are left out.

    Returns:
        At most 1; 1 = all agree, 0 = as if ratings were drawn by chance, below 0 = less than by chance.

    Raises:
        ValueError: if no item has two ratings, or all ratings are equal.
    """
    table = np.asarray(ratings, dtype=np.float64)
    if table.ndim != 2:
        raise ValueError(f"ratings must have 2 dimensions, items and raters, got shape {table.shape}")
    if np.isinf(table).any():
        raise ValueError("ratings must be finite, or NaN where they are missing")
    table = table[np.isfinite(table).sum(1) >= 2]
    if not len(table):
        raise ValueError("alpha needs an item with two ratings")

    count = np.isfinite(table).sum()
    by_item = np.isfinite(table).sum(1)
    squares_by_item = by_item * np.nanvar(table, axis=1)
    squares = count * np.nanvar(table)
    if squares == 0:
        raise ValueError("all ratings are equal: alpha is undefined")

    observed = (2 * by_item * squares_by_item / (by_item - 1)).sum() / count
    expected = 2 * squares / (count - 1)
    return float(1 - observed / expected)
