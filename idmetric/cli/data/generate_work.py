"""The steps of `idmetric data generate`: show the plan, make the images, write the manifest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli.data.common import progress, save

if TYPE_CHECKING:
    from idmetric.data.generate import Engine, Remover, Task, Wording
    from idmetric.data.generate.run import Collected
    from idmetric.data.manifest.table import Manifest

_SHOWN = 5  # jobs that a dry run shows


class Work:
    """One call of the command: its folder and options, and the number of images left out so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.images: Path = args.images or args.out.with_name(f"{args.out.stem}_images")
        self.shard: tuple[int, int] = args.shard or (1, 1)
        self.left_out = 0

    @property
    def status(self) -> int:
        return 4 if self.left_out else 0

    def progress(self, items: Iterable[Any], total: int, what: str) -> Iterable[Any]:
        return progress(items, total, what, self.args.quiet)

    def limited(self, path: Path) -> Manifest:
        from idmetric.data.generate import GenerateError
        from idmetric.data.manifest.table import read

        manifest = read(path)
        if self.args.dataset:
            there = sorted({name for name in manifest.column("dataset") if name is not None})
            unknown = [name for name in self.args.dataset if name not in there]
            if unknown:
                raise GenerateError(
                    f"{path}: no rows of dataset {unknown[0]!r}; there are {', '.join(there) or 'none'}"
                )
            manifest = manifest.filter(dataset=self.args.dataset)
        return manifest if self.args.limit is None else manifest.take(range(min(self.args.limit, len(manifest))))

    def plan(self, task: Task, engine: Engine, check: bool = True, remover: Remover | None = None) -> None:
        """Print the weights; with --dry-run also the planned images and the unusable sources."""
        from idmetric.data.generate.run import finished, sharded, unusable_sources

        for name, used in ((engine.name, engine), ("background", remover)):
            for weights, license in used.licenses.items() if used else ():
                print(f"{name}: weights {weights}, license {license}", file=sys.stderr)
        if not self.args.dry_run:
            return
        mine = sharded(task.jobs, self.shard)
        done = finished(task, self.images, mine)
        todo = [job for job in mine if job.name not in done]
        print(f"{engine.name}: {len(mine)} images, {len(done)} of them finished, {len(todo)} to make")
        print(f"  settings: {', '.join(f'{k}={v}' for k, v in engine.settings.items())}")
        for job in todo[:_SHOWN]:
            print(f"  {job.name}.png: {job.prompt!r}")
        problems = unusable_sources(task, todo, self.progress) if check else []
        for who, why in problems:
            print(f"cannot be used: {who}: {why}", file=sys.stderr)
        self.left_out += len(problems)

    def make(self, task: Task, without: Iterable[str] = ()) -> bool:
        """Make the missing images; returns whether this call also writes the manifest."""
        from idmetric.data.generate.run import run

        if self.args.merge:
            return True
        outcome = run(task, self.images, self.shard, self.args.on_error, self.progress, frozenset(without))
        for who, why in outcome.unusable:
            print(f"skipped: {who}: {why}", file=sys.stderr)
        self.left_out += len(outcome.unusable)
        print(f"made {outcome.made} images, {outcome.kept} were finished; folder {self.images}")
        if self.args.shard and outcome.rejected:
            self._reject(outcome.rejected)
        return not self.args.shard

    def collected(self, task: Task) -> Collected:
        """Collect the finished images and report rejections."""
        from idmetric.data.generate.run import collect

        found = collect(task, self.images)
        if not self.args.shard:
            self._reject(found.rejected)
        return found

    def whole(self, task: Task) -> Manifest:
        """The manifest of the finished images; unfinished ones are an error or, with --on-error skip, left out."""
        from idmetric.data.generate import GenerateError

        found = self.collected(task)
        if found.missing:
            if self.args.on_error == "fail":
                raise GenerateError(
                    f"{len(found.missing)} of {len(task.jobs)} images are not finished, first {found.missing[0]}: run "
                    "the shards that make them, or this command without --merge; or leave them out with --on-error skip"
                )
            self.left_out += len(found.missing)
            print(f"left out: {len(found.missing)} of {len(task.jobs)} images are not finished", file=sys.stderr)
        return found.manifest

    def finish(self, task: Task, sources: Manifest) -> int:
        """Write the manifest."""
        from idmetric.data.generate.idsim import noised
        from idmetric.data.manifest.table import merge

        if self.args.dry_run:
            print(f"would write {self.args.out}: up to {len(task.jobs)} images")
            return self.status if self.args.on_error == "skip" or not self.left_out else 1
        manifest = self.whole(task)
        if self.args.task == "noise":
            whole, gone = noised(sources, manifest, task)
            if gone:
                print(f"left out: {gone} triplets with an image that was not made", file=sys.stderr)
            save(whole, self.args)
            return self.status
        save(merge([sources, manifest], shared=True) if self.args.with_sources else manifest, self.args)
        return self.status

    def _reject(self, rejected: Sequence[tuple[str, str]]) -> None:
        self.left_out += len(rejected)
        for name, why in rejected:
            print(f"rejected: {name}: {why}", file=sys.stderr)


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
