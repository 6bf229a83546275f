"""Batches of images: loaded ahead, embedded, checked and joined."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeVar

import torch

from idmetric.metric.distance.embedding import Embedding, concatenate
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.kinds import ImageLike, describe

Loaded = TypeVar("Loaded")  # a batch that is ready for the model


def in_batches(
    load: Callable[[slice], Loaded],
    run: Callable[[Loaded], Embedding],
    images: Sequence[ImageLike | None],
    dtype: torch.dtype,
    batch_size: int,
    patches: bool,
    progress: Callable[[int, int], None] | None,
    workers: int = 0,
) -> Embedding:
    """Load and embed items, at most `batch_size` at a time; arguments as for `Embedder.embed`.

    Args:
        load, run: from the place of a batch to what the model takes, and from that to its embedding.
        images: of each item; None for a text alone. dtype: of the model. Both are for the message about features that
            are not finite; those of a graph or a compiled model are not checked.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if workers < 0:
        raise ValueError(f"workers must be at least 0, got {workers}")
    count = len(images)
    places = [slice(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    parts = []
    with closing(_ahead(load, places, workers)) as batches:
        for where, loaded in zip(places, batches, strict=True):
            part = run(loaded)
            parts.append(part if patches else Embedding(part.cls, model=part.model))
            if progress is not None:
                progress(where.stop, count)
    embedding = concatenate(parts)

    # once at the end, as it waits for the device, which embeds a batch while the next one is read
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        embedding.check_finite(["a text" if image is None else describe(image) for image in images], dtype)
    return embedding


def _ahead(load: Callable[[slice], Loaded], places: Sequence[slice], workers: int) -> Generator[Loaded, None, None]:
    """load(place) of each place in order; with workers, up to that many are under way while one is used."""
    if not workers:
        yield from map(load, places)
        return
    grad = torch.is_grad_enabled()  # which threads do not inherit

    def loaded(where: slice) -> Loaded:
        with torch.set_grad_enabled(grad):
            return load(where)

    yield from in_order(loaded, places, threads=workers, waiting=workers)
