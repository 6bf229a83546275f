"""Krippendorff's alpha: how far people agree beyond chance."""

from __future__ import annotations

from numpy.typing import ArrayLike

from idmetric.evaluate.arrays import numbers


def krippendorff_alpha(votes: ArrayLike) -> float:
    """Krippendorff's alpha of nominal votes, which may be missing: 1 - observed over expected disagreement.

    With n_uc the votes for category c on item u, m_u the votes on u, and coincidences o_cc of pairs of equal votes
    within an item (Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011, section C)::

        o_cc  = sum over u with m_u >= 2 of n_uc (n_uc - 1) / (m_u - 1)
        n_c   = sum over u with m_u >= 2 of n_uc,    n = sum of n_c
        alpha = ((n - 1) sum of o_cc - sum of n_c (n_c - 1)) / (n (n - 1) - sum of n_c (n_c - 1))

    Items with fewer than two votes say nothing about agreement and are left out.

    >>> round(krippendorff_alpha([[2, 0], [0, 2], [2, 0], [1, 1]]), 4)
    0.5333

    Args:
        votes: (items, categories), the number of votes for each category, whole numbers >= 0.

    Returns:
        At most 1; 1 = all agree, 0 = as if votes were drawn by chance, below 0 = less than by chance.

    Raises:
        ValueError: if no item has two votes, or all votes are for one category.
    """
    counts = numbers("votes", votes, 2)
    counts = counts[counts.sum(1) >= 2]
    if not len(counts):
        raise ValueError("alpha needs an item with two votes")

    each, total = counts.sum(0), counts.sum()
    by_chance = total * (total - 1) - (each * (each - 1)).sum()
    if by_chance == 0:
        raise ValueError("all votes are for one category: alpha is undefined")

    agreeing = (counts * (counts - 1) / (counts.sum(1, keepdims=True) - 1)).sum()
    return float(((total - 1) * agreeing - (each * (each - 1)).sum()) / by_chance)
