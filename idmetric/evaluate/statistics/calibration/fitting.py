"""Fits the calibration curve to labeled pairs; needs scikit-learn (extra `eval`).

`held_out` gives probabilities of pairs by curves fitted without their identities, which is how a fit is measured.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.calibration.thresholds import both_kinds
from idmetric.evaluate.statistics.checks import Truths
from idmetric.metric.files import need
from idmetric.scoring.calibration import Isotonic

Array = NDArray[np.float64]


def fit(scores: ArrayLike, same: ArrayLike, limit: float | None = None) -> Isotonic:
    """Fit a strictly increasing curve from a score to the probability of one identity.

    It has straight lines between shares of pairs of one identity, which are made to rise by isotonic regression
    (Zadrozny and Elkan 2002), and assumes no shape. The shares are of about 2 N^(1/3) groups of neighbors in score, as
    many as bins of a histogram by Rice's rule. Isotonic regression of single pairs gives a staircase, on which
    different scores are equally probable.

    Args:
        scores: (N,), similarities of pairs, any sign. same: bool (N,), whether a pair shows one identity.
        limit: shares stay within [limit, 1 - limit], since a sample without exceptions does not prove that there are
            none; probabilities beyond the outermost shares approach limit / 2 and 1 - limit / 2. Default
            1 / (n + 2), n pairs of the rarer kind (Laplace's rule of succession); where pairs share identities, let n
            be the number of identities.

    Raises:
        ValueError: if all pairs or none are of one identity, shapes differ, a number is not finite, or scores do not
            rise with the share of pairs of one identity.
        ImportError: without scikit-learn.
    """
    s, is_same = both_kinds(scores, same)
    curve = _rising_curve(s, is_same, limit)
    if curve is None:
        raise ValueError("the scores do not rise with the share of pairs of one identity: nothing to calibrate")
    return curve


def _rising_curve(s: Array, is_same: Truths, limit: float | None) -> Isotonic | None:
    """The curve of `fit`; None if the scores do not rise with the share of pairs of one identity."""
    need("eval", "fitting a calibration", sklearn="scikit-learn")
    from sklearn.isotonic import IsotonicRegression

    if limit is None:
        limit = 1 / (np.bincount(is_same).min() + 2)

    # the share of pairs of one identity among neighbors in score
    count = min(len(s), round(2 * len(s) ** (1 / 3)))
    order = np.argsort(s, kind="stable")
    groups = np.array_split(order, count)
    sizes = list(map(len, groups))
    centers = [s[group].mean() for group in groups]
    shares = [is_same[group].mean() for group in groups]

    # groups of equal share after the regression become one knot
    regression = IsotonicRegression()
    rising = regression.fit_transform(centers, shares, sample_weight=sizes)
    clipped = rising.clip(limit, 1 - limit)
    levels, number = np.unique(clipped, return_inverse=True)
    if len(levels) < 2:
        return None
    sums = np.bincount(number, np.multiply(centers, sizes))
    knots = sums / np.bincount(number, sizes)

    # ends beyond all scores: distances of this package lie between 0 and 4
    lowest = float(s.min()) - 4
    highest = float(s.max()) + 1
    return Isotonic(
        scores=(lowest, *knots.tolist(), highest),
        probabilities=(limit / 2, *levels.tolist(), 1 - limit / 2),
    )


def held_out(
    scores: ArrayLike,
    same: ArrayLike,
    identities: ArrayLike,
    *,
    limit: float | None = None,
    folds: int = 5,
    seed: int = 0,
) -> Array:
    """Probabilities (N,) of pairs, each by a curve fitted to pairs that share no identity with it (cross-fitting).

    Identities are divided among folds. A pair of folds i and j gets the curve of all pairs that touch neither fold, or,
    if no curve rises, their share of pairs of one identity.

    Args:
        scores, same, limit: as for `fit`.
        identities: (N, 2), of the two images of a pair; identities that depend on each other (an object and the
            distractors made from it) must share one number.
        folds: at most as many as identities are used. seed: for the division into folds.
    """
    s, is_same = both_kinds(scores, same)
    names, number = np.unique(identities, return_inverse=True)
    folds = min(folds, len(names))
    rng = np.random.default_rng(seed)
    fold_of_identity = rng.permutation(len(names)) % folds
    pair_folds = fold_of_identity[number.reshape(-1, 2)]
    pair_folds.sort(axis=1)
    probabilities = np.full(len(s), np.nan)

    for i, j in combinations_with_replacement(range(folds), 2):
        unseen = (pair_folds == (i, j)).all(1)
        rest = ~np.isin(pair_folds, (i, j)).any(1)
        if not unseen.any():
            continue

        if len(np.unique(is_same[rest])) < 2:
            raise ValueError(
                f"without the identities of two of {folds} folds no pairs of both kinds are left: more identities than "
                f"{len(names)} are needed"
            )
        curve = _rising_curve(s[rest], is_same[rest], limit)
        if curve is None:  # few identities may show no slope; their share is the best constant
            probabilities[unseen] = is_same[rest].mean()
        else:
            probabilities[unseen] = curve.probability(s[unseen])

    return probabilities
