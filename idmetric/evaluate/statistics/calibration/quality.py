"""Quality of probabilities: reliability, calibration error, log loss and Brier score.

Measure them on identities that the curve was not fitted to (`fitting.held_out`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.distance.ties import Truths, labeled

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """Pairs of similar probability.

    Attributes:
        probability: their mean probability. share: the share of these pairs that show one identity. count: number of
            pairs.
    """

    probability: float
    share: float
    count: int


def reliability(probabilities: ArrayLike, same: ArrayLike, bins: int = 15) -> list[Bin]:
    """The reliability curve, over the non-empty of `bins` bins of equal width; a calibrated one is the diagonal.

    Args:
        probabilities: (N,), in [0, 1]. same: bool (N,), whether a pair shows one identity.
    """
    p, r, place = _binned(probabilities, same, bins)
    return [Bin(float(p[place == k].mean()), float(r[place == k].mean()), int((place == k).sum())) for k in
            np.unique(place)]  # fmt: skip


def expected_calibration_error(probabilities: ArrayLike, same: ArrayLike, bins: int = 15) -> float:
    """sum over bins of count / N * |share - mean probability|, in [0, 1] (Naeini et al. 2015; Guo et al. 2017, Eq. 3).

    Arguments and errors as for `reliability`; 15 bins as in Guo et al.
    """
    p, r, place = _binned(probabilities, same, bins)
    gaps = np.bincount(place, weights=p, minlength=bins) - np.bincount(place, weights=r, minlength=bins)
    return float(np.abs(gaps).sum() / len(p))


def log_loss(probabilities: ArrayLike, same: ArrayLike) -> float:
    """Mean of -log(probability of the true label), in nats; lower = better. Arguments as for `reliability`."""
    p, r, _ = _binned(probabilities, same)
    with np.errstate(divide="ignore"):
        return float(-np.log(np.where(r, p, 1 - p)).mean())


def brier_score(probabilities: ArrayLike, same: ArrayLike) -> float:
    """Mean of (probability - same)^2, in [0, 1]; lower = better (Brier 1950). Arguments as for `reliability`."""
    p, r, _ = _binned(probabilities, same)
    return float(((p - r) ** 2).mean())


def _binned(probabilities: ArrayLike, same: ArrayLike, bins: int = 1) -> tuple[Array, Truths, NDArray[np.int64]]:
    _, r = labeled(probabilities, same, ("probabilities", "same"))
    p = np.asarray(probabilities, dtype=np.float64)  # measured, not ranked: not rounded
    if ((p < 0) | (p > 1)).any():
        raise ValueError(f"probabilities must lie in [0, 1], found {p.min()} to {p.max()}")
    return p, r, np.minimum((p * bins).astype(np.int64), bins - 1)
