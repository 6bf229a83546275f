"""Which of several methods is beaten by no other on both of two scores?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from idmetric.evaluate.arrays import Truths, comparable, paired


def on_front(x: ArrayLike, y: ArrayLike) -> Truths:
    """Whether no other point is at least as high on both scores and higher on one.

    >>> on_front([1, 2, 3, 2], [3, 2, 1, 1]).tolist()
    [True, True, True, False]

    Args:
        x, y: (N,), higher = better.

    Raises:
        ValueError: if they are empty, not of one shape, or not finite.
    """
    a, b = map(comparable, paired(x, y))
    not_lower = (a[:, None] >= a) & (b[:, None] >= b)
    higher = (a[:, None] > a) | (b[:, None] > b)
    beaten: Truths = np.asarray((not_lower & higher).any(0), dtype=bool)
    return np.logical_not(beaten)
