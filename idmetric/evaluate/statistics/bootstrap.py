"""Confidence intervals: how much a number depends on which identities happened to be in the data.

Images of one identity are not independent, so whole identities are drawn, not images, pairs or queries (the cluster
bootstrap; ID-Sim, supplement F, "resampling over object identities").

`bootstrap` takes any statistic, and calls it for every sample. Of ROC AUC `resampled` gives the same samples faster;
`percentiles` makes an interval of them. Percentiles of samples of few identities are too narrow: of normal numbers,
they miss the mean in 27 % of cases with 3 identities, in 10 % with 10 and in 7 % with 20, instead of 5 %. Up to `FEW`
identities `student` replaces them. Protocols go through `protocols.common.intervals`, which chooses between them and
makes a table's values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.files import need

Rows = NDArray[np.int64]
FEW = 20  # identities, up to which intervals are Student's
FEWEST = 3  # identities, below which an interval is wider than the range of most numbers: of two, t is 12.7
_DEFINED = 0.9  # share of the samples in which a statistic must be defined


@dataclass(frozen=True)
class Interval:
    """A statistic on the data as it is, with its 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap(
    statistic: Callable[[Rows], float],
    groups: ArrayLike,
    *,
    samples: int = 1000,
    seed: int = 0,
) -> Interval:
    """95 % percentile interval of a statistic, by identity; of up to `FEW` identities that of `student`.

        bootstrap(lambda rows: precisions[rows].mean(), identity_of_query)
        bootstrap(lambda rows: roc_auc(scores[rows], same[rows]), identities_of_pair)  # (N, 2)
        bootstrap(lambda rows: a[rows].mean() - b[rows].mean(), identity)  # two models on the same samples

    Args:
        statistic: called with item numbers (with repetitions). A ValueError means that it is undefined for the sample
            (all pairs of one class), which is then left out.
        groups: (N,), the identity of each item, or (N, 2), of the two members of each pair. Any type that sorts.
        samples, seed: as in `in_samples`.

    Raises:
        ValueError: if there are fewer than two identities, or the statistic is undefined on the data or in more than a
            tenth of the samples.
    """
    value, _, identities = _on_the_data(statistic, groups)
    if identities <= FEW:
        return student(statistic, groups)

    values = in_samples(statistic, groups, samples=samples, seed=seed)
    ends = percentiles(values, samples)
    if ends is None:
        raise ValueError(
            f"the statistic is defined in {np.isfinite(values).sum()} of {samples} bootstrap samples of {identities} "
            "identities: too few identities for an interval"
        )
    return Interval(value, *ends)


def in_samples(
    statistic: Callable[[Rows], float],
    groups: ArrayLike,
    *,
    samples: int = 1000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """A statistic in each bootstrap sample (S,), NaN where it is undefined.

    Each sample draws as many identities as there are, with replacement. An item of an identity drawn twice is in it
    twice. A pair of identities drawn m and n times is in it m * n times; a pair of two images of one identity m times,
    since two draws of one identity stand for two identities.

    Args:
        statistic, groups: as in `bootstrap`.
        samples: number of samples, the paper's 1,000 by default.
        seed: sample number k depends on (seed, k) alone.
    """
    number, identities = _numbered(groups)
    values = []
    for sample in range(samples):
        times = _weights(number, draw(identities, seed, sample))
        rows = np.repeat(np.arange(len(times)), times)
        values.append(_defined(statistic, rows))
    return np.array(values)


def student(statistic: Callable[[Rows], float], groups: ArrayLike) -> Interval:
    """95 % interval of a statistic by Student's t and the jackknife over identities, right for few of them.

    value +- t(0.975, n - 1) s, s^2 = (n - 1) / n sum (v_i - mean v)^2, v_i the statistic without identity i. For a mean
    of one number per identity it is the t interval.

    Args:
        statistic, groups: as in `bootstrap`.

    Raises:
        ValueError: if there are fewer than two identities, or the statistic is undefined without one of them.
    """
    need("eval", "an interval", scipy="SciPy")
    from scipy.special import stdtrit

    value, number, identities = _on_the_data(statistic, groups)
    members = number.reshape(len(number), -1)  # of an item: one identity, or the two of a pair
    values = []
    for identity in range(identities):
        rows = np.flatnonzero((members != identity).all(1))
        values.append(_defined(statistic, rows))
    if np.isnan(values).any():
        raise ValueError(
            f"the statistic is undefined without one of the {identities} identities: too few identities for an interval"
        )

    spread = np.sqrt((identities - 1) * np.var(values))
    half = float(stdtrit(identities - 1, 0.975) * spread)
    return Interval(value, value - half, value + half)


def within(interval: Interval, limits: tuple[float, float]) -> Interval:
    """The interval without the part that lies outside the range of its number, which Student's may leave."""
    least, most = limits
    low = max(interval.low, min(least, interval.value))  # rounding may move a number out of its range
    high = min(interval.high, max(most, interval.value))
    return Interval(interval.value, low, high)


def _on_the_data(statistic: Callable[[Rows], float], groups: ArrayLike) -> tuple[float, Rows, int]:
    """The statistic on the data as it is, and what `_numbered` returns."""
    number, identities = _numbered(groups)
    if identities < 2:
        raise ValueError(f"an interval by identity needs two identities at least, got {identities}")

    value = float(statistic(np.arange(len(number))))
    return value, number, identities


def _numbered(groups: ArrayLike) -> tuple[Rows, int]:
    """The number of each item's identity (N,), or of both of a pair (N, 2), and how many identities there are."""
    names, number = np.unique(groups, return_inverse=True)
    return number.reshape(np.shape(groups)), len(names)


def percentiles(values: ArrayLike, samples: int) -> tuple[float, float] | None:
    """The 95 % interval of a statistic's values in bootstrap samples; None if too few are defined.

    Args:
        values: NaN for undefined ones.
        samples: number of samples; at least nine tenths of them, and two, must be defined.
    """
    defined = np.asarray(values, dtype=np.float64)
    defined = defined[np.isfinite(defined)]
    if len(defined) < max(2, _DEFINED * samples):
        return None
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)


def draw(count: int, seed: int, sample: int) -> Rows:
    """Draw identities with replacement; returns how often each is drawn in a sample: (count,), the sum is count."""
    rng = np.random.default_rng((seed, sample))
    chosen = rng.integers(count, size=count)
    return np.bincount(chosen, minlength=count)


def _weights(number: Rows, times: Rows) -> Rows:
    """How often each item (N,) is in a sample, see `bootstrap`.

    Args:
        number: the number of each item's identity (N,), or of both of a pair (N, 2).
        times: how often each identity is drawn.
    """
    if number.ndim == 1:
        return times[number]
    a, b = number.T
    weights: Rows = times[a] * times[b]
    is_within = a == b
    weights[is_within] = times[a[is_within]]
    return weights


def _defined(statistic: Callable[[Rows], float], rows: Rows) -> float:
    """The statistic of some rows; NaN where it is undefined."""
    if not len(rows):
        return np.nan
    try:
        value = float(statistic(rows))
    except ValueError:
        return np.nan
    if not np.isfinite(value):
        return np.nan
    return value
