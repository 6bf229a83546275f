"""Selective sensitivity: how fast similarity falls with identity, and with context (ID-Sim, section 4.4, supplement F).

Each instance has a grid of edits of its anchor, by identity strength and one context factor (background, viewpoint or
light), and the similarity of each edit to the anchor. A good metric falls fast with identity and hardly with context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.bootstrap import Interval, student
from idmetric.evaluate.statistics.checks import paired
from idmetric.metric.files import need

Names = Sequence[Any] | NDArray[Any]
_FLAT = 1e-9  # a change that varies by no more than this share of its size is constant


@dataclass(frozen=True)
class Regression:
    """The regression of one instance.

    Attributes:
        identity, factor: sensitivities, negative slopes: similarity lost per unit of change.
        intercept: similarity without a change.
        r2: share of the similarities' variance that the line explains; 0 where they don't vary.
    """

    identity: float
    factor: float
    intercept: float
    r2: float


def fit(similarity: ArrayLike, identity_change: ArrayLike, factor_change: ArrayLike) -> Regression:
    """Least squares of sim = b0 + b1 factor_change + b2 identity_change over one instance's grid (supplement F).

    Args:
        similarity: (N,), of each edit to its anchor, N >= 3. identity_change, factor_change: (N,), any unit.

    Raises:
        ValueError: if a number is not finite, shapes differ, or a change is constant or varies with the other, which
            leaves their effects undefined.
    """
    need("eval", "a regression", sklearn="scikit-learn")
    from sklearn.linear_model import LinearRegression

    s, identity = paired(similarity, identity_change, ("similarity", "identity_change"))
    _, factor = paired(similarity, factor_change, ("similarity", "factor_change"))

    changes = np.stack([identity, factor], axis=1)
    centered = changes - changes.mean(0)
    lengths = np.linalg.norm(centered, axis=0)  # units differ
    sizes = np.abs(changes).max(0)
    is_constant = np.ptp(changes, axis=0) <= _FLAT * sizes
    if is_constant.any() or np.linalg.matrix_rank(centered / lengths, tol=_FLAT) < 2:
        raise ValueError("identity_change and factor_change must both vary, and not together: cross them in a grid")

    model = LinearRegression().fit(changes, s)
    identity_slope, factor_slope = model.coef_.tolist()
    r2 = 0.0
    if np.ptp(s) > 1e-12 * np.abs(s).max():  # less is rounding
        r2 = max(0.0, model.score(changes, s))
    return Regression(
        identity=-identity_slope,
        factor=-factor_slope,
        intercept=float(model.intercept_),
        r2=r2,
    )


def fits(
    similarity: ArrayLike,
    identity_change: ArrayLike,
    factor_change: ArrayLike,
    instance: Names,
) -> dict[Any, Regression]:
    """`fit` of each instance, in order of first appearance.

    A data set's sensitivity is the mean of these, with Student's interval over them. The paper fits again in bootstrap
    samples of instances; a coefficient depends on its own instance's grid alone, so drawing these fits is the same.

    Args:
        similarity, identity_change, factor_change: (N,), grids of all instances. instance: (N,), of each point.
    """
    columns = np.stack([similarity, identity_change, factor_change])
    names = np.asarray(instance, dtype=object)
    fit_of_instance = {}
    for name in dict.fromkeys(names):
        try:
            fit_of_instance[name] = fit(*columns[:, names == name])
        except ValueError as error:
            raise ValueError(f"instance {name!r}: {error}") from error
    return fit_of_instance


def trend(similarity: ArrayLike, change: ArrayLike, instance: Names) -> dict[float, Interval]:
    """Mean similarity at each level of a change, over instances: a curve of Fig. 6's bottom row.

    Points of one instance at one level are averaged first. Levels of a single instance, such as the angles of one
    video, have no interval and are left out. For a curve of one factor give the points without a change of the other.

    Args:
        similarity, change: (N,). instance: (N,).

    Returns:
        Level -> mean with interval, levels rising.
    """
    s, x = paired(similarity, change, ("similarity", "change"))
    names = np.asarray(instance, dtype=object)
    curve = {}
    for level in np.unique(x):
        at_level = x == level
        means = []
        for name in dict.fromkeys(names[at_level]):
            points = s[at_level & (names == name)]
            means.append(points.mean())
        if len(means) > 1:
            curve[float(level)] = _mean(np.array(means))
    return curve


def _mean(values: NDArray[np.float64]) -> Interval:
    items = np.arange(len(values))
    return student(lambda rows: values[rows].mean(), items)
