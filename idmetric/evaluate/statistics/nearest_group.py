"""Is an item nearer to the references of another group than to those of its own? Over equally many of each group.

A mean over few references varies more than one over many, so a group with few references would be the nearest one by
chance more often. Each draw therefore takes equally many of each group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.ties import comparable

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

DRAWS = 100  # of references


def confused_shares(
    similarities: ArrayLike,
    group: ArrayLike,
    right: ArrayLike,
    size: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Array:
    """The share of draws in which another group than the right one is the nearest to an item; ties count half.

    The nearest group has the highest mean similarity of its references.

    Args:
        similarities: (N, R) of items to references, higher = more alike; NaN leaves a reference out for an item.
        group: (R,) the number of each reference's group, 0..G - 1. right: (N,) the number of each item's own group.
        size: references of each group in a draw; a group with fewer ones for an item does not compete for it.
        draws: of references; one is enough, and made, if no group has more than `size` for any item.

    Returns:
        Shape (N,).
    """
    table = np.asarray(similarities, dtype=np.float64)
    groups = np.asarray(group, dtype=np.int64)
    right_groups = np.asarray(right, dtype=np.int64)
    columns_of_group = [np.flatnonzero(groups == number) for number in range(groups.max() + 1)]
    largest = max(int((~np.isnan(table[:, columns])).sum(1).max()) for columns in columns_of_group)
    if largest <= size:
        draws = 1

    rng = np.random.default_rng(seed)
    rows = np.arange(len(table))
    confused = np.zeros(len(table))
    for _ in range(draws):
        means = np.empty((len(table), len(columns_of_group)))
        for number, columns in enumerate(columns_of_group):
            shuffled = rng.permutation(columns)
            means[:, number] = _mean_of_first(table[:, shuffled], size)
        scores = comparable(means)
        of_right = scores[rows, right_groups]
        scores[rows, right_groups] = -np.inf
        best_wrong = scores.max(1)
        confused += np.where(best_wrong == of_right, 0.5, best_wrong > of_right)
    return confused / draws


def _mean_of_first(similarities: Array, size: int) -> Array:
    """The mean (N,) of the first `size` numbers of each row that are not NaN; -inf where there are fewer."""
    is_present = ~np.isnan(similarities)
    if is_present.all() and similarities.shape[1] >= size:
        return np.asarray(similarities[:, :size].mean(1))
    is_drawn = is_present & (is_present.cumsum(1) <= size)
    sums = np.where(is_drawn, similarities, 0).sum(1)
    means: Array = np.where(is_drawn.sum(1) == size, sums / size, -np.inf)
    return means
