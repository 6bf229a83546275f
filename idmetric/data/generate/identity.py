"""Identity edits: hard negatives in which a part of the object is replaced (ID-Sim, appendix A.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.generate.compose import FIT_LONGEST, fit, partial_mask
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.job import (
    Job,
    Made,
    Task,
    area,
    edit_jobs,
    paste,
    provenance,
    read_source,
    require_edited,
)  # fmt: skip
from idmetric.data.generate.wording import Wording

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

STRENGTH = (0.5, 0.8)
GUIDANCE = 2.5  # of FLUX.1 Fill, instead of its own 30
GENERATOR_SEED = 0  # "the generation step uses a fixed internal seed of zero"


def identity_task(
    manifest: Manifest, engine: Engine, words: Wording, seed: int = 0, copies: int = 1, class_column: str = "category",
    guidance: float = GUIDANCE,
) -> Task:  # fmt: skip
    """Plan `copies` identity edits of each row: FLUX.1 Fill repaints a partial mask, without 40-60 % cut off one side.

    The frame's seed, `seed + row`, draws strength and partial mask; the generator's seed is 0. FLUX works at 720 px at
    most. The paper asks for sides divisible by 8; FLUX packs latents two by two, so the engine's 16 is used. The result
    is resized back and replaces the pixels of the partial mask; all other pixels stay exactly the same.

    The new row is a separate identity. Its mask is the object's, its part_mask the repainted part, and its oracle
    score the share of the object that was kept (NearID, section 3.4).

    Args:
        guidance: for FLUX.1 Fill, instead of the engine's default.

    Raises:
        GenerateError: if a row has no mask or class.
    """
    require_edited(manifest, class_column, "an identity edit repaints a part of it")
    settings = {
        "task": "identity",
        "strength": list(STRENGTH),
        "longest": FIT_LONGEST,
        "generator_seed": GENERATOR_SEED,
        "guidance": float(guidance),
    }
    jobs = edit_jobs(manifest, engine, words, "identity-edit", seed, copies, class_column, settings)

    def make(job: Job) -> Made:
        image, mask = read_source(manifest, job)
        rng = np.random.default_rng(job.seed)
        strength = float(rng.uniform(*STRENGTH))
        part, cut = partial_mask(mask, rng)
        small, small_part = fit(image, part, FIT_LONGEST, engine.multiple)
        request = Request(job.prompt, GENERATOR_SEED, small, small_part, strength, guidance=float(guidance))
        made = engine.edit(request)
        parameters = {"strength": strength, "partial_mask": cut, "size": list(small.size), **provenance(engine)}
        oracle = 1 - area(part) / area(mask)
        return Made(paste(made, image, part), mask, part, parameters, oracle)

    return Task(jobs, make, engine.load, manifest)
