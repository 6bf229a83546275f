"""References of images: photos, or embeddings of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from idmetric.metric.distance import needs_patches
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, concatenate
from idmetric.metric.images import ImageLike, is_single, split_images
from idmetric.metric.masks import Images
from idmetric.metric.paths import is_embedding_file

# references of N images: one for all, one for each, or a list for each (a list of one list is for all); an Embedding,
# or the path of its .idm file, stands for a list
References = Images | Embedding | Sequence[Sequence[ImageLike] | Embedding]


Reference = ImageLike | Embedding  # the latter of one image


def with_files(references: Any, metric: Embedder, distance: str) -> Any:
    """The references, with .idm files read; a single Embedding becomes a list of one.

    Raises:
        RequestError: for an Embedding of another model, or without the patches that the distance compares.
    """
    if isinstance(references, Embedding) or is_embedding_file(references):
        references = [references]
    if not isinstance(references, list | tuple):
        return references
    opened = [Embedding.load(entry) if is_embedding_file(entry) else entry for entry in references]
    for entry in opened:
        if isinstance(entry, Embedding):
            entry.check_maker(metric.model_id, needs_patches(distance))
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
    if isinstance(references, Embedding):
        return list(references)
    return [*split_images(references)]


def joined(references: Sequence[Reference], embed: Callable[[list[ImageLike]], Embedding], patches: bool) -> Embedding:
    """The embeddings of references, in order, of which photos are embedded.

    Args:
        patches: whether patch tokens are needed.
    """
    images = [reference for reference in references if not isinstance(reference, Embedding)]
    if len(images) == len(references):
        return embed(images)
    rows = iter(embed(images)) if images else iter(())
    parts = []
    for reference in references:
        part = reference if isinstance(reference, Embedding) else next(rows)
        parts.append(part if patches else part.without_patches())
    return concatenate([part.to(parts[0].cls.device) for part in parts])
