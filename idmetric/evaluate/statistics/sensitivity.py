"""Selective sensitivity: how fast similarity falls with identity, and with context (ID-Sim, section 4.4, supplement F).

Each instance has a grid of edits of its anchor, by identity strength and one context factor (background, viewpoint or
light), and the similarity of each edit to the anchor. A good metric falls fast with identity and hardly with context.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.bootstrap import Interval, student
from idmetric.metric.distance.ties import numbers, paired

Array = NDArray[np.float64]
Name = TypeVar("Name", bound=Hashable)
_FLAT = 1e-9  # a change that varies by no more than this share of its size is constant


@dataclass(frozen=True)
class Fit:
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


def fit(similarity: ArrayLike, identity_change: ArrayLike, factor_change: ArrayLike) -> Fit:
    """Least squares of sim = b0 + b1 factor_change + b2 identity_change over one instance's grid (supplement F).

    Args:
        similarity: (N,), of each edit to its anchor, N >= 3. identity_change, factor_change: (N,), any unit.

    Raises:
        ValueError: if a number is not finite, shapes differ, there are fewer points than coefficients (3), or a change
            is constant or varies with the other, which leaves their effects undefined.
    """
    s, identity, factor = _grid(similarity, identity_change, factor_change)
    if len(s) < 3:
        raise ValueError(f"needs three points for its three coefficients, got {len(s)}")
    changes = np.stack([identity, factor], 1)
    x = changes - changes.mean(0)
    size = np.sqrt((x**2).sum(0))
    constant = np.ptp(changes, axis=0) <= _FLAT * np.abs(changes).max(0)
    slopes, _, rank, _ = np.linalg.lstsq(x / np.where(constant, 1, size), s - s.mean(), rcond=_FLAT)
    if constant.any() or rank < 2:
        raise ValueError("identity_change and factor_change must both vary, and not together: cross them in a grid")

    slopes = slopes / size
    left = float(((s - s.mean() - x @ slopes) ** 2).sum())
    whole = float(((s - s.mean()) ** 2).sum())
    flat = np.ptp(s) <= 1e-12 * np.abs(s).max()
    intercept = float(s.mean() - changes.mean(0) @ slopes)
    return Fit(-float(slopes[0]), -float(slopes[1]), intercept, 0.0 if flat else max(0.0, 1 - left / whole))


def fits(
    similarity: ArrayLike,
    identity_change: ArrayLike,
    factor_change: ArrayLike,
    instance: Sequence[Name] | NDArray[Any],
) -> dict[Name, Fit]:
    """`fit` of each instance, in order of first appearance.

    A data set's sensitivity is the mean of these, with Student's interval over them. The paper fits again in bootstrap
    samples of instances; a coefficient depends on its own instance's grid alone, so the mean is the same.

    Args:
        similarity, identity_change, factor_change: (N,), grids of all instances. instance: (N,), of each point.
    """
    s, identity, factor = _grid(similarity, identity_change, factor_change)
    found: dict[Name, Fit] = {}
    for name, rows in _instances(instance, len(s)).items():
        try:
            found[name] = fit(s[rows], identity[rows], factor[rows])
        except ValueError as error:
            raise ValueError(f"instance {name!r}: {error}") from error
    return found


def trend(
    similarity: ArrayLike,
    change: ArrayLike,
    instance: Sequence[Hashable] | NDArray[Any],
) -> dict[float, Interval]:
    """Mean similarity at each level of a change, over instances: a curve of Fig. 6's bottom row.

    Points of one instance at one level are averaged first. Levels of a single instance, such as the angles of one
    video, have no interval and are left out. For a curve of one factor give the points without a change of the other.

    Args:
        similarity, change: (N,). instance: (N,).

    Returns:
        Level -> mean with interval, levels rising.
    """
    s, x = paired(similarity, change, ("similarity", "change"))
    members = _instances(instance, len(s))
    found = {}

    for step in np.unique(x):
        at = [s[rows][x[rows] == step] for rows in members.values()]
        means = np.array([values.mean() for values in at if len(values)])
        if len(means) > 1:
            found[float(step)] = student(
                lambda rows, means=means: means[rows].mean(),  # type: ignore[misc]  # mypy infers no default's type
                np.arange(len(means)),
            )
    return found


def _grid(similarity: ArrayLike, identity_change: ArrayLike, factor_change: ArrayLike) -> tuple[Array, Array, Array]:
    names = ("similarity", "identity_change", "factor_change")
    values = (similarity, identity_change, factor_change)
    s, i, f = (numbers(name, x).astype(np.float64) for name, x in zip(names, values, strict=True))
    if not s.shape == i.shape == f.shape:
        raise ValueError(f"{', '.join(names)} must be of one shape (N,), got {s.shape}, {i.shape} and {f.shape}")
    return s, i, f


def _instances(instance: Sequence[Name] | NDArray[Any], count: int) -> dict[Name, NDArray[np.int64]]:
    """Points of each instance, in order of first appearance."""
    names: list[Name] = instance.tolist() if isinstance(instance, np.ndarray) else list(instance)
    places: dict[Name, list[int]] = {}
    for place, name in zip(range(count), names, strict=True):
        places.setdefault(name, []).append(place)
    return {name: np.array(rows, dtype=np.int64) for name, rows in places.items()}
