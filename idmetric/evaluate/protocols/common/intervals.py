"""Values of a table with intervals by identity.

Of up to `bootstrap.FEW` identities they are Student's (`bootstrap.student`), of more percentiles of bootstrap samples.
They do not leave the range of their number, and there are none of fewer than `bootstrap.FEWEST` identities. `auc` is
fast for millions of pairs (`idmetric.evaluate.statistics.resampled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths
from idmetric.evaluate.protocols.common.result import Row, Value, numbers_of
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.statistics.bootstrap import FEW, FEWEST, bootstrap, in_samples, percentiles, student, within
from idmetric.evaluate.statistics.ranking import roc_auc
from idmetric.evaluate.statistics.resampled import resampled_auc

Names = NDArray[Any]  # one for each item, equal for equal identities
Range = tuple[float, float]

# the ranges of numbers
SHARE = (0.0, 1.0)
COSINE = (-1.0, 1.0)  # also of correlations
DISTANCE = (0.0, 2.0)
DIFFERENCE = (-2.0, 2.0)  # of two cosines or distances
POSITIVE = (0.0, math.inf)


def codes(names: Iterable[Any]) -> Ints:
    """A number (N,) for each name, equal for equal names; -1 for None."""
    numbers: dict[Any, int] = {None: -1}
    numbers_of_names = []
    for name in names:
        number = numbers.setdefault(name, len(numbers) - 1)
        numbers_of_names.append(number)
    return np.array(numbers_of_names, dtype=np.int64)


def owners(identity: Ints, rows: Ints) -> Ints:
    """The units that intervals draw for rows of any shape: identities, as `codes` numbers them.

    Each image of unknown identity is a separate unit.
    """
    identities = identity[rows]
    return np.where(identities < 0, -1 - rows, identities)


def mean(
    values: Array,
    identity: Names,
    settings: EvalSettings,
    paper: float | None = None,
    *,
    limits: Range = SHARE,
) -> Value:
    """The mean of one number per item, such as a query's average precision; `identity` (N,) is the items'."""
    wholes = np.ones(len(values))
    return ratio(values, wholes, identity, settings, paper, limits=limits)


def ratio(
    parts: Array | Ints,
    wholes: Array | Ints,
    identity: Names,
    settings: EvalSettings,
    paper: float | None = None,
    *,
    limits: Range = SHARE,
) -> Value:
    """sum(parts) / sum(wholes), such as margins won over all margins; support is sum(wholes).

    The interval is None for too few identities, or if settings ask for none.

    Args:
        limits: the range of the number, which the interval does not leave.

    Raises:
        ValueError: if the wholes sum to 0.
    """
    value = _ratio(parts, wholes)
    names, number = np.unique(identity, return_inverse=True)
    sums = np.bincount(number, parts), np.bincount(number, wholes)  # of each identity: samples need no more
    low, high = _interval(_ratio, sums, np.arange(len(names)), settings, limits)
    support = round(float(wholes.sum()))
    return Value(value, low, high, support, paper)


def student_mean(values: Array, identity: Names, settings: EvalSettings) -> Value:
    """The mean of differences or slopes, with Student's interval for three or more identities.

    Whether it excludes 0 is a finding, which percentiles of 20 identities would give in 7 % of cases by chance.
    """
    low = high = None
    if settings.bootstrap > 1 and len(np.unique(identity)) >= FEWEST:
        interval = student(lambda rows: values[rows].mean(), identity)
        low, high = interval.low, interval.high
    return Value(float(values.mean()), low, high, len(values))


def resampled_mean(values: Array, settings: EvalSettings) -> tuple[Value, Value] | None:
    """Mean and standard deviation of the mean of values (N,) over bootstrap samples (ID-Sim, supplement F).

    The interval of the mean reaches from the 2.5th to the 97.5th percentile of the samples, for any number of values.

    Returns:
        None for a single value, or if settings ask for no samples.
    """
    count = len(values)
    if settings.bootstrap < 2 or count < 2:
        return None
    means = in_samples(
        lambda rows: values[rows].mean(),
        np.arange(count),
        samples=settings.bootstrap,
        seed=settings.seed,
    )
    low, high = percentiles(means, settings.bootstrap) or (None, None)
    mean_of_means = Value(float(means.mean()), low, high, count)
    deviation = Value(float(means.std(ddof=1)), None, None, count)
    return mean_of_means, deviation


def auc(
    scores: Array,
    same: Truths,
    identity: Names,
    settings: EvalSettings,
    paper: float | None = None,
) -> dict[str, Value]:
    """ROC AUC over pairs, as a column of a row; empty if all or no pairs are of one identity.

    Args:
        identity: (P, 2), of both members.
    """
    if same.all() or not same.any():
        return {}
    area = roc_auc(scores, same)
    if settings.bootstrap > 1 and len(np.unique(identity)) > FEW:
        values = resampled_auc(scores, same, identity, samples=settings.bootstrap, seed=settings.seed)
        low, high = percentiles(values, settings.bootstrap) or (None, None)
    else:
        low, high = _interval(roc_auc, (scores, same), identity, settings, SHARE)
    return {"AUC": Value(area, low, high, len(scores), paper)}


def average(values: Sequence[Value], paper: float | None = None, *, independent: bool = True) -> Value:
    """The plain mean of several values.

    Its interval takes theirs as independent (half-widths in quadrature); values that share identities are not, and get
    no interval.
    """
    below, above = [], []
    for value in values:
        if value.low is not None and value.high is not None:
            below.append(value.value - value.low)
            above.append(value.high - value.value)

    number = len(values)
    center = float(np.mean([value.value for value in values]))
    count = sum(value.count for value in values)
    if not independent or len(below) < number:
        return Value(center, None, None, count, paper)
    low = center - float(np.linalg.norm(below)) / number
    high = center + float(np.linalg.norm(above)) / number
    return Value(center, low, high, count, paper)


def averages(rows: Sequence[Row]) -> dict[str, Value]:
    """The means over rows of each of their numbers, see `average`; such as a model's over independent data sets."""
    columns: dict[str, list[Value]] = {}
    for row in rows:
        for metric, value in numbers_of(row).items():
            columns.setdefault(metric, []).append(value)
    return {metric: average(values) for metric, values in columns.items()}


