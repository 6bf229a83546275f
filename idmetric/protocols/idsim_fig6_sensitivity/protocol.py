"""Selective sensitivity: how fast similarity falls with identity, and with context (ID-Sim, 4.4, F, Fig. 6).

    idmetric eval sensitivity --model tiny --model hsv --out results/ --plots svg               rendered grids
    idmetric eval sensitivity --data grid.csv --model dinov3_vitl16 --rescale --out results/    your own edits

An instance has an anchor image and a grid of edits of it, by identity strength and one context factor. Over each
instance's grid

    similarity to the anchor = b0 + b1 factor change + b2 identity change

is fitted by least squares; sensitivities are the negative slopes, similarity lost per unit of change. Instances are
averaged; 1,000 bootstrap samples (`--bootstrap`) draw instances. A selective metric has a high identity, a low context.

| column | meaning |
|---|---|
| identity | sensitivity to identity, over the grids of the factor; "all": the mean over factors of each instance's |
| context | sensitivity to the factor |
| R^2 | share of the similarities' variance that the plane explains, mean over instances |

The paper has 100 objects of MVImgNet with seven identity strengths (0.4 to 1) x 11 backgrounds, viewpoints or 8 lights.
It prints no numbers (Fig. 6 is bars); in words: ID-Sim is the most sensitive to identity and little to context; CLIP,
OpenCLIP and LPIPS are the least sensitive to identity; DINOv3 is a little less sensitive to light than ID-Sim.

Without --data the procedural world's grids are rendered, of 100 objects (`--identities`): six identity strengths x five
levels of background, viewpoint and light, all in 0..1. They lie in `OUT/world/grids`, which the protocol `world`
shares; it takes the first 30.

Your own grid is a manifest with a row for each image (docs/protocols-sensitivity.md): `group` is the instance, slot
`anchor` the unchanged image, slot `candidate` an edit; `x_factor`, `x_factor_change` and `x_identity_change` (or these
names without x_ in `parameters`) name the change and its size. Rows of factor "none" have no change of context and
count for every factor. The anchor is a point of the grid too, without a change: the fit takes "all points in the joint
edit grid" (F), but it is unclear whether the paper's grids contain theirs. `--no-anchor` leaves it out.

Units are those of the columns, which the paper leaves open: `--rescale` divides each change by its largest, which makes
slopes of factors in different units (degrees, strengths) comparable.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.bootstrap import Interval, bootstrap
from idmetric.evaluate.sensitivity import Fit, fits
from idmetric.protocols.common.arrays import Array
from idmetric.protocols.common.rendered import rendered
from idmetric.protocols.common.result import Items, Result, Row, Value
from idmetric.protocols.common.scorers import Models, Progress, Scorer, Settings, bind
from idmetric.protocols.idsim_fig6_sensitivity.grid import NONE, Cell, cells, rescaled

if TYPE_CHECKING:
    from idmetric.data.world.write import Plan

ALL = "all"
OPTIONAL = ("data",)  # arguments that `idmetric eval` does not require
_NAMES = {"identity": "identity", "factor": "context", "r2": "R^2"}  # of a `Fit`, in the table


@dataclass(frozen=True)
class Options:
    """Options of this protocol in addition to `scorers.Settings`.

    Attributes:
        rescale: divide identity changes, and each factor's changes, by their largest.
        anchor: whether the anchor, compared with itself, is a point of its grid.
        identities, seed, size: of the world's grids that are rendered where no data is given.
    """

    rescale: bool = False
    anchor: bool = True
    identities: int = 100
    seed: int = 1001
    size: int = 224

    def __post_init__(self) -> None:
        if self.identities < 2:
            raise ValueError(f"at least two identities are needed, got {self.identities}")


_SETTINGS, _OPTIONS = Settings(), Options()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `idmetric eval sensitivity`."""
    given = Options()
    parser.add_argument("--rescale", action="store_true", help="divide each kind of change by its largest")
    parser.add_argument("--no-anchor", action="store_true", help="leave the anchor itself out of its grid")
    text = "objects to render grids of if there is no --data (default %(default)s, as in the paper)"
    parser.add_argument("--identities", type=int, default=given.identities, help=text)
    parser.add_argument("--world-seed", type=int, default=given.seed, help="of the world (default %(default)s)")
    parser.add_argument("--size", type=int, default=given.size, help="of its pictures (default %(default)s)")


def command(args: argparse.Namespace, data: Manifest | None, models: Models, settings: Settings) -> list[Result]:
    """Run with the options of the command line."""
    options = Options(args.rescale, not args.no_anchor, args.identities, args.world_seed, args.size)
    if data is None:
        if args.out is None:
            raise ValueError("--out DIR is needed: grids are rendered there (or give your own: --data GRID)")
        data = grids(args.out / "world", options, settings.progress)
    return run(data, models, settings, options)


def grids(folder: Path, options: Options = _OPTIONS, progress: Progress | None = None) -> Manifest:
    """The world's grids, rendered into `folder`/grids or read from there, see `rendered.rendered`."""
    plan = grid_plan(options.seed, options.size)
    return rendered(folder, {"grids": (plan, options.identities)}, progress)


