"""Tests of paired differences: are two methods different on the same items?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.arrays import comparable, numbers
from idmetric.io.hints import need

Array = NDArray[np.float64]


def signed_rank(differences: ArrayLike, identity: ArrayLike) -> float:
    """Two-sided p of Wilcoxon's signed-rank test on each identity's mean difference (scipy.stats.wilcoxon).

    Items of one identity are not independent, so identities are the units. p is `smallest_p` at least: six identities
    are needed for p < 0.05. Zero differences count half for each side; 1 if all are zero.

    Args:
        differences: (N,). identity: (N,), any type that sorts.
    """
    need("eval", "a paired test", scipy="scipy")
    from scipy.stats import wilcoxon

    d = numbers("differences", differences).astype(np.float64)
    _, place = np.unique(np.asarray(identity), return_inverse=True)
    means = comparable(np.bincount(place.ravel(), d) / np.bincount(place.ravel()))
    if not means.any():
        return 1.0
    return float(wilcoxon(means, zero_method="zsplit").pvalue)


def smallest_p(identities: int) -> float:
    """The p of `signed_rank` where all differences of so many identities have one sign: 2 / 2^n."""
    return float(min(1.0, 2.0 ** (1 - identities)))


def holm(p: ArrayLike) -> Array:
    """p values (N,) corrected for N tests: Holm's step-down procedure (1979).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    found = np.empty_like(given)
    found[order] = np.maximum.accumulate((len(given) - np.arange(len(given))) * given[order]).clip(0, 1)
    return found