def any_statistic(
    statistic: Callable[..., float],
    items: Sequence[NDArray[Any]],
    identity: Names,
    settings: EvalSettings,
    paper: float | None = None,
    *,
    limits: Range,
    count: int | None = None,
) -> Value:
    """Any statistic of columns of items, such as scores and labels; each sample calls it with some of their rows.

    The interval is None for too few identities, or if settings ask for none.

    Args:
        limits: the range of the statistic, which the interval does not leave.
        count: the support, default the number of items.

    Raises:
        ValueError: if the statistic is undefined on the data itself.
    """
    value = float(statistic(*items))
    low, high = _interval(statistic, items, identity, settings, limits)
    if count is None:
        count = len(identity)
    return Value(value, low, high, count, paper)


def _interval(
    statistic: Callable[..., float],
    items: Sequence[NDArray[Any]],
    identity: Names,
    settings: EvalSettings,
    limits: Range,
) -> tuple[float | None, float | None]:
    """The interval of a statistic of columns of items, within its range."""
    if settings.bootstrap < 2 or len(np.unique(identity)) < FEWEST:
        return None, None

    def on_rows(rows: Ints) -> float:
        columns = [column[rows] for column in items]
        return statistic(*columns)

    try:
        interval = bootstrap(on_rows, identity, samples=settings.bootstrap, seed=settings.seed)
    except ValueError:  # undefined in too many samples, or without one of a few identities
        return None, None
    interval = within(interval, limits)
    return interval.low, interval.high


def _ratio(parts: Array | Ints, wholes: Array | Ints) -> float:
    total = float(wholes.sum())
    if total <= 0:
        raise ValueError("nothing to average")
    return float(parts.sum()) / total
