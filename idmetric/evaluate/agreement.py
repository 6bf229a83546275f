"""Correlations of a metric with people, an oracle, or another metric, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.arrays import numbers, paired

Array = NDArray[np.float64]


def pearson(x: ArrayLike, y: ArrayLike, *, constant: float | None = None) -> float:
    """Pearson's correlation: how well y is a straight line of x.

    >>> pearson([1, 2, 3], [2, 4, 6])
    1.0

    Args:
        x, y: (N,), N >= 2.
        constant: returned where x or y does not vary, which leaves the correlation undefined; None = an error.
            NearID's released code takes 0.

    Returns:
        In [-1, 1]; 1 = y rises with x.

    Raises:
        ValueError: if x or y does not vary (see `constant`), shapes differ, or a number is not finite.
    """
    a, b = _two(x, y, "Pearson's correlation")
    spread = [_centred(v) for v in (a, b)]
    return _undefined(a, b, constant) if spread[0] is None or spread[1] is None else _cosine(spread[0], spread[1])


def spearman(x: ArrayLike, y: ArrayLike, *, constant: float | None = None) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, equal values sharing their mean rank.

    Arguments, range and errors as in `pearson`.
    """
    a, b = _two(x, y, "Spearman's correlation")
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return _undefined(a, b, constant)
    return pearson(mean_ranks(a), mean_ranks(b))


def kendall(x: ArrayLike, y: ArrayLike, *, constant: float | None = None) -> float:
    """Kendall's tau-b: pairs in the same order less pairs in opposite order, over pairs that ties allow.

    tau_b = (C - D) / sqrt((T - T_x) (T - T_y)), T = N (N - 1) / 2 pairs, T_x and T_y of them tied in x and y (Kendall
    1945). Takes O(N log^2 N). Arguments, range and errors as in `pearson`.
    """
    a, b = _two(x, y, "Kendall's tau")
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return _undefined(a, b, constant)
    rank_a, rank_b = (np.unique(v, return_inverse=True)[1].astype(np.int64) for v in (a, b))
    all_pairs = len(a) * (len(a) - 1) // 2
    tied_a, tied_b = _tied(rank_a), _tied(rank_b)
    tied_both = _tied(rank_a * (int(rank_b.max()) + 1) + rank_b)
    opposite = _inversions(rank_b[np.lexsort((rank_b, rank_a))])
    same = all_pairs - tied_a - tied_b + tied_both - opposite
    return float((same - opposite) / np.sqrt(float(all_pairs - tied_a)) / np.sqrt(float(all_pairs - tied_b)))


class Mean(NamedTuple):
    """A mean correlation and its standard error, None for one correlation alone."""

    mean: float
    error: float | None


def fisher_mean(
    correlations: Sequence[float] | ArrayLike, weights: ArrayLike | None = None, *, limit: float = 0.999
) -> Mean:
    """Mean correlation through Fisher's z (NearID, supplement E.2, equation 6), and its standard error.

    r = tanh(sum of w atanh(r_k) / sum of w). The error is that of the plain mean of the r_k, not of z, as in NearID's
    Table 2: standard deviation (N - 1) / sqrt(N); with weights,
    sqrt(N / (N - 1) sum of w^2 (r_k - their weighted mean)^2) / sum of w, the same for equal ones.

    >>> round(fisher_mean([0.2, 0.8]).mean, 4)
    0.5721

    Args:
        correlations: (N,), in [-1, 1].
        weights: (N,), > 0; None = equal ones. With n_k - 3 for a correlation of n_k items, each z counts by its
            precision.
        limit: correlations are taken within +-limit, as z is infinite at 1 (NearID's code).

    Raises:
        ValueError: if there are none, one is outside [-1, 1], or weights are not positive.
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
    """Ranks from 1, lowest first; equal values share their mean rank."""
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
        which = "x" if _centred(a) is None else "y"
        raise ValueError(f"{which} does not vary over its {len(a)} items: no correlation is defined")
    return constant


def _centred(x: Array) -> Array | None:
    """Deviations from the mean in units of the largest; None where they are but rounding."""
    scale = np.abs(x).max()
    if scale == 0:
        return None
    x = x / scale  # so that neither squares nor sums overflow or vanish
    deviation: Array = x - x.mean()
    return None if deviation.std() < 1e-12 else deviation / np.abs(deviation).max()


def _cosine(a: Array, b: Array) -> float:
    return float(np.clip(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b), -1, 1))


def _tied(values: NDArray[np.int64]) -> int:
    """Pairs of equal values."""
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _inversions(values: NDArray[np.int64]) -> int:
    """Pairs of which the earlier is larger: counted between the halves of ever longer blocks, all blocks at once."""
    place = np.arange(len(values))
    above = int(values.max()) + 1
    count, width = 0, 1
    while width < len(values):
        block, right = place // (2 * width), place // width % 2 == 1
        left = np.sort((block * above + values)[~right])  # a block's values lie between those of its neighbours
        ends = np.searchsorted(left, (block[right] + 1) * above, "left")
        count += int((ends - np.searchsorted(left, (block * above + values)[right], "right")).sum())
        width *= 2
    return count
