"""References of images: photos, or subjects, which hold the embeddings and the thumbnails of theirs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, concatenate
from idmetric.metric.images import ImageLike, is_single, split_images
from idmetric.metric.masks import Images
from idmetric.metric.paths import is_subject_file
from idmetric.metric.subject import Subject

# references of N images: one for all, one for each, or a list for each (a list of one list is for all); a subject, or
# the path of its file, stands for a list
References = Images | Subject | Sequence[Sequence[ImageLike] | Subject]


@dataclass(frozen=True, eq=False)
class SubjectPhoto:
    """One reference of a subject, by its number."""

    subject: Subject
    number: int

    @property
    def thumbnail(self) -> NDArray[np.uint8]:
        """The photo at (96, 96, 3)."""
        thumbnail: NDArray[np.uint8] = self.subject.thumbnails[self.number]
        return thumbnail

    def embedding(self, patches: bool) -> Embedding:
        """Its features, (1, D)."""
        embedding = self.subject.embedding[[self.number]]
        return embedding if patches else embedding.without_patches()


Reference = ImageLike | SubjectPhoto


def with_subjects(references: Any, metric: Embedder, distance: str) -> Any:
    """The references, with files of subjects read; a single subject becomes a list of one.

    Raises:
        RequestError: for a subject of another model, or without the patches that the distance compares.
    """
    if isinstance(references, Subject) or is_subject_file(references):
        references = [references]
    if not isinstance(references, list | tuple):
        return references
    opened = [Subject.load(entry) if is_subject_file(entry) else entry for entry in references]
    for entry in opened:
        if isinstance(entry, Subject):
            entry.check(metric.model_id, distance)
    return opened


def grouped(references: References, count: int) -> tuple[list[Reference], list[list[int]]]:
    """All references as one list, and the rows in it that belong to each of `count` images.

    Raises:
        ValueError: if they are not one or `count` references or lists of references, or a list is empty.
    """
    if isinstance(references, Tensor | np.ndarray) and references.ndim == 5:
        references = list(references)
    lists: list[list[Reference]] = []
    if isinstance(references, str | os.PathLike):  # an image, a folder or a pattern: for all
        lists.append([*split_images(references)])
    elif isinstance(references, list | tuple) and not all(map(is_single, references)):
        lists += map(_photos, references)
    else:
        lists += ([image] for image in split_images(references))  # type: ignore[arg-type]  # it is flat
    if len(lists) not in (1, count) or not all(lists):
        raise ValueError(f"{count} images and {len(lists)} references: give one, or one (or a list) for each image")

    groups: list[list[int]] = []
    joined: list[Reference] = []
    for photos in lists:
        start = len(joined)
        joined += photos
        groups.append(list(range(start, len(joined))))
    return joined, groups * count if len(groups) == 1 else groups


def _photos(references: Any) -> list[Reference]:
    """The references of one image."""
    if isinstance(references, Subject):
        return [SubjectPhoto(references, number) for number in range(len(references))]
    return [*split_images(references)]


def embedded(
    references: Sequence[Reference], embed: Callable[[list[ImageLike]], Embedding], patches: bool
) -> Embedding:
    """The embeddings of references, in order; those of subjects are taken from them.

    Args:
        patches: whether patch tokens are needed.
    """
    images = [reference for reference in references if not isinstance(reference, SubjectPhoto)]
    if len(images) == len(references):
        return embed(images)
    rows = iter(embed(images)) if images else iter(())
    parts = []
    for reference in references:
        parts.append(reference.embedding(patches) if isinstance(reference, SubjectPhoto) else next(rows))
    return concatenate([part.to(parts[0].cls.device) for part in parts])
