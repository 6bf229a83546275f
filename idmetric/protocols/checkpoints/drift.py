"""How far a checkpoint has moved from its base model, on images of equal prompts and seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from idmetric.protocols.checkpoints.reading import BASE
from idmetric.protocols.common.arrays import Array, Ints
from idmetric.protocols.generator.images import Images


def drift_of(cosines: ArrayLike) -> Array:
    """(1 - cos) / 2 of each pair of a checkpoint's image and the base model's; the mean of all pairs is the drift.

    0 = the images are alike, 1 = opposite; higher = the checkpoint has moved further.

    Args:
        cosines: (P,), of the embeddings of image pairs with one prompt and seed, in [-1, 1].

    References:
        `measure_drift` in `method_comparison/image-gen` of huggingface/peft, with DINOv2 on prompts without the
        trained concept. Its version 10794ab returns 1 - mean cos, twice this number.
    """
    found: Array = (1 - np.asarray(cosines, dtype=np.float64)) / 2
    return found.clip(0, 1)  # cosines are rounded


def pairs_with_base(images: Images) -> tuple[Ints, Ints]:
    """The images (P,) of checkpoints that have an image of the base model at their place, and these (P,).

    Both are numbers below the number of images; a place is a subject, prompt and seed.
    """
    base = {place: k for k, place in enumerate(images.places()) if images.method[k] == str(BASE)}
    ends = [(k, base[place]) for k, place in enumerate(images.places())
            if place in base and images.method[k] != str(BASE)]  # fmt: skip
    own, other = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return own, other