def grid_plan(seed: int, size: int) -> Plan:
    """A world of edit grids over all factors, without distractors or part edits."""
    from idmetric.data.world.structures import FACTORS
    from idmetric.data.world.write import Plan

    return Plan(seed, size, views=1, distractors=0, strengths=(), grids=FACTORS)


def run(data: Manifest, models: Models, settings: Settings = _SETTINGS, options: Options = _OPTIONS) -> list[Result]:
    """A result for each model: a row for each factor, and the mean over factors.

    Raises:
        ValueError: naming a row without changes, or an instance with a degenerate grid.
        UnreadableError: see `scorers.bind`.
    """
    grid = cells(data)
    _factors(grid)  # before anything is embedded
    bound = bind(data.take(np.unique([row for cell in grid for row in (cell.row, cell.anchor)])), models, settings)
    grid = [cell for cell in cells(bound.manifest) if options.anchor or cell.row != cell.anchor]
    grid = rescaled(grid) if options.rescale else grid
    about = {**settings.as_dict(), "rescale": options.rescale, "anchor": options.anchor}
    results = []

    for name, scorer in bound.models.items():
        scores, own, notes = answered(scorer, grid)
        rows, items = measured(scores, own, settings)
        results.append(Result("sensitivity", name, rows, scorer.signature(), about, items, [*bound.notes, *notes]))

    return results


# Numbers


def _factors(grid: Sequence[Cell]) -> list[str]:
    found = list(dict.fromkeys(cell.factor for cell in grid if cell.factor != NONE))
    if not found:
        raise ValueError(f"no context factor: all rows are {NONE!r}; a sensitivity to context needs changes of one")
    return found


def factor_fits(scores: Array, grid: Sequence[Cell], factor: str) -> dict[str, Fit]:
    """Instance -> the regression over its grid of one factor, pictures without a change of context among it.

    Raises:
        ValueError: naming the instance with a degenerate grid.
    """
    able = {cell.instance for cell in grid if cell.factor == factor}
    own = [k for k, cell in enumerate(grid) if cell.instance in able and cell.factor in (factor, NONE)]
    identity, context, instance = (
        [getattr(grid[k], name) for k in own] for name in ("identity_change", "factor_change", "instance")
    )
    try:
        return fits(scores[own], identity, context, instance)
    except ValueError as error:
        raise ValueError(f"factor {factor!r}: {error}") from error


def answered(scorer: Scorer, grid: Sequence[Cell]) -> tuple[Array, list[Cell], list[str]]:
    """Scores of cells to their anchors, the cells that have one (a judge may have no answer), and a note on others."""
    scores = scorer.pairs([c.row for c in grid], [c.anchor for c in grid])
    there = np.isfinite(scores)
    notes = [f"{int((~there).sum())} of {len(scores)} comparisons of edit grids have no answer and are left out"]
    return scores[there], [c for c, known in zip(grid, there, strict=True) if known], [] if there.all() else notes


def measured(scores: Array, grid: Sequence[Cell], settings: Settings) -> tuple[list[Row], Items]:
    """A row for each factor and one for all, and the items behind them: cells with their scores, fits, samples.

    Args:
        scores: (N,), of each cell to its anchor, finite (see `answered`).

    Raises:
        ValueError: if there is no factor, or an instance has a degenerate grid; the message names it.
    """
    rows: list[Row] = []
    items: Items = {"grid": _columns(grid, scores)}
    slopes: dict[str, list[float]] = {}

    for factor in _factors(grid):
        found = factor_fits(scores, grid, factor)
        row: Row = {"bench": "sensitivity", "which": factor}
        for attribute, name in _NAMES.items():
            values = np.array([getattr(one, attribute) for one in found.values()])
            row[name] = _mean(values, settings, items, factor, name)
        rows.append(row)
        for instance, one in found.items():
            slopes.setdefault(instance, []).append(one.identity)
            _add(items, "fits", instance=instance, factor=factor, identity=one.identity, context=one.factor,
                 intercept=one.intercept, r2=one.r2)  # fmt: skip

    if len(rows) > 1:
        means = np.array([np.mean(own) for own in slopes.values()])
        value = _mean(means, settings, items, ALL, "identity")
        rows.append({"bench": "sensitivity", "which": ALL, "identity": value})

    return rows, items


def _mean(values: Array, settings: Settings, items: Items, factor: str, name: str) -> Value:
    """The mean over instances; the bootstrap statistics of supplement F go to the items."""
    count, center = len(values), float(values.mean())
    if settings.bootstrap < 2 or count < 2:
        return Value(center, None, None, count)
    found: Interval = bootstrap(
        lambda rows: float(values[rows].mean()), np.arange(count), samples=settings.bootstrap, seed=settings.seed
    )
    _add(items, "bootstrap", factor=factor, which=name, value=found.value, mean=found.mean, deviation=found.deviation,
         low=found.low, high=found.high, samples=found.samples)  # fmt: skip
    return Value(found.value, found.low, found.high, count)


def _columns(grid: Sequence[Cell], scores: Array) -> dict[str, list[Any]]:
    names = ("instance", "factor", "factor_change", "identity_change")
    return {name: [getattr(cell, name) for cell in grid] for name in names} | {"score": scores.tolist()}


def _add(items: Items, table: str, **values: Any) -> None:
    for column, value in values.items():
        items.setdefault(table, {}).setdefault(column, []).append(value)
