"""Distances between genuine photos of one subject, as a scale for those of generated images."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.distance.ties import comparable, numbers

# With this many references the farthest is a threshold: one more genuine photo, exchangeable with n of them, lies
# beyond the farthest in 1 of n + 1 cases, 5 % here and 25 % with three (Vovk et al. 2005, conformal prediction)
ENOUGH = 19

FEWEST = 5  # references, below which `percentile` says little: of two, nearly every image is farther than both

Array = NDArray[np.float64]
Aggregate = Literal["best", "mean"]


def leave_one_out(distances: ArrayLike, aggregate: Aggregate = "best") -> Array:
    """The distance of each genuine photo to all the others, aggregated like a candidate's to several references.

    With `best`, a candidate has one more photo to be near to than each genuine photo. The distances of the genuine ones
    are therefore a little too high, and the more so the fewer photos there are.

    Args:
        distances: (N, N) of N photos of one subject to each other, N >= 2; the diagonal is not read.
        aggregate: "best", to the nearest of the others, or "mean".

    Returns:
        Shape (N,).
    """
    d = numbers("distances", distances, 2).astype(np.float64)
    count = len(d)
    if d.shape != (count, count) or count < 2:
        raise ValueError(f"distances must be (N, N) of at least two photos, got {d.shape}")
    is_other = ~np.eye(count, dtype=bool)
    to_others: Array = d[is_other].reshape(count, -1)
    if aggregate == "best":
        return np.asarray(to_others.min(1))
    return np.asarray(to_others.mean(1))


def percentile(value: float, genuine: ArrayLike) -> float:
    """Percentage of genuine distances below a value; equal ones count half.

    0 = nearer than every genuine photo, 100 = farther than every one.
    """
    g = comparable(numbers("genuine", genuine))
    v = comparable(value)
    return float(100 * ((g < v).mean() + (g == v).mean() / 2))
