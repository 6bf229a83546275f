"""The interface of sentence-transformers' models, for code that is written for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.files.progress import Progress
from idmetric.metric.images.masks import Images
from idmetric.metric.images.read import is_single
from idmetric.metric.models.devices import at_least_float32
from idmetric.metric.models.preprocessing import Preprocessed


class SentenceEncoder(Preprocessed):
    """A model with `encode`."""

    embed: Callable[..., Embedding]  # see `Embedder.embed`

    def encode(
        self,
        images: Images,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
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
        if isinstance(images, list | tuple) and not images:  # a blank image shows D
            features = self.embed(torch.zeros(3, *self.image_size), patches=False).cls[:0]
        else:
            with Progress("images", bool(show_progress_bar)) as progress:
                options = {"batch_size": batch_size, "patches": False, "progress": progress, **options}
                features = self.embed(images, **options).cls
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
