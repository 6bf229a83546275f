"""The procedural world's own bench, rendered here without downloads (SSR and PA by strength, part edits, sensitivity).

    PYTHONPATH=benchmarks python -m world.protocol --model tiny --model hsv --out results/

Strength 1 is another object of the same kind and silhouette family; a lower strength changes the object itself. The
bench is rendered once into `OUT/world`, and read from there afterwards. No paper prints these numbers;
benchmarks/world/protocol.md lists rows and columns, and has the scores of a few models.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols.common import tables
from idmetric.evaluate.protocols.common.columns import parameters
from idmetric.evaluate.protocols.common.matched import Matched, margins_of, matched, part_edits, rates
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Progress, Scorer, bind
from idmetric.evaluate.protocols.sensitivity_idsim_fig6 import Cell, cells, measure
from world.rendered import rendered
from world.structures import FACTORS
from world.write import WorldPlan

ALL = "all"


@dataclass(frozen=True)
class WorldOptions:
    """The bench: objects with views, distractors and part edits, and objects with edit grids (0 = no sensitivity)."""

    world_seed: int = 1000
    size: int = 224
    identities: int = 100
    grids: int = 30
    strengths: tuple[float, ...] = (1.0, 0.75, 0.5, 0.3)


def grid_plan(seed: int, size: int) -> WorldPlan:
    """A world of edit grids over all factors, without distractors or part edits."""
    return WorldPlan(seed, size, views=1, distractors=0, strengths=(), grids=FACTORS)


def bench(folder: Path, options: WorldOptions = WorldOptions(), progress: Progress | None = None) -> Manifest:
    """Render the bench into a folder, or read it from there; a stopped run resumes.

    Raises:
        ValueError: if the folder holds a world of other settings.
        ImportError: if VTK is missing.
    """
    margins = WorldPlan(options.world_seed, options.size, views=3, distractors=1, strengths=options.strengths, parts=1)
    plans = {"margins": (margins, options.identities)}
    if options.grids:
        plans["grids"] = grid_plan(options.world_seed + 1, options.size), options.grids
    return rendered(folder, plans, progress)


def run(data: Manifest, models: Models, settings: EvalSettings = EvalSettings()) -> list[Result]:
    """A result for each model: rows for distractors by strength, part edits, and sensitivity by factor.

    Args:
        data: a world, as `write_world` writes it; its distractors, parts and grids determine the rows.

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
    data = data.take(np.flatnonzero(plain))
    about = parameters(data)
    near = matched(data, ("distractor",), lambda row: f"{float(about[row].get('strength', 1)):.2f}")
    return near, matched(data, ("part-edit",), lambda row: "part edits").of_edited_views()


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


def main() -> None:
    """Print the table of some models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, help="as for `idmetric eval`; repeat")
    parser.add_argument("--out", type=Path, required=True, help="folder for rendered objects and embeddings")
    args = parser.parse_args()

    models = {name: open_model(name, device="cpu") for name in args.model}
    results = run(bench(args.out / "world"), models, EvalSettings(store=args.out / "embeddings"))
    print(tables.markdown(results))


if __name__ == "__main__":
    main()
