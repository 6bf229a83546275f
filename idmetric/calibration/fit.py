"""Calibration: probabilities from scores, fitted to labelled pairs, and how far such probabilities can be trusted.

Fitting needs scikit-learn (extra `eval`). What is reported of a fit is measured on identities that it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.calibration.curves import Curve, Isotonic, Platt, from_log_odds
from idmetric.calibration.thresholds import OperatingPoint, operating_point, threshold_at_false_accept
from idmetric.evaluate.arrays import Numbers, Truths, labelled
from idmetric.evaluate.bootstrap import Interval, bootstrap
from idmetric.io.hints import install

Array = NDArray[np.float64]
Method = Literal["isotonic", "platt"]
METHODS: tuple[Method, ...] = ("isotonic", "platt")


class Flat(ValueError):
    """No curve rises with these scores."""

    def __init__(self) -> None:
        super().__init__("the scores do not rise with the share of pairs of one identity: nothing to calibrate")


def fit(scores: ArrayLike, same: ArrayLike, method: Method = "isotonic", limit: float | None = None) -> Curve:
    """A non-decreasing curve from a score to the probability of one identity.

    `platt`: a logistic curve, by maximum likelihood on Platt's smoothed targets, (N+ + 1) / (N+ + 2) for pairs of one
    identity and 1 / (N- + 2) for others (Platt 1999, section 2.2). `isotonic`: the non-decreasing function of least
    squared error (Zadrozny and Elkan 2002), which needs more pairs and assumes no shape.

    Args:
        scores: (N,), similarities of pairs, any sign. same: bool (N,), whether a pair shows one identity.
        limit: an isotonic probability stays within [limit, 1 - limit], as pairs without an exception don't show that
            there is none. Default 1 / (n + 2), n pairs of the rarer kind (Laplace's rule of succession); where pairs
            share identities, let n be their number.

    Raises:
        ValueError: if all pairs or none are of one identity, shapes differ, a number is not finite, or scores do not
            rise with the share of pairs of one identity.
        ImportError: without scikit-learn.
    """
    s, r = _pairs(scores, same)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: choose {' or '.join(METHODS)}")
    if limit is None:
        limit = 1 / (min(int(r.sum()), int((~r).sum())) + 2)
    if not 0 < limit < 0.5:
        raise ValueError(f"limit must lie between 0 and 0.5, got {limit}")
    return _isotonic(s, r, limit) if method == "isotonic" else _platt(s, r)


def _isotonic(s: Numbers, r: Truths, limit: float) -> Isotonic:
    found = _sklearn("isotonic").IsotonicRegression(out_of_bounds="clip").fit(s.astype(np.float64), r.astype(float))
    x, p = np.asarray(found.X_thresholds_), np.clip(found.y_thresholds_, limit, 1 - limit)
    if p[0] == p[-1]:
        raise Flat
    return Isotonic(tuple(x.tolist()), tuple(p.tolist()))


def _platt(s: Numbers, r: Truths) -> Platt:
    high, low = (r.sum() + 1) / (r.sum() + 2), 1 / ((~r).sum() + 2)
    target = np.where(r, high, low)
    centre, scale = float(s.mean()), float(s.std()) or 1.0
    # a target between 0 and 1 is one pair of each kind, weighted
    x = np.tile((s.astype(np.float64) - centre) / scale, 2)[:, None]
    model = _sklearn("linear_model").LogisticRegression(C=1e12, tol=1e-10, max_iter=1000)
    model.fit(x, np.repeat([1, 0], len(s)), sample_weight=np.concatenate([target, 1 - target]))
    slope = float(model.coef_[0, 0]) / scale
    if slope <= 0:
        raise Flat
    return Platt(slope, float(model.intercept_[0]) - slope * centre)


def held_out(
    scores: ArrayLike,
    same: ArrayLike,
    identities: ArrayLike,
    method: Method = "isotonic",
    *,
    limit: float | None = None,
    folds: int = 5,
    seed: int = 0,
) -> Array:
    """Probabilities (N,) of pairs, each by a curve fitted to pairs that share no identity with it (cross-fitting).

    Identities are shared out among folds; a pair of folds i and j gets the curve of all pairs that touch neither, or
    their share of one identity where no curve rises.

    Args:
        scores, same, method, limit: as for `fit`.
        identities: (N, 2), those of the two images of a pair; where identities depend on each other (a thing and the
            distractors made from it), number them as one.
        folds: fewer where there are fewer identities. seed: of sharing out.

    Raises:
        ValueError: as `fit`, and if there are too few identities for both kinds of pairs to be left.
    """
    s, r = _pairs(scores, same)
    names, place = np.unique(np.asarray(identities), return_inverse=True)
    place = place.reshape(-1, 2)
    if len(place) != len(s):
        raise ValueError(f"identities must be of shape ({len(s)}, 2), got {np.shape(identities)}")
    folds = min(folds, len(names))
    if folds < 3:
        raise ValueError(f"cross-fitting needs 3 identities and folds at least, got {len(names)} and {folds}")
    fold = np.random.default_rng(seed).permutation(len(names)) % folds
    of = np.sort(fold[place], axis=1)
    out = np.full(len(s), np.nan)
    for i, j in combinations_with_replacement(range(folds), 2):
        asked = (of[:, 0] == i) & (of[:, 1] == j)
        rest = ~np.isin(of, (i, j)).any(1)
        if not asked.any():
            continue
        if r[rest].all() or not r[rest].any():
            raise ValueError(
                f"without the identities of two folds no pairs of both kinds are left ({len(names)} identities in "
                f"{folds} folds): more identities are needed"
            )
        try:
            out[asked] = from_log_odds(fit(s[rest], r[rest], method, limit).log_odds(s[asked]))
        except Flat:  # the best curve without a slope: a few identities can't show that there is none
            out[asked] = r[rest].mean()
    return out


@dataclass(frozen=True)
class Bin:
    """Pairs whose probabilities are near each other: the mean of these, and the share that shows one identity."""

    probability: float
    share: float
    count: int


def reliability(probabilities: ArrayLike, same: ArrayLike, bins: int = 15) -> list[Bin]:
    """The reliability curve: bins of equal width over [0, 1], without empty ones; well calibrated = the diagonal.

    Raises:
        ValueError: if a probability is outside [0, 1], shapes differ, or there are none.
    """
    p, r, place = _binned(probabilities, same, bins)
    return [Bin(float(p[place == k].mean()), float(r[place == k].mean()), int((place == k).sum())) for k in
            np.unique(place)]  # fmt: skip


def expected_calibration_error(probabilities: ArrayLike, same: ArrayLike, bins: int = 15) -> float:
    """sum over bins of count / N * |share - mean probability|, in [0, 1] (Naeini et al. 2015; Guo et al. 2017, Eq. 3).

    Arguments and errors as for `reliability`; 15 bins as in Guo et al.
    """
    p, r, place = _binned(probabilities, same, bins)
    gaps = np.bincount(place, weights=p, minlength=bins) - np.bincount(place, weights=r, minlength=bins)
    return float(np.abs(gaps).sum() / len(p))


def log_loss(probabilities: ArrayLike, same: ArrayLike) -> float:
    """Mean of -log(probability given to what is true), in nats; lower = better. Arguments as for `reliability`."""
    p, r = _probabilities(probabilities, same)
    with np.errstate(divide="ignore"):
        return float(-np.log(np.where(r, p, 1 - p)).mean())


def brier_score(probabilities: ArrayLike, same: ArrayLike) -> float:
    """Mean of (probability - same)^2, in [0, 1]; lower = better (Brier 1950). Arguments as for `reliability`."""
    p, r = _probabilities(probabilities, same)
    return float(((p - r) ** 2).mean())


@dataclass(frozen=True)
class Threshold:
    """A decision at a false-accept rate: the threshold, what is accepted there, and intervals by identity (or None)."""

    rate: float
    point: OperatingPoint
    threshold: Interval | None
    true_accept: Interval | None


def threshold_intervals(
    scores: ArrayLike,
    same: ArrayLike,
    identities: ArrayLike,
    rates: Sequence[float] = (0.1, 0.05, 0.01),
    *,
    samples: int = 1000,
    seed: int = 0,
) -> list[Threshold]:
    """Thresholds at false-accept rates; in each bootstrap sample the threshold is chosen anew.

    Args:
        scores, same: as for `fit`. identities: as for `held_out`.
        rates: in [0, 1]. samples, seed: of `bootstrap`; fewer than 2 samples = no intervals.

    Raises:
        ValueError: as `threshold_at_false_accept` and `bootstrap`.
    """
    s, r = _pairs(scores, same)
    found = []
    for rate in rates:
        intervals: list[Interval | None] = [None, None]
        if samples > 1:
            intervals = [
                bootstrap(lambda rows, w=what, f=rate: getattr(threshold_at_false_accept(s[rows], r[rows], f), w),  # type: ignore[misc]
                          identities, samples=samples, seed=seed)
                for what in ("threshold", "true_accept")
            ]  # fmt: skip
        found.append(Threshold(rate, threshold_at_false_accept(s, r, rate), *intervals))
    return found


def accepted(scores: ArrayLike, threshold: float) -> float:
    """Share of scores at or above a threshold: the false-accept rate of pairs of one kind of stranger."""
    s = np.asarray(scores, dtype=np.float64)
    if not s.size:
        raise ValueError("no scores: a share needs one at least")
    return float((s >= threshold).mean())


def _pairs(scores: ArrayLike, same: ArrayLike) -> tuple[Numbers, Truths]:
    s, r = labelled(scores, same, ("scores", "same"))
    operating_point(s, r, 0.0)  # refuses pairs of one kind alone
    return s, r


def _probabilities(probabilities: ArrayLike, same: ArrayLike) -> tuple[Array, Truths]:
    p, r = labelled(probabilities, same, ("probabilities", "same"))
    if ((p < 0) | (p > 1)).any():
        raise ValueError(f"probabilities must lie in [0, 1], found {p.min()} to {p.max()}")
    return p.astype(np.float64), r


def _binned(probabilities: ArrayLike, same: ArrayLike, bins: int) -> tuple[Array, Truths, NDArray[np.int64]]:
    p, r = _probabilities(probabilities, same)
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    return p, r, np.minimum((p * bins).astype(np.int64), bins - 1)


def _sklearn(module: str) -> Any:
    try:
        import importlib

        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise ImportError(f"fitting a calibration needs scikit-learn: {install('eval')}") from error
