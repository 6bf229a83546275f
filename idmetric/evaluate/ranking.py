"""Ranking statistics of similarity scores; scores may be negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def average_precision(scores: ArrayLike, relevant: ArrayLike) -> float:
    """Average precision: the mean, over relevant items, of the precision at their place in the ranking.

    Ties are taken as one place, as scikit-learn's `average_precision_score` does.

    Args:
        scores: shape (N,), higher = retrieved earlier, any sign.
        relevant: bool, shape (N,).

    Returns:
        In (0, 1].

    Raises:
        ValueError: if nothing is relevant, shapes differ, or a score is not finite.
    """
    s, r = _checked(scores, relevant)
    if not r.any():
        raise ValueError("average precision needs at least one relevant item")
    order = np.argsort(-s, kind="stable")
    s, r = s[order], r[order]
    ends = np.r_[np.flatnonzero(np.diff(s)), len(s) - 1]  # last item of each group of equal scores
    hits = np.cumsum(r)[ends]
    precision = hits / (ends + 1)
    gained = np.diff(np.r_[0, hits])
    return float((precision * gained).sum() / r.sum())


def roc_auc(scores: ArrayLike, relevant: ArrayLike) -> float:
    """Area under the ROC curve: the chance that a relevant item scores higher than an irrelevant one, ties half.

    Arguments as in `average_precision`.

    Raises:
        ValueError: if all items or none are relevant, shapes differ, or a score is not finite.
    """
    s, r = _checked(scores, relevant)
    positives, negatives = int(r.sum()), int((~r).sum())
    if not positives or not negatives:
        raise ValueError("ROC AUC needs both relevant and irrelevant items")
    _, place, counts = np.unique(s, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # mean rank of each group of equal scores
    return float((ranks[r].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _checked(scores: ArrayLike, relevant: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    s, r = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=bool)
    if s.ndim != 1 or s.shape != r.shape:
        raise ValueError(f"scores and relevance must be of one shape (N,), got {s.shape} and {r.shape}")
    if not np.isfinite(s).all():
        raise ValueError("scores must be finite")
    return s, r
