"""Quality of probabilities: the calibration error. Log loss and Brier score are scikit-learn's.

Measure them on identities that the curve was not fitted to (`fitting.held_out`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from idmetric.evaluate.statistics.checks import paired, truths


def expected_calibration_error(probabilities: ArrayLike, same: ArrayLike, bins: int = 15) -> float:
    """sum over bins of count / N * |share - mean probability|, in [0, 1] (Naeini et al. 2015; Guo et al. 2017, Eq. 3).

    The bins have equal width; 15 as in Guo et al.

    Args:
        probabilities: (N,), in [0, 1]. same: bool (N,), whether a pair shows one identity.
    """
    p, is_same = paired(probabilities, truths("same", same), ("probabilities", "same"))
    lowest, highest = p.min(), p.max()
    if lowest < 0 or highest > 1:
        raise ValueError(f"probabilities must lie in [0, 1], found {lowest} to {highest}")

    number = (p * bins).astype(np.int64).clip(max=bins - 1)  # p = 1 is in the last bin
    _, number, count = np.unique(number, return_inverse=True, return_counts=True)
    probability = np.bincount(number, p) / count
    share = np.bincount(number, is_same) / count
    return float(np.average(np.abs(share - probability), weights=count))
