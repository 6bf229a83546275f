"""A statistic in every sample of `idmetric.evaluate.statistics.bootstrap`, without building the samples.

A sample draws whole identities, so each item counts as often as its identity was drawn, and sums over identities are
all that ratios, ROC AUC and Pearson's correlation need. Same seed, same samples: `bootstrap` takes its percentiles of
the same values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.bootstrap import draw
from idmetric.metric.distance.ties import labeled, paired

Array = NDArray[np.float64]


def resampled_ratio(
    parts: ArrayLike,
    wholes: ArrayLike,
    identity: ArrayLike,
    *,
    samples: int = 1000,
    seed: int = 0,
) -> Array:
    """sum(parts) / sum(wholes) in each sample (S,), NaN where the wholes sum to 0; with wholes of 1, the mean.

    Args:
        parts, wholes: (N,); wholes >= 0. identity: (N,), any type that sorts.
    """
    a, b = paired(parts, wholes, ("parts", "wholes"))
    names, number = np.unique(identity, return_inverse=True)
    part_of_identity = np.bincount(number, a)
    whole_of_identity = np.bincount(number, b)

    values = np.full(samples, np.nan)
    for sample in range(samples):
        times = draw(len(names), seed, sample)
        total = times @ whole_of_identity
        if total > 0:
            values[sample] = times @ part_of_identity / total
    return values


def resampled_auc(
    scores: ArrayLike,
    same: ArrayLike,
    identity: ArrayLike,
    *,
    samples: int = 1000,
    seed: int = 0,
) -> Array:
    """ROC AUC over pairs of images in each sample (S,), NaN where all pairs are of one kind.

    Args:
        scores: (P,). same: bool (P,).
        identity: (P, 2), of a pair's members; see `bootstrap` for the weight of a pair in a sample.
    """
    s, is_same = labeled(scores, same, ("scores", "same"))
    names, number = np.unique(identity, return_inverse=True)
    pairs = number.reshape(-1, 2)
    in_one = pairs[:, 0] == pairs[:, 1]
    pairs[in_one, 1] = len(names)  # whose weight is 1: a pair within an identity counts as often as that is drawn

    # pairs of two identities in the order of their scores, and where those of one identity lie among them
    positives = pairs[is_same]
    positive_scores = s[is_same]
    negatives = pairs[~is_same]
    negative_scores = s[~is_same]
    order = np.argsort(negative_scores)
    negative_scores = negative_scores[order]
    positive_a, positive_b = np.ascontiguousarray(positives.T)
    negative_a, negative_b = np.ascontiguousarray(negatives[order].T)
    lower = np.searchsorted(negative_scores, positive_scores, "left")
    not_higher = np.searchsorted(negative_scores, positive_scores, "right")

    values = np.full(samples, np.nan)
    weight_of_lowest = np.zeros(len(order) + 1)  # of the lowest 0, 1, 2, ... negatives
    for sample in range(samples):
        times = np.ones(len(names) + 1, dtype=np.int32)  # millions of pairs: half the memory
        times[:-1] = draw(len(names), seed, sample)
        positive_weights = times[positive_a] * times[positive_b]
        negative_weights = times[negative_a] * times[negative_b]
        np.cumsum(negative_weights, out=weight_of_lowest[1:])
        total = positive_weights.sum() * weight_of_lowest[-1]
        if total > 0:
            wins = weight_of_lowest[lower] + weight_of_lowest[not_higher]
            values[sample] = positive_weights @ wins / 2 / total  # a tie is half a win

    return values


def draws(identities: int, samples: int, seed: int = 0) -> NDArray[np.int64]:
    """Return how often each identity is in each sample of `bootstrap`: (samples, identities)."""
    times = [draw(identities, seed, sample) for sample in range(samples)]
    return np.stack(times)


def resampled_pearson(
    x: ArrayLike,
    y: ArrayLike,
    identity: ArrayLike,
    times: NDArray[np.int64],
) -> Array:
    """Pearson's r of x and y in each sample.

    Args:
        x, y: (N,).
        identity: (N,), the number of each item's identity, from 0.
        times: (S, identities), see `draws`.

    Returns:
        (S,); NaN where x or y does not vary, or a sample has fewer than two items.
    """
    a, b = map(_standardized, paired(x, y))
    item_weights = times[:, np.asarray(identity)]
    counts = item_weights.sum(1)

    def covariance(u: Array, v: Array) -> Array:
        """Of each sample."""
        mean_of_products: Array = shares @ (u * v)
        product_of_means: Array = (shares @ u) * (shares @ v)
        return mean_of_products - product_of_means

    with np.errstate(divide="ignore", invalid="ignore"):
        shares = item_weights / counts[:, None]
        variance_a = covariance(a, a)
        variance_b = covariance(b, b)
        deviation_a = np.sqrt(variance_a)
        deviation_b = np.sqrt(variance_b)
        r = covariance(a, b) / deviation_a / deviation_b
    r = r.clip(-1, 1)
    varies = (variance_a > 1e-9) & (variance_b > 1e-9)  # less is rounding
    r[(counts < 2) | ~varies] = np.nan
    return r


def _standardized(values: Array) -> Array:
    """Values at mean 0 and unit spread, which keeps differences of sums exact; 0 where they do not vary."""
    deviation = values.std()
    if deviation <= 1e-12 * np.abs(values).max():  # rounding
        return np.zeros_like(values)
    standardized: Array = (values - values.mean()) / deviation
    return standardized
