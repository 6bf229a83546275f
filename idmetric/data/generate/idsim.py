"""ID-Sim's edits (appendix A.2): contextual edits, identity edits, and generative noise.

* Contextual edits show the same object in another place and light (A.2.1): the foreground of each frame is scaled and
  placed on a white canvas, and Qwen-Image-Edit adds a background and lighting.
* Identity edits are hard negatives in which a part of the object is replaced (A.2.2).
* Noise passes anchors and positives through the generator that edited their negative (A.2.2).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from idmetric.data.generate.compose import FIT_LONGEST, contextual_canvas, fit, partial_mask, paste, scale_mode
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.jobs import (
    Job,
    Made,
    Task,
    edit_jobs,
    frame_seed,
    job_from,
    provenance,
    read_source,
    require,
    text_seed,
)
from idmetric.data.generate.weights import GenerateError
from idmetric.data.generate.wording import Wording

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

CONTEXT_SEED = 0  # "a fixed generator seed ensures determinism"; the paper does not say which
IDENTITY_SEED = 0  # "the generation step uses a fixed internal seed of zero"
STRENGTH = (0.5, 0.8)  # of identity edits
GUIDANCE = 2.5  # of FLUX.1 Fill, instead of its own 30
NOISE = 0.1  # strength
_FIXED = {"longest": FIT_LONGEST, "generator_seed": IDENTITY_SEED, "guidance": GUIDANCE}  # of identity and noise
COLUMN = "x_noise"  # free column of the result: the engine that an image has passed through


def contextual_task(
    manifest: Manifest, engine: Engine, words: Wording, seed: int = 0, copies: int = 1, class_column: str = "category"
) -> Task:
    """Plan `copies` contextual edits of each row.

    Frames of one identity get different combinations of background and lighting. They are drawn without replacement
    from the combinations that suit the category's supercategory, and repeat once all are used. All frames of an
    identity have one scale mode, small or large. The new row keeps the identity, and its mask shows the object on its
    canvas. Each row gets a new background id, because the same words give a different picture each time; the words
    are in the parameters.
    """
    require(manifest, "mask", *([class_column] if "{class}" in words.templates["context"] else []))
    jobs: list[Job] = []
    used: dict[str, int] = {}

    for index, row in enumerate(manifest):
        identity = row.identity or row.id
        for copy in range(copies):
            scenes = words.scenes(row.category)
            order = np.random.default_rng(text_seed(seed, identity)).permutation(len(scenes))
            background, lighting = scenes[order[used.get(identity, 0) % len(scenes)]]
            used[identity] = used.get(identity, 0) + 1

            slots = {"background": background, "lighting": lighting, "class": str(getattr(row, class_column))}
            prompt = words.prompt("context", **slots)
            settings = {
                "task": "context", "mode": scale_mode(identity, seed), "background": background, "lighting": lighting,
                "generator_seed": CONTEXT_SEED,
            }  # fmt: skip
            draw = frame_seed(seed, index, copy)
            jobs.append(job_from(row, index, "context-edit", engine, prompt, draw, settings, False))

    def make(job: Job) -> Made:
        image, mask = read_source(manifest, job)
        canvas = contextual_canvas(image, mask, np.random.default_rng(job.seed), job.settings["mode"])
        made = engine.edit(Request(job.prompt, CONTEXT_SEED, canvas.image, canvas.mask))
        return Made(made, canvas.mask, parameters={"canvas": canvas.parameters, **provenance(engine)})

    return Task(jobs, make, engine.load)


def identity_task(
    manifest: Manifest, engine: Engine, words: Wording, seed: int = 0, copies: int = 1, class_column: str = "category"
) -> Task:
    """Plan `copies` identity edits of each row: FLUX.1 Fill repaints a partial mask, without 40-60 % cut off one side.

    The frame's seed, `seed + row`, draws strength and partial mask; the generator's seed is 0. FLUX works at 720 px at
    most. The paper asks for sides divisible by 8; FLUX packs latents two by two, so the engine's 16 is used. The result
    is resized back and replaces the pixels of the partial mask; all other pixels stay exactly the same.

    The new row is a separate identity. Its mask is the object's, its part_mask the repainted part, and its oracle
    score the share of the object that was kept (NearID, section 3.4).
    """
    settings = {"task": "identity", "strength": list(STRENGTH), **_FIXED}
    jobs = edit_jobs(manifest, engine, words, "identity-edit", seed, copies, class_column, settings)

    def make(job: Job) -> Made:
        image, mask = read_source(manifest, job)
        rng = np.random.default_rng(job.seed)
        strength = float(rng.uniform(*STRENGTH))
        part, cut = partial_mask(mask, rng)
        small, small_part = fit(image, part, FIT_LONGEST, engine.multiple)
        made = engine.edit(Request(job.prompt, IDENTITY_SEED, small, small_part, strength, guidance=GUIDANCE))
        parameters = {"strength": strength, "partial_mask": cut, "size": list(small.size), **provenance(engine)}
        oracle = 1 - np.count_nonzero(np.asarray(part)) / np.count_nonzero(np.asarray(mask))
        return Made(paste(made, image, part), mask, part, parameters, oracle)

    return Task(jobs, make, engine.load)


def noise_task(
    manifest: Manifest, engine: Engine, words: Wording, seed: int = 0, class_column: str = "category"
) -> Task:
    """Plan the anchors and positives of all triplets with a negative that this engine edited.

    All three images then show the generator's artifacts, which no longer reveal the negative: "we add mild
    generative noise (strength 0.1) to the anchor and positive whenever a triplet includes an identity-edited negative"
    (A.2.2). The whole image is repainted at strength 0.1, at the size and guidance of identity edits. Rendered
    negatives have no such artifacts, so their triplets are left alone.
    """
    rows = noised_rows(manifest, engine.name)
    settings = {"task": "noise", "strength": NOISE, **_FIXED}
    jobs: list[Job] = []
    for index in rows:
        row = manifest[index]
        prompt = words.prompt("identity", **{"class": str(getattr(row, class_column) or "object")})
        jobs.append(job_from(row, index, row.role, engine, prompt, frame_seed(seed, index), settings, False))

    def make(job: Job) -> Made:
        assert job.source is not None
        image = manifest.image(job.source)
        whole = Image.new("L", image.size, 255)
        small, small_whole = fit(image, whole, FIT_LONGEST, engine.multiple)
        request = Request(job.prompt, IDENTITY_SEED, small, small_whole, NOISE, guidance=GUIDANCE)
        return Made(paste(engine.edit(request), image, whole), parameters=provenance(engine))

    return Task(jobs, make, engine.load)


def noised_rows(manifest: Manifest, engine: str) -> list[int]:
    """Rows of anchors and positives in groups with a negative that was edited by this engine."""
    groups, slots, engines = (manifest.column(name) for name in ("group", "slot", "engine"))
    triples = list(zip(groups, slots, engines, strict=True))
    edited = {group for group, slot, by in triples if group is not None and slot == "negative" and by == engine}
    rows = [k for k, (group, slot, _) in enumerate(triples) if slot in ("anchor", "positive") and group in edited]
    if not rows:
        raise GenerateError(
            f"no triplet has a negative edited by {engine}: generative noise is for triplets (idmetric data mine "
            "triplets) with such negatives; rendered edits need none"
        )
    return rows


def noised(triplets: Manifest, made: Manifest, task: Task) -> tuple[Manifest, int]:
    """The triplets with the images that were made in place of their own, and the number of triplets left out.

    A triplet is left out if one of its images was not made: an anchor with artifacts and a positive without would give
    the positive away.

    Args:
        made: the finished images of the task.
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
