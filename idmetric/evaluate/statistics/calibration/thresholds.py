"""Decisions by a threshold: two images show the same identity if their similarity reaches it, in six decimals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.bootstrap import Interval, bootstrap
from idmetric.evaluate.statistics.checks import Truths, labeled
from idmetric.metric.distance.ties import STEP, comparable
from idmetric.metric.files.hints import need


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


def operating_point(scores: ArrayLike, same: ArrayLike, threshold: float) -> OperatingPoint:
    """Rates at a threshold.

    Args:
        scores: (N,), similarities of pairs, any sign. same: bool (N,), whether a pair shows one identity.
    """
    s, is_same = both_kinds(scores, same)
    return OperatingPoint(
        threshold=float(threshold),
        true_accept=accepted(s[is_same], threshold),
        false_accept=accepted(s[~is_same], threshold),
    )


def threshold_at_false_accept(scores: ArrayLike, same: ArrayLike, rate: float) -> OperatingPoint:
    """The lowest threshold that accepts no more than a share of the pairs of two identities.

    It is the lowest such score, or, if even the highest score accepts too many, the next number of six decimals above
    it, which accepts no pair. The point's `false_accept` is the actual rate: at most `rate`, less if pairs are few or
    tied.

    Args:
        scores, same: as in `operating_point`.
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
    return operating_point(s, is_same, lowest)


@dataclass(frozen=True)
class Threshold:
    """A threshold at a false-accept rate.

    Attributes:
        rate: the highest allowed. point: the threshold and its rates.
        threshold, true_accept: intervals by identity; None without a bootstrap.
    """

    rate: float
    point: OperatingPoint
    threshold: Interval | None
    true_accept: Interval | None


def threshold_intervals(
    scores: ArrayLike,
    same: ArrayLike,
    identities: ArrayLike,
    rates: Sequence[float] = (0.1, 0.05, 0.01),
    *,
    samples: int = 1000,
    seed: int = 0,
) -> list[Threshold]:
    """Thresholds at false-accept rates; each bootstrap sample chooses its own threshold.

    Args:
        scores, same: as in `operating_point`. identities: (N, 2), as in `fitting.held_out`.
        rates: in [0, 1]. samples, seed: of `bootstrap`; fewer than 2 samples = no intervals.
    """
    s, is_same = both_kinds(scores, same)

    def interval(rate: float, name: str) -> Interval | None:
        """Interval of one attribute of the operating point."""
        if samples < 2:
            return None
        return bootstrap(
            lambda rows: getattr(threshold_at_false_accept(s[rows], is_same[rows], rate), name),
            identities,
            samples=samples,
            seed=seed,
        )

    thresholds = []
    for rate in rates:
        threshold = Threshold(
            rate=rate,
            point=threshold_at_false_accept(s, is_same, rate),
            threshold=interval(rate, "threshold"),
            true_accept=interval(rate, "true_accept"),
        )
        thresholds.append(threshold)
    return thresholds


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
