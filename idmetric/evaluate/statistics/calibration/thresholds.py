"""Decisions by a threshold: two images show the same identity if their similarity reaches it, in six decimals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.checks import Truths, labeled
from idmetric.metric.files import need
from idmetric.metric.ties import STEP, comparable


@dataclass(frozen=True)
class OperatingPoint:
    """The rates of one threshold.

    Attributes:
        threshold: a pair is accepted if its score >= threshold.
        true_accept: share of the pairs of one identity that are accepted (recall).
        false_accept: share of the pairs of two identities that are accepted.
    """

    threshold: float
    true_accept: float
    false_accept: float


def threshold_at_false_accept(scores: ArrayLike, same: ArrayLike, rate: float) -> OperatingPoint:
    """The lowest threshold that accepts no more than a share of the pairs of two identities.

    It is the lowest such score, or, if even the highest score accepts too many, the next number of six decimals above
    it, which accepts no pair. The point's `false_accept` is the actual rate: at most `rate`, less if pairs are few or
    tied.

    Args:
        scores: (N,), similarities of pairs, any sign. same: bool (N,), whether a pair shows one identity.
        rate: highest false-accept rate, in [0, 1].
    """
    s, is_same = both_kinds(scores, same)
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be in [0, 1], got {rate}")

    need("eval", "a threshold at a false-accept rate", sklearn="scikit-learn")
    from sklearn.metrics import roc_curve

    false_accepts, _, thresholds = roc_curve(is_same, s, drop_intermediate=False)
    lowest = thresholds[false_accepts <= rate][-1]
    if np.isinf(lowest):
        lowest = s.max() + STEP
    return OperatingPoint(
        threshold=float(lowest),
        true_accept=accepted(s[is_same], lowest),
        false_accept=accepted(s[~is_same], lowest),
    )


def accepted(scores: ArrayLike, threshold: float) -> float:
    """Share of scores (N,) at or above a threshold."""
    s = comparable(scores)
    if not s.size:
        raise ValueError("no scores: a share needs one at least")
    return float((s >= comparable(threshold)).mean())


def both_kinds(scores: ArrayLike, same: ArrayLike) -> tuple[NDArray[np.float64], Truths]:
    """Scores (N,), `comparable`, and labels (N,) with pairs of one identity and of two."""
    s, is_same = labeled(scores, same, ("scores", "same"))
    if len(np.unique(is_same)) < 2:
        raise ValueError(
            "a threshold needs pairs of one identity and pairs of two, got "
            f"{is_same.sum()} and {(~is_same).sum()} of them"
        )
    return s, is_same
