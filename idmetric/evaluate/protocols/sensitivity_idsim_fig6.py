"""Selective sensitivity: how fast similarity falls with identity, and with context (ID-Sim, 4.4, F, Fig. 6).

    idmetric eval sensitivity --data grid.csv --model dinov3_vitl16 --rescale --out results/ --plots svg

An instance has an anchor image and a grid of edits of it, by identity strength and one context factor. Over each
instance's grid

    similarity to the anchor = b0 + b1 factor change + b2 identity change

is fitted by least squares; sensitivities are the negative slopes, similarity lost per unit of change. Instances are
averaged, with Student's interval over them. The paper's own uncertainty (supplement F) stands next to it: mean,
standard deviation and 2.5th to 97.5th percentile of the means of 1,000 bootstrap samples of the instances. A selective
metric has a high identity, a low context. In the row "all", identity is the mean over factors of each instance's.

The paper has 100 objects of MVImgNet with seven identity strengths (0.4 to 1) x 11 backgrounds, viewpoints or 8 lights,
and prints bars alone.

A grid is a manifest with a row for each image (docs/protocols/sensitivity.md). The anchor is a point of the grid
too, without a change: the fit takes "all points in the joint edit grid" (F), but it is unclear whether the paper's
grids contain theirs. Units are those of the columns, which the paper leaves open: `--rescale` makes slopes of factors
in different units (degrees, strengths) comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, groups, own, parameters
from idmetric.evaluate.protocols.common.intervals import resampled_mean, student_mean
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, answered, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.sensitivity import Regression, fits

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class SensitivityOptions(Checked):
    """Options of the protocol `sensitivity`."""

    rescale: bool = option(False, "divide identity changes, and each factor's changes, by their largest")


COLUMNS = {
    "identity": Column("similarity lost per unit of a change of identity", 1, "ID-Sim, 4.4"),
    "context": Column("similarity lost per unit of a change of context; nearer to 0 is better", 0, "ID-Sim, 4.4"),
    "R^2": Column("share of the variance that the fit explains", 0),
    "identity resampled": Column("mean and percentiles of identity over bootstrap samples of objects", 1, "ID-Sim, F"),
    "identity SD": Column("standard deviation of identity over bootstrap samples of objects", 0, "ID-Sim, F"),
    "context resampled": Column("mean and percentiles of context over bootstrap samples of objects", 0, "ID-Sim, F"),
    "context SD": Column("standard deviation of context over bootstrap samples of objects", 0, "ID-Sim, F"),
}

ALL = "all"
NONE = "none"  # the factor of pictures without a change of context
_COLUMNS = ("factor", "factor_change", "identity_change")
_NAMES = {"identity": "identity", "factor": "context", "r2": "R^2"}  # of a `Regression`, in the table


@dataclass(frozen=True)
class Cell:
    """A picture of an edit grid: its row, its anchor's row, its instance, and its changes."""

    row: int
    anchor: int
    instance: str
    factor: str
    factor_change: float
    identity_change: float


def cells(data: DataFrame) -> list[Cell]:
    """The cells of all edit grids of a manifest, in its order; the anchors have no change.

    Raises:
        ValueError: if there are no grids, a row lacks its changes, or an instance does not have exactly one anchor.
    """
    changes = _changes(data)
    grid: list[Cell] = []
    for (group, split), slots in groups(data).items():
        anchors = slots.get("anchor", [])
        edits = [row for row in slots.get("candidate", []) if changes[row]]
        if not edits:
            continue
        if len(anchors) != 1:
            row = anchors[1] if anchors else edits[0]
            raise ValueError(
                f"row {row + 1}: its instance (group {group!r}) has {len(anchors)} anchors: one picture is unchanged "
                "(slot anchor)"
            )
        instance = group if split is None else f"{split}/{group}"
        grid.append(Cell(anchors[0], anchors[0], instance, NONE, 0.0, 0.0))
        for row in edits:
            change = changes[row]
            if "factor" not in change:
                raise ValueError(
                    f"row {row + 1}: no factor: say which context was changed, or {NONE!r} (column factor)"
                )
            cell = Cell(
                row=row,
                anchor=anchors[0],
                instance=instance,
                factor=str(change["factor"]),
                factor_change=_number(change.get("factor_change"), "factor_change", row),
                identity_change=_number(change.get("identity_change"), "identity_change", row),
            )
            grid.append(cell)

    if not grid:
        raise ValueError(
            "no edit grids: rows with slot candidate and factor, factor_change, identity_change, in the group of an "
            "anchor"
        )
    return sorted(grid, key=lambda cell: cell.row)


def _changes(data: DataFrame) -> list[dict[str, Any]]:
    """The factor and the changes of each row, of its columns or else its parameters; without the absent ones."""
    changes: list[dict[str, Any]] = []
    for values in parameters(data):
        changes.append({name: values[name] for name in _COLUMNS if values.get(name) is not None})
    for name in _COLUMNS:
        for row, value in enumerate(own(data, name, f"x_{name}")):
            if value not in (None, ""):
                changes[row][name] = value
    return changes


