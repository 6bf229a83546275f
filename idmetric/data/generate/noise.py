"""Generative noise: anchors and positives pass through the generator that edited their negative (ID-Sim, A.2.2)."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from idmetric.data.generate.compose import FIT_LONGEST, fit
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.errors import GenerateError
from idmetric.data.generate.identity import GENERATOR_SEED, GUIDANCE
from idmetric.data.generate.job import Job, Made, Task, frame_seed, job_from, paste, provenance, read_photo
from idmetric.data.generate.wording import Wording

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

STRENGTH = 0.1
COLUMN = "x_noise"  # free column of the result: the engine that an image has passed through


def noise_task(
    manifest: Manifest, engine: Engine, words: Wording, seed: int = 0, class_column: str = "category",
    guidance: float = GUIDANCE,
) -> Task:  # fmt: skip
    """Plan the anchors and positives of all triplets with a negative that this engine edited.

    All three images then show the generator's artifacts, which no longer reveal the negative: "we add mild
    generative noise (strength 0.1) to the anchor and positive whenever a triplet includes an identity-edited negative"
    (A.2.2). The whole image is repainted at strength 0.1, at the size and guidance of identity edits. Rendered
    negatives have no such artifacts, so their triplets are left alone.

    Raises:
        GenerateError: if there is no such triplet, naming the engines of the negatives.
    """
    rows = noised_rows(manifest, engine.name)
    settings = {
        "task": "noise", "strength": STRENGTH, "longest": FIT_LONGEST, "generator_seed": GENERATOR_SEED,
        "guidance": float(guidance),
    }  # fmt: skip
    jobs: list[Job] = []
    for index in rows:
        row = manifest[index]
        prompt = words.prompt("identity", **{"class": str(getattr(row, class_column) or "object")})
        jobs.append(job_from(row, index, row.role, engine, prompt, frame_seed(seed, index), settings, False))

    def make(job: Job) -> Made:
        image = read_photo(manifest, job)
        whole = Image.new("L", image.size, 255)
        small, small_whole = fit(image, whole, FIT_LONGEST, engine.multiple)
        request = Request(job.prompt, GENERATOR_SEED, small, small_whole, STRENGTH, guidance=float(guidance))
        return Made(paste(engine.edit(request), image, whole), parameters=provenance(engine))

    return Task(jobs, make, engine.load, manifest, masked=False)


def noised_rows(manifest: Manifest, engine: str) -> list[int]:
    """Rows of anchors and positives in groups with a negative that was edited by this engine.

    Raises:
        GenerateError: if there are none.
    """
    groups, slots, engines = (manifest.column(name) for name in ("group", "slot", "engine"))
    edited: dict[str, set[str]] = defaultdict(set)
    for group, slot, made_by in zip(groups, slots, engines, strict=True):
        if group is not None and slot == "negative" and made_by is not None:
            edited[group].add(made_by)
    rows = [
        k for k, (group, slot) in enumerate(zip(groups, slots, strict=True))
        if slot in ("anchor", "positive") and engine in edited.get(group, ())
    ]  # fmt: skip
    if not rows:
        counts = Counter(name for names in edited.values() for name in names)
        found = ", ".join(f"{name} ({n})" for name, n in counts.items()) or "none"
        raise GenerateError(
            f"no triplet has a negative edited by {engine}; engines of negatives: {found}. Generative noise is for "
            "triplets (idmetric data mine triplets) with edits by that engine; rendered edits need none"
        )
    return rows


def noised(triplets: Manifest, made: Manifest, task: Task) -> tuple[Manifest, int]:
    """The triplets with the images that were made in place of their own, and the number of triplets left out.

    A triplet is left out if one of its images was not made: an anchor with artifacts and a positive without would give
    the positive away.

    Args:
        made: the finished images of the task, from `collect`.
    """
    source = {job.name: job.source for job in task.jobs if job.source is not None}
    paths, data = triplets.column("path"), triplets.column("image_bytes")
    engines: list[str | None] = [None] * len(triplets)
    for name, path, engine in zip(made.column("id"), made.column("path"), made.column("engine"), strict=True):
        row = source[name]
        paths[row], data[row], engines[row] = str((Path(made.root) / path).resolve()), None, engine
    groups = triplets.column("group")
    lacking = {groups[row] for row in source.values() if engines[row] is None}
    kept = np.array([name not in lacking for name in groups], dtype=bool)
    return triplets.replace(path=paths, image_bytes=data, **{COLUMN: engines}).take(kept), len(lacking)
