"""A user's own embedder, named as `package.module:Class`.

The class offers

- `label` (or `model_id`): text that names the weights and every setting on which the embeddings depend;
- `embed(images)`: a list of upright RGB PIL images at their own sizes, to an `Embedding`, or a tensor or array (N, D).

The module is imported: only name modules that you trust. A subclass of `Embedder` is used as it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from idmetric.metric.embedder import Embedder, LoadedImage, weighted
from idmetric.metric.embedding import Embedding
from idmetric.metric.errors import CheckpointError
from idmetric.metric.images import image_of_pixels


def open_custom(name: str, options: dict[str, Any]) -> Embedder:
    """Import the module, and make the class with the options that are given (device, dtype, ...).

    Raises:
        CheckpointError: if the class does not exist, or cannot be made; `Custom` if it does not meet the protocol.
    """
    module, _, attribute = name.partition(":")
    arguments = {}
    for key, value in options.items():
        if value is not None:
            arguments[key] = value
    try:
        make = getattr(importlib.import_module(module), attribute)
        model = make(**arguments)
    except (ImportError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"cannot make the model {name} with the options {arguments}: {error}; is its folder on PYTHONPATH?"
        ) from error
    return model if isinstance(model, Embedder) else Custom(name, model)


class Custom(Embedder):
    """A user's embedder behind the interface of the others; distances `cls`, unless it gives patches on a grid.

    Args:
        name: `package.module:Class`.
        model: the object, see the module.

    Raises:
        CheckpointError: if it lacks a label or `embed`.
    """

    def __init__(self, name: str, model: Any) -> None:
        label = getattr(model, "label", None) or getattr(model, "model_id", None)
        if not isinstance(label, str) or not callable(getattr(model, "embed", None)):
            raise CheckpointError(
                f"{name} needs `label`: text that names its weights and settings, and `embed(images)`: PIL images to "
                "an Embedding or a tensor (N, D)"
            )
        super().__init__(name=name, revision="", image_size=(0, 0), mean=(0, 0, 0), std=(1, 1, 1))
        self._label = label
        self.model = model
        if next(self.parameters(), None) is None:  # an object without weights has a device too
            self.place = nn.Parameter(torch.zeros(1))
        self.requires_grad_(False).eval()  # weights stay on the device where the user has put them
        self.take_revision()

    @property
    def label(self) -> str:
        """See `Embedder.label`: the name, and the object's own label."""
        return f"Custom:{self.name}[{self._label}]"

    @property
    def resolution(self) -> str:
        """Images keep their own size."""
        return "own"

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """See `Embedder.size_for`: an image's own."""
        return height, width

    def config(self) -> dict[str, Any]:
        """See `Embedder.config`."""
        return {"class": self.name, "label": self._label}

    def embed_prepared(self, batch: Sequence[LoadedImage], patches: bool = True) -> Embedding:
        """See `Embedder.embed_prepared`."""
        images = [image_of_pixels(pixels) for pixels, _ in batch]
        embedding = self.model.embed(images)
        if not isinstance(embedding, Embedding):
            embedding = Embedding(torch.as_tensor(embedding))
        count = len(batch)
        features = embedding.cls
        if len(embedding) != count or not features.is_floating_point():
            raise ValueError(
                f"{self.name}.embed({count} images) must give floats of shape ({count}, D), got "
                f"{features.dtype} of shape {tuple(features.shape)}"
            )
        embedding = replace(embedding.detach(), model=self._maker())
        return weighted(embedding, batch, features) if patches else embedding.without_patches()
