"""A reward for reinforcement learning of image generators: the references' subject, but not a copy of a reference.

    score = reward(IDSim(), calibration="stored")
    score(images, references)  # [0.93, 0.04, ...]

The wrappers that trainers expect are on the page docs/reward.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from idmetric.calibration.apply import Calibration
from idmetric.distance.matrix import check_name, needs_patches
from idmetric.evaluate.copies import compare, take_print
from idmetric.images.kinds import is_array
from idmetric.images.masks import Images
from idmetric.images.read import ImageLike, is_single, split_images
from idmetric.models.embedder import Embedder
from idmetric.scoring.compare import calibration_of
from idmetric.scoring.copies import small_picture

# references of N images: one for all, one for each, or a list for each (a list of one list is for all)
References = Images | Sequence[Sequence[ImageLike]]
Reward = Callable[[Images, References], list[float]]


def reward(
    metric: Embedder,
    *,
    distance: str = "cls",
    aggregate: Literal["best", "mean"] = "best",
    calibration: str | os.PathLike[str] | Calibration | None = None,
    prior: float | None = None,
    copy_penalty: float = 1.0,
    batch_size: int = 32,
) -> Reward:
    """Return a function (images, references) -> rewards in [0, 1], higher = more surely the same identity.

    The function takes images of any kind and of different sizes: tensors or arrays (N, 3, H, W), lists of them, PIL
    images, files; several references for each image as a list of lists or a tensor (N, R, 3, H, W). It works in
    batches and without gradients, and raises `ImageReadError` for images that cannot be read, `ValueError` if the
    numbers of images and references do not fit.

    Args:
        metric: the model.
        distance: see `idmetric.distance.matrix`.
        aggregate: over an image's references, the highest reward ("best") or the mean.
        calibration: the reward is the probability of one identity by this calibration: a file, a `Calibration`, or
            "stored" for the one saved with the model. None: 1 - distance, at least 0.
        prior: share of images of the same identity that the probability assumes; default: the calibration's.
        copy_penalty: the share of its reward that an image loses if it repeats the pixels of any of its references, as
            `idmetric.evaluate.copies` finds it. 0 does not look for copies, which then earn the most.
        batch_size: images per pass.

    Raises:
        ValueError: if `distance`, `aggregate` or `copy_penalty` is unknown or out of range.
        CalibrationError: if the calibration was made for another model or distance, or for subjects cut by masks.
    """
    check_name(distance)
    if aggregate not in ("best", "mean"):
        raise ValueError(f"aggregate must be 'best' or 'mean', got {aggregate!r}")
    if not 0 <= copy_penalty <= 1:
        raise ValueError(f"copy_penalty must be from 0 to 1, got {copy_penalty}")
    if prior is not None and calibration is None:
        raise ValueError("prior needs a calibration, such as calibration='stored'")
    curve = calibration_of(metric, calibration, distance)
    if curve is not None:
        curve.check_outside("all")
        curve.warn()
    patches = needs_patches(distance)

    @torch.no_grad()
    def score(images: Images, references: References) -> list[float]:
        shown = _opened(metric, split_images(images))
        known, groups = grouped(references, len(shown))
        known = _opened(metric, known)
        of = np.repeat(np.arange(len(shown)), [len(group) for group in groups])
        against = [place for group in groups for place in group]

        made = metric.embed(shown, batch_size=batch_size, patches=patches)
        real = metric.embed(known, batch_size=batch_size, patches=patches)
        far = metric(made[of.tolist()], real[against], distance).double().cpu().numpy()
        value = np.clip(1 - far, 0, 1) if curve is None else curve.probability(far, prior)

        join = np.max if aggregate == "best" else np.mean
        found = np.array([join(value[of == k]) for k in range(len(shown))])
        if copy_penalty:
            prints = [take_print(small_picture(metric.read_image(image))) for image in known]
            for k, image in enumerate(shown):
                own = take_print(small_picture(metric.read_image(image)))
                if any(compare(prints[place], own).found for place in groups[k]):
                    found[k] *= 1 - copy_penalty
        return [float(x) for x in found]

    return score


def _opened(metric: Embedder, images: list[ImageLike]) -> list[ImageLike]:
    """The images, files read once."""
    return [image if is_array(image) else metric.read_image(image) for image in images]


def grouped(references: References, count: int) -> tuple[list[ImageLike], list[list[int]]]:
    """All references as one list, and the places of each image's own in it.

    Raises:
        ValueError: if they are not one or `count` references or lists of references, or a list is empty.
    """
    if isinstance(references, Tensor | np.ndarray) and references.ndim == 5:
        references = list(references)
    if isinstance(references, str | os.PathLike):  # one image, or a folder or pattern: for all
        lists = [split_images(references)]
    elif isinstance(references, list | tuple) and any(not is_single(one) for one in references):
        lists = [split_images(one) for one in references]
    else:
        lists = [[one] for one in split_images(references)]  # type: ignore[arg-type]  # it is flat
    if len(lists) not in (1, count) or not all(lists):
        raise ValueError(f"{count} images and {len(lists)} references: give one, or one (or a list) for each image")

    ends = np.cumsum([len(one) for one in lists]).tolist()
    groups = [list(range(end - len(one), end)) for end, one in zip(ends, lists, strict=True)]
    return [image for one in lists for image in one], groups * count if len(groups) == 1 else groups
