"""Quality of probabilities: reliability and calibration error. Log loss and Brier score are scikit-learn's.

Measure them on identities that the curve was not fitted to (`fitting.held_out`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.checks import Truths, paired, truths


def reliability(probabilities: ArrayLike, same: ArrayLike, bins: int = 15) -> dict[str, NDArray[Any]]:
    """The reliability curve, over the non-empty of `bins` bins of equal width; a calibrated one is the diagonal.

    Args:
        probabilities: (N,), in [0, 1]. same: bool (N,), whether a pair shows one identity.

    Returns:
        Of each bin the mean `probability`, the `share` of its pairs that show one identity, and their `count`.
    """
    p, is_same = _checked(probabilities, same)
    number = (p * bins).astype(np.int64).clip(max=bins - 1)  # p = 1 is in the last bin
    _, number, count = np.unique(number, return_inverse=True, return_counts=True)
    return {
        "probability": np.bincount(number, p) / count,
        "share": np.bincount(number, is_same) / count,
        "count": count,
    }


def expected_calibration_error(probabilities: ArrayLike, same: ArrayLike, bins: int = 15) -> float:
    """sum over bins of count / N * |share - mean probability|, in [0, 1] (Naeini et al. 2015; Guo et al. 2017, Eq. 3).

    Arguments and errors as for `reliability`; 15 bins as in Guo et al.
    """
    curve = reliability(probabilities, same, bins)
    gaps = np.abs(curve["share"] - curve["probability"])
    return float(np.average(gaps, weights=curve["count"]))


def _checked(probabilities: ArrayLike, same: ArrayLike) -> tuple[NDArray[np.float64], Truths]:
    labels = truths("same", same)
    p, is_same = paired(probabilities, labels, ("probabilities", "same"))
    lowest, highest = p.min(), p.max()
    if lowest < 0 or highest > 1:
        raise ValueError(f"probabilities must lie in [0, 1], found {lowest} to {highest}")
    return p, is_same.astype(bool)
