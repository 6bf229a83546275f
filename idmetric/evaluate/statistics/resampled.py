"""A statistic in every sample of `idmetric.evaluate.statistics.bootstrap`, without building the samples.

A sample draws whole identities, so each item counts as often as its identity was drawn, and sums over identities are
all that ratios, ROC AUC and Pearson's correlation need. Same seed, same samples: `bootstrap` takes its percentiles of
the same values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.bootstrap import draw
from idmetric.metric.distance.ties import labeled, paired

Array = NDArray[np.float64]


def resampled_ratio(
    parts: ArrayLike, wholes: ArrayLike, identity: ArrayLike, *, samples: int = 1000, seed: int = 0
) -> Array:
    """sum(parts) / sum(wholes) in each sample (S,), NaN where the wholes sum to 0; with wholes of 1, the mean.

    Args:
        parts, wholes: (N,); wholes >= 0. identity: (N,), any type that sorts.
    """
    a, b = paired(parts, wholes, ("parts", "wholes"))
    _, place = np.unique(np.asarray(identity), return_inverse=True)
    part, whole = np.bincount(place.ravel(), a), np.bincount(place.ravel(), b)
    found = np.full(samples, np.nan)
    for k in range(samples):
        times = draw(len(part), seed, k)
        if (below := float(times @ whole)) > 0:
            found[k] = float(times @ part) / below
    return found


def resampled_auc(
    scores: ArrayLike, same: ArrayLike, identity: ArrayLike, *, samples: int = 1000, seed: int = 0
) -> Array:
    """ROC AUC over pairs of images in each sample (S,), NaN where all pairs are of one kind.

    Args:
        scores: (P,). same: bool (P,).
        identity: (P, 2), of a pair's members; see `bootstrap` for the weight of a pair in a sample.
    """
    s, r = labeled(scores, same, ("scores", "same"))
    names, place = np.unique(np.asarray(identity), return_inverse=True)
    ends = place.reshape(-1, 2)
    order = np.argsort(s[~r])
    others = s[~r][order]
    above, not_below = np.searchsorted(others, s[r], "left"), np.searchsorted(others, s[r], "right")
    hits, misses = _weights(ends[r]), _weights(ends[~r][order])
    found, beaten = np.full(samples, np.nan), np.zeros(len(others) + 1)

    for k in range(samples):
        times = draw(len(names), seed, k).astype(np.float32)
        won = hits(times).astype(np.float64)
        np.cumsum(misses(times), dtype=np.float64, out=beaten[1:])  # by scores above so many of the others
        pairs = won.sum() * beaten[-1]
        if pairs > 0:
            found[k] = won @ (beaten[above] + beaten[not_below]) / 2 / pairs  # a tie is half a win

    return found


def _weights(ends: NDArray[np.int64]) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Multiplicities of pairs of identities (P, 2) in a sample: the product of both, or that of a single identity.

    They are whole numbers and thus exact in float32, which halves the memory traffic of millions of pairs.
    """
    first, second = (np.ascontiguousarray(side) for side in ends.T)
    alone = np.flatnonzero(first == second)

    def of(times: NDArray[np.float32]) -> NDArray[np.float32]:
        weight: NDArray[np.float32] = times[first] * times[second]
        weight[alone] = times[first[alone]]
        return weight

    return of


def draws(identities: int, samples: int, seed: int = 0) -> NDArray[np.int64]:
    """Return how often each identity is in each sample of `bootstrap`: (samples, identities)."""
    return np.stack([draw(identities, seed, k) for k in range(samples)])


def resampled_pearson(x: ArrayLike, y: ArrayLike, identity: ArrayLike, times: NDArray[np.int64]) -> Array:
    """Pearson's r of x and y in each sample.

    Args:
        x, y: (N,).
        identity: (N,), the number of each item's identity, from 0.
        times: (S, identities), see `draws`.

    Returns:
        (S,); NaN where x or y does not vary, or a sample has fewer than two items.
    """
    a, b = paired(x, y)
    # at mean 0 and unit spread, which keeps differences of sums exact; values that do not vary become 0
    a, b = ((v - v.mean()) / (v.std() if v.std() > 1e-12 * np.abs(v).max() else np.inf) for v in (a, b))
    moments = np.stack([np.ones_like(a), a, b, a * a, b * b, a * b])
    sums = np.stack([np.bincount(np.asarray(identity), m, times.shape[1]) for m in moments])
    n, sum_a, sum_b, aa, bb, ab = sums @ times.T
    with np.errstate(divide="ignore", invalid="ignore"):
        spread_a, spread_b = aa - sum_a**2 / n, bb - sum_b**2 / n
        r = (ab - sum_a * sum_b / n) / np.sqrt(spread_a) / np.sqrt(spread_b)
    defined = (n >= 2) & (spread_a > 1e-9 * n) & (spread_b > 1e-9 * n)  # less is rounding: values have unit spread

    return np.asarray(np.where(defined, r.clip(-1, 1), np.nan))
