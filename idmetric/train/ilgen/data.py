"""ILGen's training set: instances of a manifest as classes of N images each, and the images of a step.

(Sections 3.2, 3.3 and 4.1, supplement B.) Images are numbered class by class: number n is image n % N of class n // N.
Each draw follows from (seed, step) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.data.manifest import ManifestError
from idmetric.data.split import image_keys
from idmetric.train.batches import TRAINING, Pictures, fingerprint, generator, permutation, rows_in

if TYPE_CHECKING:
    from pandas import DataFrame

_HOW_TO = "idmetric data generate --task relight makes classes of four images (docs/data/ilgen.md)"


@dataclass(frozen=True)
class Classes:
    """The training set: C classes of N images.

    Attributes:
        rows: of the manifest, (C, N).
        left_out: number of identities that are left out because they have fewer than N images.
        fingerprint: digest of the ids of the images and their identities.
    """

    rows: NDArray[np.int64]
    left_out: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def images(self) -> int:
        """N, images of each class."""
        return int(self.rows.shape[1])

    @property
    def flat(self) -> NDArray[np.int64]:
        """Row (C * N,) of each image; number n is image n % N of class n // N."""
        return self.rows.reshape(-1)


def classes_of(data: DataFrame, images: int, few: Literal["skip", "repeat"] = "skip", seed: int = 0) -> Classes:
    """Each identity of the training split is a class, whatever the roles of its rows; an image counts once.

    The choice of classes and images, and their order, depends on names alone, not on the order of rows.

    Args:
        images: N. Of a larger class N images are chosen for the whole training, as the paper samples 4 images of each
            class of real data (section 4.1).
        few: identities with fewer images are left out ("skip"; section 4.1 takes "classes with at least 4 images"), or
            their images are repeated ("repeat"), and differ by augmentation alone.
        seed: of the choice of images.
    """
    columns = data[["id", "identity"]].assign(image=image_keys(data)).loc[rows_in(data, TRAINING)]
    different = columns.drop_duplicates(["identity", "image"]).sort_values("id")
    rows_of = {name: list(group.index) for name, group in different.groupby("identity")}  # in order of names

    class_names = [name for name, rows in rows_of.items() if few == "repeat" or len(rows) >= images]
    if len(class_names) < 2:
        raise ManifestError(
            f"{len(class_names)} of the {len(rows_of)} identities of the training split have {images} different "
            "images, the N of a class, and two are needed: column identity says which images are of one class; a lower "
            f"--images takes fewer, --few-images repeat repeats them; {_HOW_TO}"
        )
    class_rows = []
    for name in class_names:
        rows = rows_of[name]
        if len(rows) > images:
            chosen = generator(seed, "images", name).permutation(len(rows))[:images]
            rows = [rows[k] for k in sorted(chosen)]
        class_rows.append([rows[k % len(rows)] for k in range(images)])
    digested = [[name, *data["id"][rows]] for name, rows in zip(class_names, class_rows, strict=True)]
    return Classes(np.array(class_rows, np.int64), len(rows_of) - len(class_names), fingerprint(digested))


# The samples of a step


class Drawn(NamedTuple):
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
    return math.ceil(count / size)


def draw_classes(step: int, classes: int, images: int, size: int, seed: int) -> Drawn:
    """`size` (B) different classes with all their images, one of each class as the query (section 3.3).

    A pass draws each class once, "until all classes have been loaded in a batch" (section 4.1).
    """
    chosen = _next(step, classes, size, seed)
    image = (chosen[:, None] * images + np.arange(images)).reshape(-1, 1)
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
    """The classes or images that a step loads."""
    number, batch = divmod(step, pass_length(count, size))
    order: NDArray[np.int64] = permutation(seed, number, count)
    return order[(batch * size + np.arange(size)) % count]


def _drawn(step: int, image: NDArray[np.int64], images: int, query: NDArray[np.int64]) -> Drawn:
    return Drawn(step, torch.from_numpy(image), torch.from_numpy(image[:, 0] // images), torch.from_numpy(query))


@dataclass(frozen=True)
class ILGenBatches:
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

        def read_image(place: tuple[int, int]) -> Tensor:
            sample, part = place
            row = int(self.classes.flat[int(drawn.image[place])])
            return self.pictures.read_bytes(row, generator(self.seed, drawn.step, sample * drawn.image.shape[1] + part))

        with ThreadPoolExecutor(threads) as pool:
            images = list(pool.map(read_image, product(samples, parts)))
        return torch.stack(images).view(len(samples), len(parts), *images[0].shape)
