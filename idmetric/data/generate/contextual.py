"""Contextual edits: the same object in another place and light (ID-Sim, appendix A.2.1).

The foreground of each frame is scaled and placed on a white canvas; Qwen-Image-Edit adds a background and lighting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.generate.compose import contextual_canvas, scale_mode
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.job import (
    Job,
    Made,
    Task,
    check_seeds,
    frame_seed,
    job_from,
    provenance,
    read_source,
    require,
    text_seed,
)  # fmt: skip
from idmetric.data.generate.wording import Wording

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

GENERATOR_SEED = 0  # "a fixed generator seed ensures determinism"; the paper does not say which


def contextual_task(
    manifest: Manifest, engine: Engine, words: Wording, seed: int = 0, copies: int = 1, class_column: str = "category"
) -> Task:
    """Plan `copies` contextual edits of each row.

    Frames of one identity get different combinations of background and lighting. They are drawn without replacement
    from the combinations that suit the category's supercategory, and repeat once all are used. All frames of an
    identity have one scale mode, small or large. The new row keeps the identity, and its mask shows the object on its
    canvas. Each row gets a new background id, because the same words give a different picture each time; the words
    are in the parameters.

    Raises:
        GenerateError: if a row has no mask.
    """
    check_seeds(seed, len(manifest), copies)
    require(manifest, "mask", "a contextual edit keeps what the mask selects; add masks or filter these rows out")
    uses_class = "{class}" in words.templates["context"]
    if uses_class:
        require(manifest, class_column, "the prompt of contextual edits names it")
    jobs: list[Job] = []
    used: dict[str, int] = {}

    for index, row in enumerate(manifest):
        identity = row.identity or row.id
        for copy in range(copies):
            scenes = words.scenes(row.category)
            order = np.random.default_rng(text_seed(seed, identity)).permutation(len(scenes))
            background, lighting = scenes[order[used.get(identity, 0) % len(scenes)]]
            used[identity] = used.get(identity, 0) + 1

            slots = {"background": background, "lighting": lighting}
            if uses_class:
                slots["class"] = str(getattr(row, class_column))
            prompt = words.prompt("context", **slots)
            settings = {
                "task": "context", "mode": scale_mode(identity, seed), "background": background, "lighting": lighting,
                "generator_seed": GENERATOR_SEED,
            }  # fmt: skip
            draw = frame_seed(seed, index, copy)
            jobs.append(job_from(row, index, "context-edit", engine, prompt, draw, settings, False))

    def make(job: Job) -> Made:
        image, mask = read_source(manifest, job)
        canvas = contextual_canvas(image, mask, np.random.default_rng(job.seed), job.settings["mode"])
        made = engine.edit(Request(job.prompt, GENERATOR_SEED, canvas.image, canvas.mask))
        return Made(made, canvas.mask, parameters={"canvas": canvas.parameters, **provenance(engine)})

    return Task(jobs, make, engine.load, manifest)
