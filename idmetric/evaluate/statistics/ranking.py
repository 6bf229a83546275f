"""Ranking statistics of similarity scores, of one query.

Scores may have any sign; higher = retrieved earlier. Scores are equal if they agree in six decimals
(`comparable`). How ties count:

* `average_precision`, `ndcg` and `roc_auc` as in scikit-learn: items of equal score share one place: a model with
  constant scores gets the value of a random ranking.
* `precision_at_1`, `recall_at_k`, `hit_at_k` and `trapezoid_average_precision`: a tie loses, as in a margin; among
  equal scores the irrelevant items come first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.checks import Numbers, Truths, labeled, paired
from idmetric.metric.files import need
from idmetric.metric.ties import comparable

Ints = NDArray[np.int64]


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
    depth = len(s) if k is None else k
    relevant_scores = s[r]
    hits_above, hits = _counts(relevant_scores, relevant_scores)
    above, end = _counts(s, relevant_scores)  # items of equal score take the places from above + 1 to end

    cut = np.minimum(end, depth)
    among_k = (cut - above).clip(min=0)
    share_among_k = among_k / (end - above)
    expected_hits = hits_above + (hits - hits_above) * share_among_k
    precision = expected_hits / cut
    return float(share_among_k @ precision / min(depth, len(relevant_scores)))


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
    ranks = _ranks(s, r)
    hits = np.arange(1, len(ranks) + 1)
    precision = hits / ranks
    precision_before = np.ones_like(precision)  # of the places above; 1 above the first
    np.divide(hits - 1, ranks - 1, out=precision_before, where=ranks > 1)
    sums = precision_before + precision
    return float(sums.mean() / 2)


def ndcg(scores: ArrayLike, gains: ArrayLike) -> float:
    """Normalized discounted cumulative gain: sum of gain / log2(place + 1), over that of the best order.

    Equal scores share their mean gain, by scikit-learn's `ndcg_score` (extra `eval`). In ID-Sim (PODS, supplement D) an
    item is of the query's instance or not: gains of 1 and 0.

    Args:
        scores: (N,). gains: (N,), >= 0, higher = more relevant; booleans are 1 and 0.

    Returns:
        In [0, 1].

    Raises:
        ValueError: if no gain is above 0 or one is below it, shapes differ, or a number is not finite.
    """
    s, g = paired(scores, gains, ("scores", "gains"))
    if g.min() < 0 or g.max() <= 0:
        raise ValueError(f"nDCG needs gains >= 0 with one above 0, got {g.min():g} to {g.max():g}")
    if len(s) == 1:
        return 1.0  # scikit-learn refuses a single item

    need("eval", "nDCG", sklearn="scikit-learn")
    from sklearn.metrics import ndcg_score

    score = ndcg_score(g[None], comparable(s)[None])
    return min(float(score), 1.0)  # sums are rounded


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
    return float((ranks <= k).mean())


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

    need("eval", "ROC AUC", sklearn="scikit-learn")
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(r, s))


def _query(scores: ArrayLike, relevant: ArrayLike, what: str) -> tuple[Numbers, Truths]:
    s, r = labeled(scores, relevant)
    if not r.any():
        raise ValueError(f"{what} needs at least one relevant item")
    return s, r


def _counts(scores: Numbers, levels: Numbers) -> tuple[Ints, Ints]:
    """Count the scores above each level, and the scores that are not below it."""
    if len(levels) <= min(64, len(scores) // 200):  # counting beats sorting
        above = np.array([np.count_nonzero(scores > level) for level in levels])
        not_below = np.array([np.count_nonzero(scores >= level) for level in levels])
    else:
        negated = np.sort(-scores)
        above = np.searchsorted(negated, -levels, "left")
        not_below = np.searchsorted(negated, -levels, "right")
    return above, not_below


def _ranks(scores: Numbers, relevant: Truths) -> Ints:
    """Places (from 1) of the relevant items, best first; after irrelevant ones of equal score."""
    relevant_scores = np.sort(scores[relevant])[::-1]
    irrelevant_scores = scores[~relevant]
    _, irrelevant_before = _counts(irrelevant_scores, relevant_scores)
    return irrelevant_before + np.arange(1, len(relevant_scores) + 1)
