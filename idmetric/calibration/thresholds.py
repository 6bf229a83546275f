"""Decisions by a threshold: two images show the same identity if their similarity is at least so high."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from idmetric.evaluate.arrays import Numbers, Truths, labelled


@dataclass(frozen=True)
class OperatingPoint:
    """What one threshold decides.

    Attributes:
        threshold: a pair is accepted if its score >= threshold.
        f1: 2 TP / (2 TP + FP + FN), accepted pairs of one identity being TP; in [0, 1].
        true_accept: share of the pairs of one identity that are accepted (recall).
        false_accept: share of the pairs of two identities that are accepted.
    """

    threshold: float
    f1: float
    true_accept: float
    false_accept: float


def operating_point(scores: ArrayLike, same: ArrayLike, threshold: float) -> OperatingPoint:
    """Rates at a threshold.

    Args:
        scores: (N,), similarities of pairs, any sign. same: bool (N,), whether a pair shows one identity.

    Raises:
        ValueError: if all pairs or none are of one identity, shapes differ, or a number is not finite.
    """
    s, r = _pairs(scores, same)
    if not np.isfinite(threshold):
        raise ValueError(f"threshold must be finite, got {threshold}")
    accepted = s.astype(np.float64, copy=False) >= np.float64(threshold)
    hits, alarms = int(accepted[r].sum()), int(accepted[~r].sum())
    own, others = int(r.sum()), int((~r).sum())
    return OperatingPoint(float(threshold), 2 * hits / (own + hits + alarms), hits / own, alarms / others)


def f1_at(scores: ArrayLike, same: ArrayLike, threshold: float) -> float:
    """F1 of accepting pairs with score >= threshold (PerSAM's in ID-Sim, Table 2c); arguments as `operating_point`."""
    return operating_point(scores, same, threshold).f1


def best_f1(scores: ArrayLike, same: ArrayLike) -> OperatingPoint:
    """The threshold of the highest F1; of several, the highest, which is always the score of a pair of one identity.

    A threshold chosen on the pairs that it is tested on flatters: choose on others where there are any.

    Args and raises: as `operating_point`.
    """
    s, r = _pairs(scores, same)
    own, others = np.sort(s[r]), np.sort(s[~r])
    candidates = np.unique(own)
    hits = len(own) - np.searchsorted(own, candidates, "left")
    alarms = len(others) - np.searchsorted(others, candidates, "left")
    f1 = 2 * hits / (len(own) + hits + alarms)
    best = len(f1) - 1 - int(np.argmax(f1[::-1]))
    return operating_point(s, r, float(candidates[best]))


def threshold_at_false_accept(scores: ArrayLike, same: ArrayLike, rate: float) -> OperatingPoint:
    """The lowest threshold that accepts no more than a share of the pairs of two identities.

    It is the lowest score that does; where even the highest does not, the next number above it, and nothing is
    accepted. The point's `false_accept` is what it does accept: at most `rate`, less where pairs are few or tied.

    Args:
        scores, same: as in `operating_point`.
        rate: false-accept rate allowed, in [0, 1].

    Raises:
        ValueError: as `operating_point`, and if the rate is outside [0, 1].
    """
    s, r = _pairs(scores, same)
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be in [0, 1], got {rate}")
    others = np.sort(s[~r])[::-1]
    allowed = int(rate * len(others))
    allowed += (allowed + 1) / len(others) <= rate  # the product may be rounded down
    if allowed >= len(others):
        return operating_point(s, r, float(s.min()))
    first = others[allowed]  # the highest score that must not be accepted
    above = s[s > first]
    threshold = above.min() if len(above) else np.nextafter(first, first.dtype.type(np.inf))  # in the scores' own type
    return operating_point(s, r, float(threshold))


def _pairs(scores: ArrayLike, same: ArrayLike) -> tuple[Numbers, Truths]:
    s, r = labelled(scores, same, ("scores", "same"))
    if r.all() or not r.any():
        raise ValueError(
            f"a threshold needs pairs of one identity and pairs of two, got {r.sum()} and {(~r).sum()} of them"
        )
    return s, r
