"""Batches of images: loaded ahead, embedded, checked and joined."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.distance.embedding import Embedding, concatenate
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.kinds import ImageLike, describe

Loaded = TypeVar("Loaded")  # an item that is ready for the model
OnProgress = Callable[[int, int], None]  # called with (images done, images in all) after each batch


def in_batches(
    load: Callable[[int], Loaded],
    run: Callable[[list[Loaded], bool], Embedding],
    images: Sequence[ImageLike | None],
    dtype: torch.dtype,
    batch_size: int,
    patches: bool,
    progress: OnProgress | None = None,
    workers: int = 0,
) -> Embedding:
    """Load and embed items, at most `batch_size` at a time; arguments as for `Embedder.embed`.

    Args:
        load, run: from the number of an item to what the model takes, and from a batch of that to its embedding, with
            or without patches.
        images: of each item; None for a text alone. dtype: of the model. Both are for the message about features that
            are not finite; those of a graph or a compiled model are not checked.
    """
    if workers < 0:
        raise ValueError(f"workers must be at least 0, got {workers}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    with_graph = torch.is_grad_enabled()  # which threads do not inherit

    def read(number: int) -> Loaded:
        with torch.set_grad_enabled(with_graph):
            return load(number)

    parts = []
    done = 0
    with closing(in_order(read, range(len(images)), threads=workers, waiting=2 * batch_size)) as ahead:
        while batch := list(islice(ahead, batch_size)):
            parts.append(run(batch, patches))
            done += len(batch)
            if progress is not None:
                progress(done, len(images))
    embedding = concatenate(parts)

    # once at the end, as it waits for the device, which embeds a batch while the next one is read
    if not with_graph and not torch.compiler.is_compiling():
        embedding.check_finite(["a text" if image is None else describe(image) for image in images], dtype)
    return embedding


def patch_weights(
    images: Sequence[tuple[Tensor, Tensor | None]], grid: tuple[int, int], device: torch.device
) -> Tensor | None:
    """How much of each patch the masks cover, shape (B, rows * columns); None if no image has a mask.

    Args:
        images: pixels (3, h, w) and mask (h, w) or None, of each image.
        grid: rows and columns of patches.
        device: of the result.
    """
    if all(mask is None for _, mask in images):
        return None
    covers = []
    for pixels, mask in images:
        cover = mask
        if cover is None:
            cover = pixels.new_ones(pixels.shape[1:])
        covers.append(cover.to(device, torch.float32))
    weights = F.adaptive_avg_pool2d(torch.stack(covers), grid)
    return weights.flatten(1)


def wants_grad(images: Any) -> bool:
    """Whether an image tensor, alone or in a list, requires grad."""
    candidates = images if isinstance(images, list | tuple) else [images]
    return any(isinstance(image, Tensor) and image.requires_grad for image in candidates)


def warn_of_lost_graph(images: Any) -> None:
    """Warn the caller of `embed` that its result passes no gradients to images that require them."""
    if torch.is_grad_enabled() and wants_grad(images):
        warnings.warn(
            "embed() builds no graph: its result passes no gradient to these images, which require one. Call "
            "metric(pixels) for features with a graph, or detach the images",
            stacklevel=3,
        )
