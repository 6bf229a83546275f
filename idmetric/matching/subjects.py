"""The subjects of a match: their references, as their encoders see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from idmetric.matching.result import ALL
from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedding import Embedding, concatenate, saved_embedding
from idmetric.metric.errors import RequestError
from idmetric.metric.images import check_paths, describe, small_picture, split_images
from idmetric.metric.ties import comparable
from idmetric.scoring.references import distinct
from idmetric.store import Store
from idmetric.stream import ImageModel, embedded, items_of_images

Subjects = Mapping[str, Any]  # name -> images, an Embedding, or the .idm file of one


@dataclass(frozen=True, eq=False)
class Subject:
    """A subject and its K references.

    Attributes:
        word: what it is, such as "dog", or "".
        references: their names, K, each another one.
        pictures: the rows of different pictures among the references; copies are left out.
    """

    name: str
    word: str
    embedding: Embedding
    references: tuple[str, ...]
    pictures: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.embedding)


def check_names(subjects: Subjects, words: Mapping[str, str]) -> None:
    """Refuse subjects and class words that do not fit: RequestError."""
    if not isinstance(subjects, Mapping):
        raise RequestError("subjects without names: give a dict, {'rex': 'refs/rex/'}")
    if not subjects:
        raise RequestError("no subjects: give at least one")
    if ALL in subjects or "" in subjects:
        raise RequestError(
            f"a subject cannot be called {ALL!r}, as the summary's last row is, or '': rename such subjects"
        )
    for name in words:
        if name not in subjects:
            raise RequestError(f"words for {name!r}: the subjects are called {', '.join(subjects)}")


def embedded_subject(
    name: str,
    word: str,
    source: Any,
    model: ImageModel,
    distance: str,
    *,
    batch_size: int,
    workers: int | None,
    store: Store | None,
) -> Subject:
    """Embed the references of a subject, unless they are embedded already.

    Args:
        source: see `Subjects`. distance: that the subject will be compared by.
        batch_size, workers, store: see `idmetric.stream.embedded`.

    Raises:
        RequestError: without references. ImageReadError: naming the reference that cannot be read.
    """
    embedding = saved_embedding(source)
    if embedding is not None:
        return Subject(name, word, embedding, _distinct_names(embedding.names, len(embedding)), _different(embedding))

    images = split_images(source)
    if not images:
        raise RequestError(f"the subject {name} has no references: give at least one photo of it")
    check_paths(images)
    results = embedded(
        items_of_images(images, [None] * len(images)),
        model,
        store=store,
        patches=needs_patches(distance),
        batch_size=batch_size,
        workers=workers,
        also=lambda _, picture: {"small": small_picture(picture)},
    )
    embeddings, small_pictures = [], []
    for result in results:
        embeddings.append(result.row)
        small_pictures.append(result.also["small"])

    names = _distinct_names([describe(image) for image in images], len(images))
    pictures = tuple(distinct(np.stack(small_pictures)).tolist())
    return Subject(name, word, concatenate(embeddings), names, pictures)


def _distinct_names(known: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """A name of each reference, no two alike."""
    names = tuple(known or ["reference"] * count)
    if len(set(names)) == count:
        return names
    return tuple(f"{name} {number}" for number, name in enumerate(names))  # such as those of two arrays in memory


def _different(embedding: Embedding) -> tuple[int, ...]:
    """The rows that are at no distance of 0 from an earlier one; without pictures no other copies are found."""
    is_equal = comparable(distance_matrix(embedding).double().cpu().numpy()) == 0
    return tuple(np.flatnonzero(is_equal.argmax(1) == np.arange(len(embedding))).tolist())
