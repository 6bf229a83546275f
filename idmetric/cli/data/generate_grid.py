"""`idmetric data generate --task grid`: identity edits of photos, then their backgrounds and lights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from idmetric.cli.data.common import save

if TYPE_CHECKING:
    from idmetric.cli.data.generate_work import Work
    from idmetric.data.generate import Engine, Wording
    from idmetric.data.manifest.table import Manifest


def make_grid(work: Work, manifest: Manifest, repaint: Engine, edit: Engine, words: Wording) -> int:
    """Make the grids of all photos; every shard changes the context of the identity edits that it made.

    Args:
        repaint, edit: the engines of identity edits, and of backgrounds and lights.
    """
    from idmetric.data.generate.grid import grid_context_task, grid_identity_task, grid_sources, planned_sources
    from idmetric.data.generate.run import collect
    from idmetric.data.generate.wording import GRID
    from idmetric.data.manifest.table import merge

    args = work.args
    sources = grid_sources(manifest, args.views)
    identity = grid_identity_task(sources, repaint, words, args.seed, args.class_from or "category")
    planned = planned_sources(sources, identity, work.images)
    context = grid_context_task(planned, edit, words, args.seed, tuple(dict.fromkeys(args.factor or GRID)))
    work.plan(identity, repaint)
    work.plan(context, edit, check=False)  # most of their sources are yet to be made
    if args.dry_run:
        count = len(sources) + len(identity.jobs) + len(context.jobs)
        print(f"would write {args.out}: up to {count} images")
        return work.status if args.on_error == "skip" or not work.left_out else 1

    go_on = work.make(identity)
    repaint.unload()  # two such models rarely fit one device
    made = collect(identity, work.images).manifest
    lost = {job.name for job in identity.jobs} - set(made.column("id"))
    if not work.make(context, without=lost) or not go_on:
        return work.status
    kept = replace(context, jobs=[job for job in context.jobs if job.parent not in lost])
    parts = [sources, *(work.whole(task) for task in (identity, kept))]
    save(merge(parts, shared=True), args)
    return work.status
