"""An exported model with the whole interface of `Embedder`: masks, galleries, protocols."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from idmetric.calibration.apply import Model
from idmetric.distance.embedding import Embedding
from idmetric.images.opening import mark_of
from idmetric.models.embedder import Embedder


class OnnxEmbedder(Embedder):
    """An `OnnxModel` as an `Embedder`: the same scores and signature, as tensors on the CPU, without gradients."""

    def __init__(self, model: Any) -> None:  # an OnnxModel; its module imports this one
        facts = model.facts
        super().__init__(
            name=model.name,
            revision=model.revision,
            image_size=facts.image_size,
            mean=facts.mean,
            std=facts.std,
            interpolation=facts.interpolation,
            background=facts.background,
            preprocessing=facts.preprocessing,
        )
        self.exported, self.facts = model, facts
        self._decode, self._calibration = model.decode, model.calibration
        self.place = nn.Parameter(torch.zeros(1))  # has the device and the type of pixels and features
        self._finish("cpu", None)

    @property
    def label(self) -> str:
        """As of the `OnnxModel`."""
        return f"{self.facts.shown_label}{mark_of(self._decode)}"

    def signature(self, distance: str = "cls") -> dict[str, str]:
        """As of the `OnnxModel`; the dtype is that of the weights in the file."""
        return {**super().signature(distance), "dtype": self.exported.dtype}

    def calibrated_model(self, files: bool = True) -> Model:
        """As of the `OnnxModel`."""
        return Model("OnnxModel", f":{self.label}", self.revision, None, self.resolution)

    def config(self) -> dict[str, Any]:
        """The facts in the file's metadata."""
        return {**vars(self.facts), "calibration": None}

    def embed_pixels(self, pixels: Tensor) -> Embedding:
        """Embed pixels; ValueError if they require grad."""
        if pixels.requires_grad and torch.is_grad_enabled():
            raise ValueError("an ONNX model has no gradients: use the model that it was exported from")
        found: Embedding = self.exported.run(pixels.float().contiguous().cpu().numpy())
        return found.tensors()
