"""Values of a table with intervals by identity.

From `bootstrap.FEW` identities on, they are percentiles of bootstrap samples: `mean`, `ratio` and `auc` are fast
(`idmetric.evaluate.statistics.resampled`); `any_statistic` calls any function of the items for each sample
(`bootstrap`). Both give the same numbers for the same statistic and seed. Intervals of fewer
identities are Student's (`bootstrap.student`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths
from idmetric.evaluate.protocols.common.result import Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.statistics.bootstrap import FEW, bootstrap, percentiles, student
from idmetric.evaluate.statistics.ranking import roc_auc
from idmetric.evaluate.statistics.resampled import resampled_auc, resampled_ratio

Names = NDArray[Any]  # one for each item, equal for equal identities


def codes(names: Sequence[Any] | NDArray[Any]) -> Ints:
    """A number (N,) for each name, equal for equal names; -1 for None."""
    number: dict[Any, int] = {}
    return np.array([-1 if n is None else number.setdefault(n, len(number)) for n in names], dtype=np.int64)


def owners(identity: Ints, rows: Ints) -> Ints:
    """The units that intervals draw for rows of any shape: identities, as `codes` numbers them.

    Each image of unknown identity is a separate unit.
    """
    found: Ints = np.where(identity[rows] < 0, -1 - rows, identity[rows])
    return found


def mean(values: Array, identity: Names, settings: EvalSettings, paper: float | None = None) -> Value:
    """The mean of one number per item, such as a query's average precision; `identity` (N,) is the items'."""
    return ratio(values, np.ones(len(values)), identity, settings, paper)


def ratio(
    parts: Array | Ints, wholes: Array | Ints, identity: Names, settings: EvalSettings, paper: float | None = None
) -> Value:
    """sum(parts) / sum(wholes), such as margins won over all margins; support is sum(wholes).

    The interval is None for fewer than two identities, or if settings ask for none.

    Raises:
        ValueError: if the wholes sum to 0.
    """
    value, total = _ratio(parts, wholes), float(wholes.sum())
    low, high = _interval(resampled_ratio, _ratio, (parts, wholes), identity, settings)
    counts_successes = np.isin(parts, np.arange(int(wholes.max()) + 1)).all() and (parts <= wholes).all()
    if low is not None and high is not None and counts_successes:
        low, high = max(0.0, low), min(1.0, high)  # a share, which Student's interval may leave
    return Value(value, low, high, round(total), paper)


def student_mean(values: Array, identity: Names, settings: EvalSettings) -> Value:
    """The mean of differences or slopes, with Student's interval for any number of identities.

    Whether it excludes 0 is a finding, which percentiles of 20 identities would give in 7 % of cases by chance.
    """
    low = high = None
    if _wanted(identity, settings):
        interval = student(lambda rows: values[rows].mean(), identity)
        low, high = interval.low, interval.high
    return Value(float(values.mean()), low, high, len(values))


def auc(
    scores: Array, same: Truths, identity: Names, settings: EvalSettings, paper: float | None = None
) -> dict[str, Value]:
    """ROC AUC over pairs, as a column of a row; empty if all or no pairs are of one identity.

    Args:
        identity: (P, 2), of both members.
    """
    if same.all() or not same.any():
        return {}
    low, high = _interval(resampled_auc, roc_auc, (scores, same), identity, settings)
    return {"AUC": Value(roc_auc(scores, same), low, high, len(scores), paper)}


def average(values: Sequence[Value], paper: float | None = None, *, independent: bool = True) -> Value:
    """The plain mean of several values.

    Its interval takes theirs as independent (half-widths in quadrature); values that share identities are not, and get
    no interval.
    """
    center = float(np.mean([v.value for v in values]))
    low = high = None
    if independent and all(v.low is not None and v.high is not None for v in values):
        below, above = (float(np.linalg.norm([getattr(v, end) - v.value for v in values])) for end in ("low", "high"))
        low, high = center - below / len(values), center + above / len(values)
    return Value(center, low, high, sum(v.count for v in values), paper)


def averages(rows: Sequence[Row]) -> dict[str, Value]:
    """The means over rows of each of their numbers, see `average`; such as a model's over independent data sets."""
    metrics = dict.fromkeys(k for row in rows for k, v in row.items() if isinstance(v, Value))
    return {metric: average([v for row in rows if isinstance(v := row.get(metric), Value)]) for metric in metrics}


def any_statistic(
    statistic: Callable[..., float], items: Sequence[NDArray[Any]], identity: Names, settings: EvalSettings,
    paper: float | None = None, *, count: int | None = None,
) -> Value:  # fmt: skip
    """Any statistic of columns of items, such as scores and labels; each sample calls it with some of their rows.

    The interval is None for too few identities, or if settings ask for none.

    Args:
        count: the support, default the number of items.

    Raises:
        ValueError: if the statistic is undefined on the data itself.
    """
    value, low, high = float(statistic(*items)), None, None
    if _wanted(identity, settings):
        with suppress(ValueError):
            interval = bootstrap(_on_rows(statistic, items), identity, samples=settings.bootstrap, seed=settings.seed)
            value, low, high = interval.value, interval.low, interval.high
    return Value(value, low, high, len(identity) if count is None else count, paper)


def _interval(
    resampled: Callable[..., Array], statistic: Callable[..., float], items: Sequence[NDArray[Any]], identity: Names,
    settings: EvalSettings,
) -> tuple[float | None, float | None]:  # fmt: skip
    """The interval of a statistic of which `resampled` makes bootstrap samples."""
    if not _wanted(identity, settings):
        return None, None
    if len(np.unique(identity)) >= FEW:
        values = resampled(*items, identity, samples=settings.bootstrap, seed=settings.seed)
        return percentiles(values, settings.bootstrap) or (None, None)
    try:
        interval = student(_on_rows(statistic, items), identity)
    except ValueError:  # undefined without one of them
        return None, None
    return interval.low, interval.high


def _on_rows(statistic: Callable[..., float], items: Sequence[NDArray[Any]]) -> Callable[[Ints], float]:
    """The statistic of some rows of its columns of items."""
    return lambda rows: statistic(*(column[rows] for column in items))


def _ratio(parts: Array | Ints, wholes: Array | Ints) -> float:
    total = float(wholes.sum())
    if total <= 0:
        raise ValueError("nothing to average")
    return float(parts.sum()) / total


def _wanted(identity: Names, settings: EvalSettings) -> bool:
    return settings.bootstrap > 1 and len(np.unique(identity)) > 1
