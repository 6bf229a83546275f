"""Subjects: the references of an identity, embedded once and kept with their thumbnails.

rex = embed_subject(metric, "refs/rex/", name="rex", word="dog")
rex.save("rex.subject")
"""

from __future__ import annotations

import numpy as np

from idmetric.metric.distance import needs_patches
from idmetric.metric.embedding import concatenate
from idmetric.metric.errors import RequestError
from idmetric.metric.images import check_paths, describe, small_picture, split_images
from idmetric.metric.masks import Images, Masks, split_masks
from idmetric.metric.subject import Subject
from idmetric.store import Store
from idmetric.stream import ImageModel, embedded, items_of_images


def embed_subject(
    metric: ImageModel,
    references: Images,
    *,
    name: str,
    word: str = "",
    masks: Masks = None,
    threshold: float | None = None,
    distance: str = "cls",
    batch_size: int = 32,
    workers: int | None = None,
    cache: Store | None = None,
) -> Subject:
    """Embed the references of a subject.

    Args:
        references: a path, a folder, a pattern, an image, or a list of these. masks: see `Embedder.embed`.
        word: what the subject is, such as "dog". threshold: see `Subject`.
        distance: that the subject will be compared by; of "cls" the file is small.
        batch_size, workers, cache: see `idmetric.stream.embedded`.

    Raises:
        RequestError: without a name or references.
        ImageReadError: naming the reference that cannot be read.
    """
    images = split_images(references)
    if not name:
        raise RequestError("a subject needs a name")
    if not images:
        raise RequestError(f"the subject {name} has no references: give at least one photo of it")

    single_masks = split_masks(masks, images)
    check_paths(images, single_masks)
    results = embedded(
        items_of_images(images, single_masks),
        metric,
        store=cache,
        patches=needs_patches(distance),
        batch_size=batch_size,
        workers=workers,
        also=lambda _, picture: {"thumbnail": small_picture(picture)},
    )
    embeddings, thumbnails = [], []
    for seen in results:
        embeddings.append(seen.row)
        thumbnails.append(seen.also["thumbnail"])

    names = [describe(image) for image in images]
    if len(set(names)) < len(names):  # such as those of two arrays in memory
        names = [f"{shared} {number}" for number, shared in enumerate(names)]
    return Subject(
        name=name,
        embedding=concatenate(embeddings),
        references=tuple(names),
        thumbnails=np.stack(thumbnails),
        word=word,
        threshold=threshold,
        signature={**metric.signature(), "distance": distance},
    )
