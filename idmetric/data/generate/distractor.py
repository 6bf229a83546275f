"""Near-identity distractors: another object of the same kind in the same place (NearID, 3.3 and appendix 0.B.1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from PIL import Image

from idmetric.data.generate.compose import NEARID_SIDE, Size, fit, paste, rounded, scaled_mask
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.jobs import GenerateTask, Job, Made, edit_jobs, read_source
from idmetric.data.generate.wording import Wording
from idmetric.metric.images import ImageReadError

if TYPE_CHECKING:
    import pandas as pd

_LONGEST_RATIO = 8  # of sides; engines fail on longer strips


def distractor_task(
    table: pd.DataFrame,
    engine: Engine,
    words: Wording,
    seed: int = 0,
    copies: int = 1,
    resolution: int | Literal["native"] = NEARID_SIDE,
) -> GenerateTask:
    """Plan `copies` distractors of each row; the engine repaints everything that the mask selects.

    The paper works on squares, at 512 x 512 and at each engine's native size, and resizes all results to 512 x 512 by
    Lanczos. Here an image keeps its aspect ratio: the engine works at the area of such a square, and the result has a
    shorter side of 512 pixels, or the image's own if that is smaller. For a 512 x 512 image this equals the paper. The
    result replaces the masked pixels; all other pixels of the (reduced) image stay exactly the same.

    The seed of the noise is `seed + row`; the paper does not state one.

    Args:
        resolution: side of the square with the area to work at; "native" = the engine's own.
    """
    side = engine.native if resolution == "native" else resolution
    negative = words.negative.get(engine.name)
    settings = {"task": "distractor", "side": side, "out_side": NEARID_SIDE, "negative": negative}
    jobs = edit_jobs(table, engine, words, "distractor", seed, copies, settings)

    def make(job: Job) -> Made:
        image, mask = read_source(table, job)
        short, long = sorted(image.size)
        if short > NEARID_SIDE:
            image, mask = fit(image, mask, round(long * NEARID_SIDE / short), multiple=1)

        size = working_size(image.size, side, engine.multiple)
        large = image.resize(size, Image.Resampling.LANCZOS)
        large_mask = scaled_mask(mask, size)
        request = Request(job.prompt, job.seed, large, large_mask, negative=negative)
        edited = engine.edit(request)
        pasted = paste(edited, image, mask)
        return Made(pasted, mask, parameters={"size": list(size)})

    return GenerateTask(jobs, make, engine)


def working_size(size: Size, side: int, multiple: int) -> Size:
    """(width, height): the aspect ratio of `size`, the area of a square of that side, divisible by `multiple`."""
    width, height = size
    if max(size) > _LONGEST_RATIO * min(size):
        raise ImageReadError(f"of {width}x{height} pixels", "it is too long to repaint: crop it")
    root = math.sqrt(width / height)
    width = rounded(side * root / multiple) * multiple
    height = rounded(side / root / multiple) * multiple
    return width, height
