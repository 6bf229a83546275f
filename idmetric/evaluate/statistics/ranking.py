"""Ranking statistics of similarity scores, of one query.

Scores may have any sign; higher = retrieved earlier. Scores are equal if they agree in six decimals
(`arrays.comparable`). How ties count:

* `average_precision`, `ndcg` and `roc_auc` as in scikit-learn: items of equal score share one place: a model with
  constant scores gets the value of a random ranking.
* `precision_at_1`, `recall_at_k`, `hit_at_k` and `trapezoid_average_precision`: a tie loses, as in a margin; among
  equal scores the irrelevant items come first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.distance.ties import Numbers, Truths, comparable, labeled, paired

Array = NDArray[np.float64]


# One query


def average_precision(scores: ArrayLike, relevant: ArrayLike, k: int | None = None) -> float:
    """Average precision: the mean, over relevant items, of the precision at their place in the ranking.

    With P(j) the precision of the first j places, rel(j) 1 or 0, and R relevant items::

        AP   = 1/R         sum over all j of P(j) rel(j)
        AP@k = 1/min(k, R) sum over j <= k of P(j) rel(j)

    ILGen's Table 2 gives mAP@100 and mAP@1K and leaves them undefined; its data sets do: min(k, R) on GLDv2 (Weyand
    et al., CVPR 2020) and in ILIAS's released code. A third definition, which divides by the relevant
    items among the first k, rewards finding fewer and is not offered.

    Equal scores share one place, as in scikit-learn's `average_precision_score`. Where k cuts through them, each
    contributes with the chance to be among the first k, at the precision that is expected there.

    >>> average_precision([0.9, 0.8, 0.7], [True, False, True])
    0.8333333333333333

    Args:
        scores: (N,). relevant: bool (N,).
        k: depth of the ranking, None = all.

    Returns:
        In (0, 1] without k, in [0, 1] with it.

    Raises:
        ValueError: if nothing is relevant, shapes differ, or a score is not finite.
    """
    s, r = _query(scores, relevant, "average precision")
    depth = len(s) if k is None else _depth(k)
    own = s[r]
    start, end = _places(s, own)
    hits_before, hits = _places(own, own)
    cut = np.minimum(end, depth)
    share = np.clip(cut - start, 0, None) / (end - start)
    precision = (hits_before + (hits - hits_before) * share) / cut
    return float((share * precision).sum() / min(depth, len(own)))


def trapezoid_average_precision(scores: ArrayLike, relevant: ArrayLike) -> float:
    """Average precision of Revisited Oxford and Paris: the trapezoids under the precision-recall curve.

    1/R sum over relevant items of (P(j - 1) + P(j)) / 2, j their place and P(0) = 1 (Radenović et al., CVPR 2018; its
    released code). ILGen's "mAP" on these two sets. "Junk" images are to be left out of both arguments.

    Args:
        scores: (N,); a tie loses. relevant: bool (N,).

    Returns:
        In (0, 1]; a little below or above `average_precision`.
    """
    s, r = _query(scores, relevant, "average precision")
    rank = _ranks(s, r)  # from 1
    found = np.arange(len(rank))
    before = np.where(rank == 1, 1.0, found / np.maximum(rank - 1, 1))
    return float(((before + (found + 1) / rank) / 2).mean())


def ndcg(scores: ArrayLike, gains: ArrayLike, k: int | None = None) -> float:
    """Normalized discounted cumulative gain: sum of gain / log2(place + 1), over that of the best order.

    Equal scores share their mean gain, as in scikit-learn's `ndcg_score`. In ID-Sim (PODS, supplement D) an item is of
    the query's instance or not: gains of 1 and 0.

    Args:
        scores: (N,). gains: (N,), >= 0, higher = more relevant; booleans are 1 and 0.
        k: depth of the ranking, None = all.

    Returns:
        In [0, 1].

    Raises:
        ValueError: if no gain is above 0 or one is below it, shapes differ, or a number is not finite.
    """
    s, g = paired(scores, gains, ("scores", "gains"))
    s = comparable(s)
    if g.min() < 0 or g.max() <= 0:
        raise ValueError(f"nDCG needs gains >= 0 with one above 0, got {g.min():g} to {g.max():g}")

    depth = len(s) if k is None else min(_depth(k), len(s))
    total = np.r_[0, np.cumsum(1 / np.log2(np.arange(2, len(s) + 2)))]  # of the first 0, 1, 2, ... places
    some = g > 0
    start, end = _places(s, s[some])
    share = (total[np.minimum(end, depth)] - total[np.minimum(start, depth)]) / (end - start)
    order = np.sort(g[some])[::-1][:depth]
    best = order @ np.diff(total[: len(order) + 1])

    return min(float(g[some] @ share / best), 1.0)


def precision_at_1(scores: ArrayLike, relevant: ArrayLike) -> float:
    """1 if the first item is relevant, else 0; a tie with an irrelevant one loses. VisME's measure on MVEB (Table 1).

    Arguments and errors as in `average_precision`.
    """
    return hit_at_k(scores, relevant, 1)


def recall_at_k(scores: ArrayLike, relevant: ArrayLike, k: int) -> float:
    """Share of the relevant items that are among the first k; a tie loses.

    Metric learning's "Recall@k" is `hit_at_k`.

    >>> recall_at_k([0.9, 0.8, 0.7], [True, False, True], k=1)
    0.5

    Args:
        scores, relevant: as in `average_precision`.
        k: depth of the ranking, >= 1.

    Returns:
        In [0, 1].
    """
    s, r = _query(scores, relevant, "recall")
    ranks = _ranks(s, r)
    return float((ranks <= _depth(k)).mean())


def hit_at_k(scores: ArrayLike, relevant: ArrayLike, k: int) -> float:
    """1 if one of the first k items is relevant, else 0; a tie loses.

    Its mean over queries is metric learning's "Recall@k" (Stanford Online Products: Oh Song et al., CVPR 2016).
    Arguments and errors as in `recall_at_k`.
    """
    return float(recall_at_k(scores, relevant, k) > 0)


# Pairs


def roc_auc(scores: ArrayLike, relevant: ArrayLike) -> float:
    """Area under the ROC curve: the chance that a relevant item scores higher than an irrelevant one, ties half.

    >>> roc_auc([0.9, 0.8, 0.7, 0.1], [True, False, True, False])
    0.75

    Args:
        scores: (N,), one score per pair of images or per item. relevant: bool (N,), the same identity or not.

    Returns:
        In [0, 1]; 0.5 = chance.

    Raises:
        ValueError: if all items or none are relevant, shapes differ, or a score is not finite.
    """
    s, r = labeled(scores, relevant)
    if r.all() or not r.any():
        raise ValueError("ROC AUC needs both relevant and irrelevant items")

    own, others = np.sort(s[r]), np.sort(s[~r])
    fewer = len(own) <= len(others)
    few, many = (own, others) if fewer else (others, own)
    # each of the few against all of the many: twice its wins, in whole numbers
    wins = int(np.searchsorted(many, few, "left").sum()) + int(np.searchsorted(many, few, "right").sum())
    share = wins / (2 * len(few) * len(many))
    return share if fewer else 1 - share


def _query(scores: ArrayLike, relevant: ArrayLike, what: str) -> tuple[Numbers, Truths]:
    s, r = labeled(scores, relevant)
    if not r.any():
        raise ValueError(f"{what} needs at least one relevant item")
    return s, r


def _places(scores: Numbers, of: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the scores above each of `of`, and the scores that are not below it."""
    if len(of) <= min(64, len(scores) // 200):  # counting beats sorting
        counts = [(np.count_nonzero(scores > one), np.count_nonzero(scores >= one)) for one in of.tolist()]
        above, reaching = np.array(counts, np.int64).reshape(-1, 2).T
        return above, reaching
    ordered = np.sort(scores)
    return len(scores) - np.searchsorted(ordered, of, "right"), len(scores) - np.searchsorted(ordered, of, "left")


def _ranks(scores: Numbers, relevant: Truths) -> NDArray[np.int64]:
    """Places (from 1) of the relevant items, best first; after irrelevant ones of equal score."""
    own = np.sort(scores[relevant])[::-1]
    return np.arange(1, len(own) + 1) + _places(scores[~relevant], own)[1]


def _depth(k: int) -> int:
    if k < 1 or k != int(k):
        raise ValueError(f"k must be a whole number >= 1, got {k}")
    return int(k)
