"""EfficientNet-Lite0 with ImageNet weights in place of Qwen2.5-VL in VisME's recipe.

It embeds the image of a query or candidate and ignores instructions. A text without image is a unit vector of its own,
drawn at random, towards which training moves the images that it describes. Batches, loss and optimizer are the
recipe's; all weights train, without LoRA. Options of the recipe that concern instructions, LoRA and memory
have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric import Backbone
from idmetric.data.manifest.table import Manifest
from idmetric.metric.models.visid import VisIDConfig
from idmetric.train.batches import Pictures, generator
from idmetric.train.ilgen.recipe import set_training
from idmetric.train.processes import Processes
from idmetric.train.visme.config import VisMETraining
from idmetric.train.visme.recipe import VisME


class LiteItems(Backbone):
    """A `Backbone` with the method of `VisIDEmbed` that the recipe calls."""

    def encode_items(self, pixels: Sequence[Tensor | None], words: Sequence[str]) -> Tensor:
        """Unit vectors (N, D): of each image, pixels (3, H, W) in [0, 1], or of its words if it is None."""
        width = int(self.backbone.num_features)  # type: ignore[arg-type]  # an int on every timm model
        found = torch.stack([direction(text, width) for text in words]).to(self.device)
        with_image = [k for k, image in enumerate(pixels) if image is not None]
        if not with_image:
            return found
        images = torch.stack([image for image in pixels if image is not None]).to(self.device)
        embedded = F.normalize(self(images).cls.to(found.dtype), dim=-1)
        return found.index_copy(0, torch.tensor(with_image, device=self.device), embedded)

    def check_limits(self) -> None:
        """Accept any image."""

    def check_words(self, words: str) -> None:
        """Accept any words."""


def direction(text: str, width: int) -> Tensor:
    """A random unit vector that follows from the text alone."""
    drawn = torch.from_numpy(generator("words", text).standard_normal(width)).float()
    return F.normalize(drawn, dim=0)


class LiteVisME(VisME):
    """The recipe with a `LiteItems`."""

    model: Any  # a LiteItems

    def __init__(self, config: VisMETraining, data: Manifest, processes: Processes) -> None:
        super().__init__(config, data, processes)
        self.loader = replace(self.loader, pictures=Pictures.of(self.model, data))

    def initial_model(self, settings: VisIDConfig) -> Any:
        """The encoder, all of it trainable."""
        model = LiteItems(self.config.model, device=self.processes.device)
        set_training(model.requires_grad_(True), True)
        return model


RECIPE = SimpleNamespace(__name__=__name__, Config=VisMETraining, build=LiteVisME)
