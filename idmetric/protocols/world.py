"""The procedural world's own bench, rendered here without downloads (SSR and PA by strength, part edits, sensitivity).

    idmetric eval world --model tiny --model hsv --out results/
    idmetric eval world --data my_world/ --model tiny --out results/      a world rendered by `idmetric data world`

Strength 1 is another object of the same kind and silhouette family; a lower strength changes the object itself. The
bench is rendered once into `OUT/world`, and read from there afterwards. No paper prints these numbers;
docs/protocols-world.md lists rows and columns, and has the scores of a few models.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common.columns import parameters
from idmetric.protocols.common.matched import Matched, margins_of, matched, part_edits, rates
from idmetric.protocols.common.rendered import rendered, world_in
from idmetric.protocols.common.result import Result
from idmetric.protocols.common.scorers import EvalSettings, Models, Progress, Scorer, bind
from idmetric.protocols.idsim_fig6_sensitivity import Cell, cells, grid_plan, measure
from idmetric.protocols.options import WorldOptions

ALL = "all"
OPTIONAL = ("data",)  # arguments that `idmetric eval` does not require


def command(args: argparse.Namespace, data: Manifest | None, models: Models, settings: EvalSettings) -> list[Result]:
    """Run on the world that is given, or on the bench."""
    if data is None:
        data = bench(world_in(args.out), args.options, settings.progress)
    return run(data, models, settings)


def bench(folder: Path, options: WorldOptions = WorldOptions(), progress: Progress | None = None) -> Manifest:
    """Render the bench into a folder, or read it from there; a stopped run resumes.

    Raises:
        ValueError: if the folder holds a world of other settings.
        ImportError: if VTK is missing.
    """
    from idmetric.data.world.write import WorldPlan

    margins = WorldPlan(options.world_seed, options.size, views=3, distractors=1, strengths=options.strengths, parts=1)
    plans = {"margins": (margins, options.identities)}
    if options.grids:
        plans["grids"] = grid_plan(options.world_seed + 1, options.size), options.grids
    return rendered(folder, plans, progress)


def run(data: Manifest, models: Models, settings: EvalSettings = EvalSettings()) -> list[Result]:
    """A result for each model: rows for distractors by strength, part edits, and sensitivity by factor.

    Args:
        data: a world, as `idmetric data world` writes it; its distractors, parts and grids determine the rows.

    Raises:
        ValueError: if it has none of them.
    """
    if not any(_samples(data)[:2]) and not _grid(data):
        raise ValueError(
            "no distractors, part edits or edit grids in this world: render it with --distractors, --parts or --grid"
        )

    bound = bind(data, models, settings)
    near, parts = _samples(bound.manifest)
    grid = _grid(bound.manifest)
    results = []

    for scorer, result in bound.results("world", settings.as_dict()):
        if len(near):
            _distractors(scorer, near, settings, result)
        if len(parts):
            found = rates(margins_of(scorer, parts, result.notes), parts.identity, settings)
            oracle, result.items["parts"] = part_edits(scorer, bound.manifest, parts, settings, result.notes)
            result.rows.append({"bench": "part edits", "which": ALL, **found, **oracle})
        if grid:
            own = replace(result, rows=[], items={})
            measure(scorer, grid, settings, own)
            result.rows.extend(row for row in own.rows if row["which"] != ALL)
            result.items["grid"] = own.items["grid"]
        results.append(result)

    return results


def _samples(data: Manifest) -> tuple[Matched, Matched]:
    """Views with their distractors, by strength, and views with their part edits, both without edit grids."""
    about = parameters(data)
    plain = np.array(["factor" not in a for a in about], dtype=bool)
    near = matched(data, ("distractor",), lambda row: f"{float(about[row].get('strength', 1)):.2f}", plain)
    return near, matched(data, ("part-edit",), lambda row: "part edits", plain).of_edited_views()


def _distractors(scorer: Scorer, near: Matched, settings: EvalSettings, result: Result) -> None:
    margins, rows = margins_of(scorer, near, result.notes), result.rows
    for strength in sorted(set(near.source), key=float, reverse=True):
        own = near.source == strength
        found = rates(margins[own], near.identity[own], settings)
        rows.append({"bench": "distractors", "which": f"strength {strength}", **found})

    if len(rows) > 1:
        rows.append({"bench": "distractors", "which": ALL, **rates(margins, near.identity, settings)})
    result.keep("margins", strength=near.source.astype(float), identity=near.identity,
                margins=[m[~np.isnan(m)].tolist() for m in margins])  # fmt: skip


def _grid(data: Manifest) -> list[Cell]:
    """The cells of all edit grids of a world."""
    return cells(data) if any("factor" in about for about in parameters(data)) else []
