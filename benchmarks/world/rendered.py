"""Renders worlds for protocols that run without data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from idmetric.data.manifest.table import Manifest, merge
from world.write import WorldPlan, write_world


def rendered(
    folder: Path, plans: Mapping[str, tuple[WorldPlan, int]], progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """The first objects of some worlds, each world in its folder; existing worlds are read, a stopped run resumes.

    Args:
        folder: above the worlds. plans: name of a world's folder -> its plan and number of objects.
        progress: called with (pictures done, pictures to do) of all worlds together.

    Raises:
        ValueError: if a folder holds a world of another plan.
        ImportError: if VTK is missing.
    """
    total, done = sum(count * plan.pictures for plan, count in plans.values()), 0

    def step(pictures: int) -> None:
        nonlocal done
        done += pictures
        if progress is not None:
            progress(min(done, total), total)

    parts = []
    for name, (plan, count) in plans.items():
        whole = write_world(folder / name, plan, count, done=step)
        number = [int(row.partition("/")[0].rpartition("-")[2]) for row in whole.column("id")]
        parts.append(whole.take(np.array(number) < count))  # an earlier run may have rendered more

    return merge(parts) if len(parts) > 1 else parts[0]


def rendered_objects(
    folder: Path, identities: int = 30, progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Objects of the procedural world with masks, three views each, in `folder`/things; see `rendered`."""
    plan = WorldPlan(1000, 224, views=3, distractors=0, strengths=())
    return rendered(folder, {"things": (plan, identities)}, progress)
