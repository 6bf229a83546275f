"""The rule for equal scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Scores that agree in so many decimals are equal. The cosine of one pair of images moves by about 1e-7 in float32, and
# by 1e-16 in float64, with the block, the thread and the place in a batch: noise must not rank copies of an image.
DIGITS = 6
STEP = 10.0**-DIGITS


def comparable(scores: ArrayLike) -> NDArray[np.float64]:
    """Scores of any shape, rounded as everything that ranks, counts hits or applies a threshold compares them.

    A margin is rounded after its subtraction: two scores that differ by noise then tie, wherever they lie.

    >>> comparable([0.1234561, 0.1234564]).tolist()
    [0.123456, 0.123456]
    """
    array = np.asarray(scores, dtype=np.float64)
    return array.round(DIGITS)