def rescaled(grid: Sequence[Cell]) -> list[Cell]:
    """Identity changes, and each factor's changes, over their largest."""
    identity = max(abs(cell.identity_change) for cell in grid) or 1.0
    largest: dict[str, float] = {}
    for cell in grid:
        largest[cell.factor] = max(largest.get(cell.factor, 0.0), abs(cell.factor_change))
    rescaled_grid = []
    for cell in grid:
        factor_change = cell.factor_change / (largest[cell.factor] or 1.0)
        rescaled_grid.append(
            replace(cell, identity_change=cell.identity_change / identity, factor_change=factor_change)
        )
    return rescaled_grid


def _number(value: Any, name: str, row: int) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise ValueError(f"row {row + 1}: {name} is {value!r}: a number says how much was changed, 0 = not at all")
    return number


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: SensitivityOptions = SensitivityOptions(),
) -> list[Result]:
    """A result for each model: a row for each factor, and the mean over factors.

    Raises:
        ValueError: naming a row without changes, or an instance with a degenerate grid.
    """
    from idmetric.data.manifest import take  # loads pandas, which the help does without

    grid = cells(data)
    _factors(grid)  # before anything is embedded
    used_rows = np.unique([(cell.row, cell.anchor) for cell in grid])
    bound = bind(take(data, used_rows), models, settings)
    grid = cells(bound.manifest)
    if options.rescale:
        grid = rescaled(grid)
    about = {**settings.as_dict(), "rescale": options.rescale}
    results = []
    for scorer, result in bound.results("sensitivity", about):
        measure(scorer, grid, settings, result)
        results.append(result)
    return results


def _factors(grid: Sequence[Cell]) -> list[str]:
    factors = list(dict.fromkeys(cell.factor for cell in grid if cell.factor != NONE))
    if not factors:
        raise ValueError(f"no context factor: all rows are {NONE!r}; a sensitivity to context needs changes of one")
    return factors


def factor_fits(scores: Array, grid: Sequence[Cell], factor: str) -> dict[str, Regression]:
    """Instance -> the regression over its grid of one factor, pictures without a change of context among it.

    Raises:
        ValueError: naming the instance with a degenerate grid.
    """
    instances = {cell.instance for cell in grid if cell.factor == factor}
    numbers = []
    for number, cell in enumerate(grid):
        if cell.instance in instances and cell.factor in (factor, NONE):
            numbers.append(number)
    used = [grid[number] for number in numbers]
    try:
        return fits(
            scores[numbers],
            [cell.identity_change for cell in used],
            [cell.factor_change for cell in used],
            [cell.instance for cell in used],
        )
    except ValueError as error:
        raise ValueError(f"factor {factor!r}: {error}") from error


def measure(scorer: Scorer, grid: Sequence[Cell], settings: EvalSettings, result: Result) -> None:
    """Add a row for each factor and one for all, and the items behind them: cells with their scores, and fits.

    Cells without a score (a judge may have no answer) are left out, with a note.

    Raises:
        ValueError: if there is no factor, or an instance has a degenerate grid; the message names it.
    """
    rows = [cell.row for cell in grid]
    anchors = [cell.anchor for cell in grid]
    scores = scorer.pairs(rows, anchors)
    has_score = answered(scores, "edit grids", result.notes)
    grid = [grid[number] for number in np.flatnonzero(has_score).tolist()]
    scores = scores[has_score]
    result.keep(
        "grid",
        instance=[cell.instance for cell in grid],
        factor=[cell.factor for cell in grid],
        factor_change=[cell.factor_change for cell in grid],
        identity_change=[cell.identity_change for cell in grid],
        score=scores,
    )

    identity_slopes: dict[str, list[float]] = {}
    for factor in _factors(grid):
        fit_of = factor_fits(scores, grid, factor)
        row: Row = {"bench": "sensitivity", "which": factor}
        for attribute, name in _NAMES.items():
            values = [getattr(fit, attribute) for fit in fit_of.values()]
            row[name] = _mean(values, settings)
        for attribute in ("identity", "factor"):
            slopes = np.array([getattr(fit, attribute) for fit in fit_of.values()])
            row |= _resampled(_NAMES[attribute], slopes, settings)
        result.rows.append(row)
        for instance, fit in fit_of.items():
            identity_slopes.setdefault(instance, []).append(fit.identity)
            result.keep(
                "fits",
                instance=[instance],
                factor=[factor],
                identity=[fit.identity],
                context=[fit.factor],
                intercept=[fit.intercept],
                r2=[fit.r2],
            )

    if len(result.rows) > 1:
        means = [float(np.mean(slopes)) for slopes in identity_slopes.values()]
        row = {"bench": "sensitivity", "which": ALL, "identity": _mean(means, settings)}
        row |= _resampled("identity", np.array(means), settings)
        result.rows.append(row)


def _mean(values: Sequence[float], settings: EvalSettings) -> Value:
    """The mean over instances."""
    return student_mean(np.array(values), np.arange(len(values)), settings)


def _resampled(name: str, values: Array, settings: EvalSettings) -> Row:
    """The columns of the paper's own uncertainty of a sensitivity; none without bootstrap samples."""
    values_of_samples = resampled_mean(values, settings)
    if values_of_samples is None:
        return {}
    mean, deviation = values_of_samples
    return {f"{name} resampled": mean, f"{name} SD": deviation}


PROTOCOL = Protocol(
    name="sensitivity",
    run=run,
    options=SensitivityOptions,
    columns=COLUMNS,
)
