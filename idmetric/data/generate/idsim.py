"""ID-Sim's edits (appendix A.2): contextual edits, identity edits, and generative noise.

* Contextual edits show the same object in another place and light (A.2.1): the foreground of each frame is scaled and
  placed on a white canvas, and Qwen-Image-Edit adds a background and lighting.
* Identity edits are hard negatives in which a part of the object is replaced (A.2.2).
* Noise passes anchors and positives through the generator that edited their negative (A.2.2).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from idmetric.data.generate.compose import FIT_LONGEST, area, contextual_canvas, fit, partial_mask, paste, scale_mode
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.jobs import (
    GenerateTask,
    Job,
    Made,
    edit_jobs,
    frame_seed,
    job_from,
    read_source,
    require,
    text_seed,
)
from idmetric.data.generate.wording import Wording
from idmetric.data.manifest import take
from idmetric.metric.errors import RequestError
from idmetric.metric.images import read_image

if TYPE_CHECKING:
    import pandas as pd

CONTEXT_SEED = 0  # "a fixed generator seed ensures determinism"; the paper does not say which
IDENTITY_SEED = 0  # "the generation step uses a fixed internal seed of zero"
STRENGTH = (0.5, 0.8)  # of identity edits
GUIDANCE = 2.5  # of FLUX.1 Fill, instead of its own 30
NOISE = 0.1  # strength
_FIXED = {"longest": FIT_LONGEST, "generator_seed": IDENTITY_SEED, "guidance": GUIDANCE}  # of identity and noise
NOISED_BY = "noise"  # own column of the result: the engine that an image has passed through


def contextual_task(
    table: pd.DataFrame,
    engine: Engine,
    words: Wording,
    seed: int = 0,
    copies: int = 1,
) -> GenerateTask:
    """Plan `copies` contextual edits of each row.

    Frames of one identity get different combinations of background and lighting. They are drawn without replacement
    from the combinations that suit the category's supercategory, and repeat once all are used. All frames of an
    identity have one scale mode, small or large. The new row keeps the identity, and its mask shows the object on its
    canvas. Each row gets a new background id, because the same words give a different picture each time; the words
    are in the parameters.
    """
    require(table, "mask")
    if "{class}" in words.templates["context"]:
        require(table, "category")
    jobs: list[Job] = []
    uses: Counter[str] = Counter()  # of combinations, by identity

    for index, row in enumerate(table.to_dict("records")):
        identity = row["identity"] or row["id"]
        scenes = words.scenes(row["category"])
        rng = np.random.default_rng(text_seed(seed, identity))
        order = rng.permutation(len(scenes))
        for copy in range(copies):
            background, lighting = scenes[order[uses[identity] % len(scenes)]]
            uses[identity] += 1
            prompt = words.prompt("context", row["category"], background=background, lighting=lighting)
            settings = {
                "task": "context",
                "mode": scale_mode(identity, seed),
                "background": background,
                "lighting": lighting,
                "generator_seed": CONTEXT_SEED,
            }
            draw = frame_seed(seed, index, copy)
            jobs.append(job_from(row, index, engine, prompt, draw, settings, "context-edit"))

    def make(job: Job) -> Made:
        image, mask = read_source(table, job)
        rng = np.random.default_rng(job.seed)
        canvas = contextual_canvas(image, mask, rng, job.settings["mode"])
        request = Request(job.prompt, CONTEXT_SEED, canvas.image, canvas.mask)
        edited = engine.edit(request)
        return Made(edited, canvas.mask, parameters={"canvas": canvas.parameters})

    return GenerateTask(jobs, make, engine)


def identity_task(
    table: pd.DataFrame,
    engine: Engine,
    words: Wording,
    seed: int = 0,
    copies: int = 1,
) -> GenerateTask:
    """Plan `copies` identity edits of each row: FLUX.1 Fill repaints a partial mask, without 40-60 % cut off one side.

    The frame's seed, `seed + row`, draws strength and partial mask; the generator's seed is 0. FLUX works at 720 px at
    most. The paper asks for sides divisible by 8; FLUX packs latents two by two, so the engine's 16 is used. The result
    is resized back and replaces the pixels of the partial mask; all other pixels stay exactly the same.

    The new row is a separate identity. Its mask is the object's, its part_mask the repainted part, and its oracle
    score the share of the object that was kept (NearID, section 3.4).
    """
    settings = {"task": "identity", "strength": list(STRENGTH), **_FIXED}
    jobs = edit_jobs(table, engine, words, "identity-edit", seed, copies, settings)

    def make(job: Job) -> Made:
        image, mask = read_source(table, job)
        rng = np.random.default_rng(job.seed)
        strength = rng.uniform(*STRENGTH)
        part, cut = partial_mask(mask, rng)
        edited = _repainted(engine, job, image, part, strength)
        parameters = {"strength": strength, "partial_mask": cut, **edited.parameters}
        oracle = 1 - area(part) / area(mask)
        return Made(edited.image, mask, part, parameters, oracle)

    return GenerateTask(jobs, make, engine)


def noise_task(
    table: pd.DataFrame,
    engine: Engine,
    words: Wording,
    seed: int = 0,
) -> GenerateTask:
    """Plan the anchors and positives of all triplets with a negative that this engine edited.

    All three images then show the generator's artifacts, which no longer reveal the negative: "we add mild
    generative noise (strength 0.1) to the anchor and positive whenever a triplet includes an identity-edited negative"
    (A.2.2). The whole image is repainted at strength 0.1, at the size and guidance of identity edits. Rendered
    negatives have no such artifacts, so their triplets are left alone.
    """
    is_edited = (table["slot"] == "negative") & (table["engine"] == engine.name)
    edited_groups = set(table["group"][is_edited])
    settings = {"task": "noise", "strength": NOISE, **_FIXED}
    jobs: list[Job] = []
    for index, row in enumerate(table.to_dict("records")):
        if row["slot"] in ("anchor", "positive") and row["group"] in edited_groups:
            prompt = words.prompt("identity", row["category"])
            draw = frame_seed(seed, index)
            jobs.append(job_from(row, index, engine, prompt, draw, settings, "context-edit"))
    if not jobs:
        raise RequestError(
            f"no triplet has a negative edited by {engine.name}: generative noise is for triplets (idmetric data mine "
            "triplets) with such negatives; rendered edits need none"
        )

    def make(job: Job) -> Made:
        image = read_image(table["path"].iloc[job.source])
        everything = Image.new("L", image.size, 255)
        return _repainted(engine, job, image, everything, NOISE)

    return GenerateTask(jobs, make, engine, partial(noised, table, jobs))


def _repainted(engine: Engine, job: Job, image: Image.Image, mask: Image.Image, strength: float) -> Made:
    """An image, repainted where the mask is 255; the parameter size is that at which the engine worked."""
    small, small_mask = fit(image, mask, FIT_LONGEST, engine.multiple)
    request = Request(job.prompt, IDENTITY_SEED, small, small_mask, strength, guidance=GUIDANCE)
    edited = engine.edit(request)
    pasted = paste(edited, image, mask)
    return Made(pasted, parameters={"size": list(small.size)})


def noised(triplets: pd.DataFrame, jobs: Sequence[Job], images: pd.DataFrame) -> pd.DataFrame:
    """The triplets with the jobs' finished images in place of their own.

    A triplet is left out, with a warning, if one of its images was not made: an anchor with artifacts and a positive
    without would give the positive away.
    """
    path_of = dict(zip(images["id"], images["path"], strict=True))
    paths = triplets["path"].tolist()
    engines: list[str | None] = [None] * len(triplets)
    incomplete = set()
    for job in jobs:
        if job.name in path_of:
            paths[job.source] = path_of[job.name]
            engines[job.source] = job.row["engine"]
        else:
            incomplete.add(triplets["group"].iloc[job.source])

    if incomplete:
        warnings.warn(f"{len(incomplete)} triplets left out, with an image that was not made", stacklevel=2)
    with_images = triplets.assign(path=paths, **{NOISED_BY: engines})
    return take(with_images, ~triplets["group"].isin(list(incomplete)))
