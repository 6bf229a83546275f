"""ILGen: objects from category names, relit on several backgrounds (sections 3.2, 4.1 and appendix A).

The first step generates K objects of each category and cuts them out (`object_task`). Each object is an identity. The
second step shrinks it, places it at random and lets IC-Light add a background and light that suit the category, N times
(`relight_task`); it accepts any images with masks, such as renderings (the paper's "Objaverse-background"), or objects
without masks of the first step and masks that another program made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from idmetric.data.curate.recipes import ILGEN
from idmetric.data.generate.compose import pad_randomly, scaled_mask
from idmetric.data.generate.distractor import working_size
from idmetric.data.generate.engine import Engine, Request, fields_of
from idmetric.data.generate.iclight import on_gray
from idmetric.data.generate.jobs import (
    GenerateTask,
    Job,
    Made,
    job_from,
    job_name,
    read_source,
    require,
    short_hash,
    text_seed,
)
from idmetric.data.generate.masks import CleanBackground
from idmetric.data.generate.wording import Wording

if TYPE_CHECKING:
    import pandas as pd

VARIANTS = 4  # N (section 4.1)
_EACH = 10  # objects of each category, where the paper has no number
_CLEAN = CleanBackground()


def object_task(
    categories: Sequence[str],
    engine: Engine,
    words: Wording,
    seed: int = 0,
    each: int | None = None,
    domain: str = "generic",
    remover: CleanBackground | None = _CLEAN,
) -> GenerateTask:
    """Plan `each` (K) objects of every category, "a <category> in a clean background", with their masks.

    Seeds depend on category and number alone, so a longer list of categories or a larger K adds to existing objects. An
    object is rejected if its background cannot be removed; the paper does not describe this case. The identity includes
    a hash of prompt, seed, weights and settings, so runs that differ in these can be merged.

    Args:
        each: default the paper's number for the domain, or 10.
        remover: cuts the objects out; None makes images without masks, which another program may cut out.
    """
    if each is None:
        each = ILGEN[domain].per_category if domain in ILGEN else _EACH
    settings = {**engine.settings, "task": "object"}
    if remover is not None:
        settings["remover"] = "clean"
        settings |= {f"remover.{name}": value for name, value in fields_of(remover).items()}

    jobs = []
    for category in categories:
        prompt = words.prompt("object", category)
        for number in range(each):
            origin = f"ilgen/{domain}/{category}/{number}"
            draw = text_seed(seed, domain, category, number)
            name = job_name(engine, origin, prompt, draw, settings)
            row = {
                "id": name,
                "identity": f"{origin}/{short_hash(name)}",
                "dataset": "ilgen",
                "domain": domain,
                "category": category,
                "engine": engine.name,
                "text": prompt,
                "seed": draw,
            }
            jobs.append(Job(name, prompt, draw, settings, row))

    def make(job: Job) -> Made | str:
        image = engine.edit(Request(job.prompt, job.seed))
        if remover is None:
            return Made(image)
        mask = remover.mask(image)
        if isinstance(mask, str):
            return mask
        return Made(image, mask)

    return GenerateTask(jobs, make, engine)


def relight_task(
    table: pd.DataFrame,
    engine: Engine,
    words: Wording,
    seed: int = 0,
    copies: int = VARIANTS,
) -> GenerateTask:
    """Plan `copies` (N) relit images of each row's object, each with its own random padding."""
    require(table, "mask", "category")
    jobs = []
    for index, row in enumerate(table.to_dict("records")):
        prompt = words.prompt("relight", row["category"])
        for number in range(copies):
            draw = text_seed(seed, row["id"], number)
            jobs.append(job_from(row, index, engine, prompt, draw, {"task": "relight"}, "context-edit"))

    def make(job: Job) -> Made:
        image, mask = read_source(table, job)
        rng = np.random.default_rng(job.seed)
        padded = pad_randomly(image, mask, rng)
        size = working_size(image.size, engine.native, engine.multiple)
        gray = on_gray(padded.image, padded.mask)  # before resizing, so no white gets into the object's edge
        small = gray.resize(size, Image.Resampling.LANCZOS)
        small_mask = scaled_mask(padded.mask, size)
        request = Request(job.prompt, job.seed, small, small_mask, size=image.size)
        relit = engine.edit(request)
        return Made(relit, padded.mask, parameters={"padded": padded.parameters})

    return GenerateTask(jobs, make, engine)
