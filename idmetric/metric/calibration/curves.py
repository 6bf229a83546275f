"""Curves from a score to the log-odds of the same identity: `fitting` fits them, `Calibration` applies them.

NumPy alone: neither torch nor scikit-learn is needed to apply one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Platt:
    """log-odds = slope * score + intercept (Platt, "Probabilistic outputs for support vector machines", 1999)."""

    slope: float
    intercept: float
    method = "platt"

    def __post_init__(self) -> None:
        if not np.isfinite([self.slope, self.intercept]).all() or self.slope <= 0:
            raise ValueError(f"the slope must be above 0 and finite, got {self.slope} and {self.intercept}")

    def log_odds(self, scores: ArrayLike) -> Array:
        """Return the log-odds of the same identity for scores of any shape; higher = more likely."""
        return self.slope * np.asarray(scores, dtype=np.float64) + self.intercept


@dataclass(frozen=True)
class Isotonic:
    """Linear between knots and constant beyond them.

    Attributes:
        scores: increasing (K,). probabilities: of these scores, increasing, above 0 and below 1.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    method = "isotonic"

    def __post_init__(self) -> None:
        x = np.asarray(self.scores, dtype=np.float64)
        p = np.asarray(self.probabilities, dtype=np.float64)
        is_list = x.ndim == 1 and x.size > 0 and x.shape == p.shape
        is_increasing = np.isfinite(x).all() and np.all(np.diff(x) > 0)
        is_monotone = np.all(np.diff(p) > 0)  # False for NaN
        if not (is_list and is_increasing and is_monotone and 0 < p.min() <= p.max() < 1):
            raise ValueError("scores must increase, and as many probabilities must increase and lie between 0 and 1")

    def log_odds(self, scores: ArrayLike) -> Array:
        """Return the log-odds of the same identity for scores of any shape; higher = more likely."""
        x = np.asarray(scores, dtype=np.float64)
        return log_odds(np.interp(x, self.scores, self.probabilities))


Curve = Platt | Isotonic
CURVES: dict[str, type[Platt] | type[Isotonic]] = {"platt": Platt, "isotonic": Isotonic}


def log_odds(probability: ArrayLike) -> Array:
    """log(p / (1 - p)) of probabilities between 0 and 1."""
    p = np.asarray(probability, dtype=np.float64)
    odds: Array = np.log(p) - np.log1p(-p)
    return odds


def from_log_odds(odds: ArrayLike) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    x = np.asarray(odds, dtype=np.float64)
    small = np.exp(-np.abs(x))
    numerator = np.where(x >= 0, 1, small)
    probability: Array = numerator / (1 + small)
    return probability
