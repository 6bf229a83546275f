"""The images of a step of ILGen: their numbers, and their pixels (section 3.3, supplement B).

Images are numbered class by class: number n is image n % N of class n // N. Each draw follows from (seed, step) alone.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.train.batches import Pictures, generator, permutation
from idmetric.train.ilgen.data import Classes


@dataclass(frozen=True)
class Drawn:
    """The samples of a step, over all processes.

    Attributes:
        step: from 0.
        image: number of each image, int (S, P): S samples of P images; -1 where it is not known before the step.
        label: class of each sample, int (S,).
        query: samples that query, int (Q,).
    """

    step: int
    image: Tensor
    label: Tensor
    query: Tensor


def pass_length(count: int, size: int) -> int:
    """Batches in which each of `count` classes or images is loaded; the first ones again fill up the last batch."""
    return -(-count // size)


def draw_classes(step: int, classes: int, images: int, size: int, seed: int, queries: str = "one") -> Drawn:
    """`size` (B) different classes with all their images, one of each class as the query (section 3.3).

    A pass draws each class once, "until all classes have been loaded in a batch" (section 4.1).

    Args:
        queries: "one" of each class at random, or "all" images.
    """
    chosen = _next(step, classes, size, seed)
    image = (chosen[:, None] * images + np.arange(images)).reshape(-1, 1)
    query = np.arange(size * images)
    if queries == "one":
        query = np.arange(size) * images + generator(seed, step, "query").integers(images, size=size)
    return _drawn(step, image, images, query)


def draw_pairs(step: int, classes: int, images: int, size: int, seed: int) -> Drawn:
    """`size` queries, a random other image of each query's class, and a place for a negative (supplement B).

    A pass draws each image once as a query.
    """
    query = _next(step, classes * images, size, seed)
    other = generator(seed, step, "positive").integers(images - 1, size=size)
    positive = query // images * images + other + (other >= query % images)
    return _drawn(step, np.stack([query, positive, np.full(size, -1)], 1), images, np.arange(size))


def draw_images(step: int, classes: int, images: int, size: int, seed: int) -> Drawn:
    """`size` images, each once a pass: "no specific curation of the batches is necessary" (supplement B)."""
    return _drawn(step, _next(step, classes * images, size, seed)[:, None], images, np.arange(size))


def _next(step: int, count: int, size: int, seed: int) -> NDArray[np.int64]:
    turn, place = divmod(step, pass_length(count, size))
    found: NDArray[np.int64] = permutation(seed, turn, count)[(place * size + np.arange(size)) % count]
    return found


def _drawn(step: int, image: NDArray[np.int64], images: int, query: NDArray[np.int64]) -> Drawn:
    return Drawn(step, torch.from_numpy(image), torch.from_numpy(image[:, 0] // images), torch.from_numpy(query))


# Pixels


@dataclass(frozen=True)
class Batches:
    """The batches of a run.

    Attributes:
        draw: the samples of a step. per_pass: steps in which each class, or each image, is loaded once.
        pictures: of the classes' manifest.
    """

    classes: Classes
    pictures: Pictures
    draw: Callable[[int], Drawn]
    per_pass: int
    seed: int

    def read(self, drawn: Drawn, samples: range, parts: range, threads: int = 1) -> Tensor:
        """Pixels (S, P, 3, H, W) of these samples' images in uint8: no information is lost."""

        def one(image: tuple[int, int]) -> Tensor:
            sample, part = image
            row = int(self.classes.flat[int(drawn.image[image])])
            return self.pictures.read_bytes(row, generator(self.seed, drawn.step, sample * drawn.image.shape[1] + part))

        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(one, product(samples, parts)))
        return torch.stack(found).view(len(samples), len(parts), *found[0].shape)
