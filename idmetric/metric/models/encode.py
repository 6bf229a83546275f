"""The interface of sentence-transformers' models, for code that is written for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.images.arrays import is_float
from idmetric.metric.images.kinds import is_array, is_tensor
from idmetric.metric.images.masks import Images
from idmetric.metric.images.read import is_single
from idmetric.metric.models.devices import at_least_float32


def sentence_features(
    embed: Callable[..., Embedding],
    image_size: tuple[int, int],
    images: Images,
    batch_size: int,
    show_progress_bar: bool | None,
    convert_to_numpy: bool,
    convert_to_tensor: bool,
    normalize_embeddings: bool,
    **options: Any,
) -> NDArray[np.float32] | Tensor | list[Tensor]:
    """Global features under the name and with the arguments of sentence-transformers' `encode`.

    >>> vectors = metric.encode(["a.jpg", "b.jpg"])  # (2, D)  # doctest: +SKIP

    Args:
        images: one image gives (D,), a list gives (N, D), in its order; an empty list gives (0, D).
        batch_size, options: as for `embed`, such as masks=; VisIDEmbed also takes task=, instruction=, texts=.
        show_progress_bar: on stderr, from the first batch that takes long.
        convert_to_numpy: an array, float32 for 16-bit models too; False gives a list of tensors.
        convert_to_tensor: one tensor on the model's device instead; goes before convert_to_numpy.
        normalize_embeddings: scale to unit length, so that dot products are cosines.

    Raises:
        ImageReadError, ValueError: as `embed`.
    """
    options = {"batch_size": batch_size, "patches": False, **options}
    if isinstance(images, list | tuple) and not images:  # a blank image shows D
        features = embed(torch.zeros(3, *image_size), patches=False).cls[:0]
    elif show_progress_bar:
        from idmetric.metric.files.progress import Progress  # by tqdm

        with Progress("images") as progress:
            features = embed(images, **{"progress": progress, **options}).cls
    else:
        features = embed(images, **options).cls
    if normalize_embeddings:
        features = F.normalize(at_least_float32(features), dim=-1).to(features.dtype)

    if is_single(images):
        features = features[0]
    if convert_to_tensor:
        return features
    if convert_to_numpy:
        array: NDArray[np.float32] = features.float().cpu().numpy()
        return array
    if is_single(images):
        return features
    return list(features)


def similarity(distance_of: Callable[..., Tensor], a: Any, b: Any, distance: str, options: Mapping[str, Any]) -> Tensor:
    """1 - distance of images (B,); of float vectors (N, D) and (M, D) their cosines (N, M), as sentence-transformers'.

    Args:
        distance_of: the metric.
        a, b: images; or both arrays, tensors or lists of vectors, as `encode` gives them, of which (D,) is one: two
            float arrays (H, W) are no gray images here, which are (H, W, 1).
        distance, options: of `Embedder.similarity`; vectors take no other than "cls", and no masks.

    Raises:
        ValueError: for vectors of different lengths, or other arguments.
    """
    rows_a = _vectors(a, "a")
    rows_b = _vectors(b, "b")
    if rows_a is None or rows_b is None:
        return 1 - distance_of(a, b, distance, **options)
    if distance != "cls" or options:
        raise ValueError("vectors are compared by their cosines: leave out distance and masks, or give the images")
    if rows_a.shape[1] != rows_b.shape[1]:
        raise ValueError(
            f"vectors of {rows_a.shape[1]} and of {rows_b.shape[1]} numbers have no cosine; if these are gray images "
            "(H, W), give them as (H, W, 1)"
        )
    return F.normalize(rows_a, dim=-1) @ F.normalize(rows_b.to(rows_a), dim=-1).mT


def _vectors(source: Any, side: str) -> Tensor | None:
    """Float vectors as rows (N, D); None for other objects. ValueError for a list of vectors of different lengths."""
    if isinstance(source, list | tuple) and source and all(is_array(row) and row.ndim == 1 for row in source):
        lengths = sorted({len(row) for row in source})
        if len(lengths) > 1:
            raise ValueError(
                f"{side} holds vectors of {lengths[0]} to {lengths[-1]} numbers: give vectors of one model"
            )
        source = torch.stack([_tensor(row) for row in source])
    if not is_array(source) or source.ndim not in (1, 2) or not is_float(source):
        return None
    rows = _tensor(source)
    if rows.ndim == 1:
        rows = rows[None]
    return at_least_float32(rows)


def _tensor(array: Any) -> Tensor:
    """An array or a tensor as a tensor; of arrays with negative strides, which torch does not take, a copy."""
    if is_tensor(array):
        return array
    return torch.from_numpy(np.ascontiguousarray(array))
