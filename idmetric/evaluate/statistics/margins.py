"""NearID's statistics (section 3.4): SSR and PA, does identity outweigh a matched context, and M-O, does similarity
follow the size of an edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.statistics.agreement import fisher_mean, pearson
from idmetric.metric.ties import comparable

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Margins:
    """SSR and PA, with the terms of each sample that has a valid margin.

    Attributes:
        samples: (K,), which of the samples these are.
        success: bool (K,), whether all valid margins are above 0. wins, trials: (K,), margins above 0 and valid ones.
    """

    samples: NDArray[np.int64]
    success: NDArray[np.bool_]
    wins: NDArray[np.int64]
    trials: NDArray[np.int64]

    @property
    def ssr(self) -> float:
        """Sample Success Rate, share of samples with all valid margins above 0."""
        return float(self.success.mean())

    @property
    def pa(self) -> float:
        """Pairwise Accuracy, share of valid margins above 0, pooled over samples."""
        wins = int(self.wins.sum())
        return wins / int(self.trials.sum())


@dataclass(frozen=True)
class OracleAgreement:
    """Correlation with the oracle's scores of part-edits.

    Attributes:
        whole: M-O, mean over all sets of pairs; None where no view has a similarity to another view's edit.
        pair: M-O-pair, mean over the sets of a view with its own edit.
        pairs: numbers of similarities used, in `whole` and in `pair`.
    """

    whole: float | None
    pair: float
    pairs: tuple[int, int]


def directed_margins(positives: Array, distractors: Array) -> Array:
    """Margins of a sample: how far a similarity across contexts exceeds that to a matched-context distractor.

    delta(i, j) = s(p_i, p_j) - s(p_i, n_i) for all ordered pairs i != j of views (NearID, equation 4), with one
    s(p_i, p_j) for a pair: that of the earlier view with the later.

    >>> import numpy as np
    >>> np.round(directed_margins(np.array([[1.0, 0.9], [0.9, 1.0]]), np.array([0.4, 0.95])), 2)
    array([ 0.5 , -0.05])

    Args:
        positives: similarities of the views (V, V), NaN where a view is missing. Only the upper triangle is used.
            Samples may be stacked: (..., V, V).
        distractors: similarity of each view to its own distractor (V,) or (..., V), NaN without one.

    Returns:
        (V * (V - 1),) or (..., V * (V - 1)) margins; NaN where any of the images is missing.
    """
    views = distractors.shape[-1]
    is_pair = ~np.eye(views, dtype=bool)
    i, j = np.nonzero(is_pair)
    earlier = np.minimum(i, j)
    later = np.maximum(i, j)
    margins: Array = positives[..., earlier, later] - distractors[..., i]
    return margins


def margin_rates(margins: Sequence[Array] | Array, *, count_mean: bool = False) -> Margins:
    """SSR and PA over the samples' margins (NearID, equation 5).

    A tie, a margin of 0 in six decimals, loses. NaN margins do not count, nor do samples without a valid margin.

    Args:
        margins: (S, M), or a sequence of S arrays (M,) of any lengths.
        count_mean: count each sample's mean margin as one more trial of PA, as the code does that prints NearID's
            tables (3 trials of a sample of two views, 7 of three). Equation 5 does not.
    """
    longest = max(map(len, margins), default=0)
    table = np.full((len(margins), longest), np.nan)
    for row, sample_margins in enumerate(margins):
        table[row, : len(sample_margins)] = sample_margins

    is_valid = ~np.isnan(table)
    samples = np.flatnonzero(is_valid.any(1))
    if not len(samples):
        raise ValueError("no sample has a valid margin: each needs two views and a distractor of one of them")
    table = table[samples]
    is_won = comparable(table) > 0
    wins = is_won.sum(1)
    trials = is_valid[samples].sum(1)
    success = wins == trials
    if count_mean:
        sums = np.nansum(table, axis=1)  # a mean has its sum's sign
        wins += comparable(sums) > 0
        trials += 1
    return Margins(samples, success, wins, trials)


def oracle_agreement(similarity: Array, oracle: Array) -> OracleAgreement:
    """M-O and M-O-pair: correlation of similarities to part-edits with the oracle, 1 - part area / object area.

    With views 1, 2 of a sample and their edits 1', 2' there are four sets of pairs over all samples, each with one
    Pearson correlation: (1, 1') and (2, 2') against the oracle of 1' and of 2' make M-O-pair, and with (2, 1') and
    (1, 2'), against that of 1' and of 2', M-O. They are averaged by Fisher's z (NearID, section 3.4 and supplement
    E.2). As in NearID's released code a correlation is 0 where similarities or oracle don't vary, and kept within
    +-0.999.

    Args:
        similarity: (S, V, V), [s, i, j] of view i with the part-edit of view j; NaN where an image is missing.
        oracle: (S, V), of the part-edit of view j; NaN without one.

    Raises:
        ValueError: if no set of a view with its own edit has two pairs.
    """
    correlations, own_correlations = [], []  # of all sets, and of the sets of a view with its own edit
    count = own_count = 0
    for view, edit in np.ndindex(similarity.shape[1:]):
        x = similarity[:, view, edit]
        y = oracle[:, edit]
        valid = ~np.isnan(x) & ~np.isnan(y)
        pairs = int(valid.sum())
        if pairs < 2:
            continue
        correlation = pearson(x[valid], y[valid], constant=0.0)
        correlations.append(correlation)
        count += pairs
        if view == edit:
            own_correlations.append(correlation)
            own_count += pairs

    if not own_correlations:
        raise ValueError("the oracle's correlation needs two samples with a view, its part-edit and that one's oracle")
    pair, _ = fisher_mean(own_correlations)
    whole = None
    if len(correlations) > len(own_correlations):
        whole, _ = fisher_mean(correlations)
    return OracleAgreement(whole, pair, (count, own_count))
