"""SSR and PA: does identity outweigh a matched context? (NearID, section 3.4, equations 4 and 5)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Margins:
    """Results over samples.

    Attributes:
        ssr: Sample Success Rate, share of samples all of whose valid margins are above 0.
        pa: Pairwise Accuracy, share of valid margins above 0, pooled over samples.
        samples, trials: how many of each were valid.
    """

    ssr: float
    pa: float
    samples: int
    trials: int


def directed_margins(positives: Array, distractors: Array) -> Array:
    """Margins of one sample: how far a similarity across contexts exceeds that to a matched-context distractor.

    delta(i, j) = s(p_i, p_j) - s(p_i, n_i) for all ordered pairs i != j of views (NearID, equation 4).

    Args:
        positives: similarities of the views (V, V), NaN where a view is missing. The diagonal is not used.
        distractors: similarity of each view to its own distractor (V,), NaN where there is none.

    Returns:
        (V * (V - 1),) margins; NaN where any of the images is missing.

    Raises:
        ValueError: if the shapes don't fit.
    """
    views = len(distractors)
    if positives.shape != (views, views):
        raise ValueError(f"similarities {positives.shape} of {views} views: ({views}, {views}) is needed")
    own, other = np.nonzero(~np.eye(views, dtype=bool))
    margins: Array = positives[own, other] - distractors[own]
    return margins


def margin_rates(margins: Sequence[Array]) -> Margins:
    """SSR and PA over the samples' margins; a tie loses, NaN margins don't count, nor samples without a valid one.

    Raises:
        ValueError: if no margin is valid.
    """
    valid = [m[~np.isnan(m)] for m in margins]
    valid = [m for m in valid if len(m)]
    if not valid:
        raise ValueError("no sample has a valid margin: each needs two views and a distractor of one of them")
    wins = np.concatenate(valid) > 0
    return Margins(float(np.mean([bool((m > 0).all()) for m in valid])), float(wins.mean()), len(valid), len(wins))
