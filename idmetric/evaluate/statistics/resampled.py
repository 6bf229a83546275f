"""ROC AUC in every sample of `idmetric.evaluate.statistics.bootstrap`, without building samples of millions of pairs.

A sample draws whole identities, so each pair counts as often as its identities were drawn. Same seed, same samples:
`bootstrap` takes its percentiles of the same values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.bootstrap import draw
from idmetric.evaluate.statistics.checks import labeled

Array = NDArray[np.float64]


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
