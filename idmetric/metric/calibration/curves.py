"""The curve from a score to the probability of the same identity: `fitting` fits it, `Calibration` applies it.

NumPy alone: neither torch nor scikit-learn is needed to apply one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Isotonic:
    """Linear between knots and constant beyond them.

    Attributes:
        scores: increasing (K,). probabilities: of these scores, increasing, above 0 and below 1.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        x = np.asarray(self.scores, dtype=np.float64)
        p = np.asarray(self.probabilities, dtype=np.float64)
        is_list = x.ndim == 1 and x.size > 0 and x.shape == p.shape
        is_increasing = np.isfinite(x).all() and np.all(np.diff(x) > 0)
        is_monotone = np.all(np.diff(p) > 0)  # False for NaN
        if not (is_list and is_increasing and is_monotone and 0 < p.min() <= p.max() < 1):
            raise ValueError("scores must increase, and as many probabilities must increase and lie between 0 and 1")

    def probability(self, scores: ArrayLike) -> Array:
        """Return the probability of the same identity for scores of any shape."""
        x = np.asarray(scores, dtype=np.float64)
        probabilities: Array = np.asarray(np.interp(x, self.scores, self.probabilities))
        return probabilities
