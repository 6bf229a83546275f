"""The subjects of a match: their references, embedded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, concatenate, saved_embedding
from idmetric.metric.errors import RequestError
from idmetric.metric.images import check_paths, describe, small_picture, split_images
from idmetric.metric.ties import comparable
from idmetric.scoring.references import distinct
from idmetric.store import Store
from idmetric.stream import embedded, items_of_images

Subjects = Mapping[str, Any]  # name -> images, an Embedding, or the .idm file of one


@dataclass(frozen=True, eq=False)
class Subject:
    """A subject and its K references.

    Attributes:
        references: their names, K.
        pictures: the rows of different pictures among the references; copies are left out.
    """

    name: str
    embedding: Embedding
    references: tuple[str, ...]
    pictures: tuple[int, ...]


def check_subjects(subjects: Subjects) -> None:
    """Refuse subjects without names or files that do not exist, before any work: RequestError, ImageReadError."""
    if not isinstance(subjects, Mapping) or not subjects or "" in subjects:
        raise RequestError("give the subjects as a dict with their names, {'rex': 'refs/rex/'}")
    check_paths(*subjects.values())


def embedded_subject(
    name: str, source: Any, metric: Embedder, distance: str, *, batch_size: int = 32, store: Store | None = None
) -> Subject:
    """Embed the references of a subject, unless they are embedded already.

    Args:
        source: see `Subjects`. distance: that the subject will be compared by.
        batch_size, store: see `idmetric.stream.embedded`.

    Raises:
        RequestError: without references, and for the embedding of another model.
        ImageReadError: naming the reference that cannot be read.
    """
    patches = needs_patches(distance)
    embedding = saved_embedding(source)
    if embedding is not None:
        try:
            embedding.check_maker(metric.model_id, patches)
        except RequestError as error:
            raise RequestError(f"the subject {name}: {error}") from error
        # a row at no distance from an earlier one is a copy of it; without pictures no other copies are found
        is_equal = comparable(distance_matrix(embedding).double().cpu().numpy()) == 0
        pictures = np.flatnonzero(is_equal.argmax(1) == np.arange(len(embedding)))
        names = tuple(embedding.names or ["reference"] * len(embedding))
        return Subject(name, embedding, names, tuple(pictures.tolist()))

    images = split_images(source)
    if not images:
        raise RequestError(f"the subject {name} has no references: give at least one photo of it")
    check_paths(images)
    results = embedded(
        items_of_images(images, [None] * len(images)),
        metric,
        store=store,
        patches=patches,
        batch_size=batch_size,
        also=lambda _, picture: {"small": small_picture(picture)},
    )
    rows, small_pictures = [], []
    for result in results:
        rows.append(result.row)
        small_pictures.append(result.also["small"])
    names = tuple(map(describe, images))
    return Subject(name, concatenate(rows), names, tuple(distinct(np.stack(small_pictures)).tolist()))
