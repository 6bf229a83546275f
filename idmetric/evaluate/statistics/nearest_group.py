"""Which of several groups of references is an item nearest to? Over equally many references of each group.

A mean over few references varies more than one over many, so a group with few references would be the nearest one by
chance more often. Each draw therefore takes equally many of each group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.distance.ties import comparable

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

DRAWS = 100  # of references


def nearest_groups(
    similarities: ArrayLike,
    group: ArrayLike,
    right: ArrayLike,
    size: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Array:
    """The share of draws in which each group is the nearest to an item, by the mean similarity to its references.

    If the right group ties with others, it counts half, and the others share the other half.

    Args:
        similarities: (N, R) of items to references, higher = more alike; NaN leaves a reference out for an item.
        group: (R,) the number of each reference's group, 0..G - 1. right: (N,) the number of each item's own group.
        size: references of each group in a draw; a group with fewer ones for an item does not compete for it.
        draws: of references; one is enough, and made, if no group has more than `size` for any item.

    Returns:
        Shape (N, G); each row sums to 1.
    """
    table = np.asarray(similarities, dtype=np.float64)
    groups = np.asarray(group, dtype=np.int64)
    right_groups = np.asarray(right, dtype=np.int64)
    columns_of_group = [np.flatnonzero(groups == number) for number in range(groups.max() + 1)]
    largest = max(int((~np.isnan(table[:, columns])).sum(1).max()) for columns in columns_of_group)
    if largest <= size:
        draws = 1

    rng = np.random.default_rng(seed)
    shares = np.zeros((len(table), len(columns_of_group)))
    for _ in range(draws):
        means = np.empty_like(shares)
        for number, columns in enumerate(columns_of_group):
            shuffled = rng.permutation(columns)
            means[:, number] = _mean_of_first(table[:, shuffled], size)
        shares += _nearest(means, right_groups)
    return shares / draws


def _mean_of_first(similarities: Array, size: int) -> Array:
    """The mean (N,) of the first `size` numbers of each row that are not NaN; -inf where there are fewer."""
    is_present = ~np.isnan(similarities)
    if is_present.all() and similarities.shape[1] >= size:
        return np.asarray(similarities[:, :size].mean(1))
    is_drawn = is_present & (is_present.cumsum(1) <= size)
    sums = np.where(is_drawn, similarities, 0).sum(1)
    means: Array = np.where(is_drawn.sum(1) == size, sums / size, -np.inf)
    return means


def _nearest(means: Array, right: Ints) -> Array:
    """1 for the nearest group of each row of means (N, G), half of it in ties with the right one."""
    rows = np.arange(len(means))
    scores = comparable(means)
    right_scores = scores[rows, right]
    wrong_scores = scores.copy()
    wrong_scores[rows, right] = -np.inf
    best_wrong = wrong_scores.max(1)

    confused = np.where(best_wrong > right_scores, 1.0, 0.0)
    confused[best_wrong == right_scores] = 0.5
    is_best = wrong_scores == best_wrong[:, None]
    shares: Array = is_best * (confused / is_best.sum(1))[:, None]
    shares[rows, right] = 1 - confused
    return shares
