"""An exported model with the whole interface of `Embedder`: masks, galleries, protocols."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from idmetric.calibration.apply import Model
from idmetric.distance.embedding import Embedding
from idmetric.images.opening import Decode, checked
from idmetric.models.embedder import Embedder


class OnnxEmbedder(Embedder):
    """An `OnnxModel` as an `Embedder`: the same scores and signature, as tensors on the CPU, without gradients."""

    model_type = "onnx"

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
        self.exported = model
        self._calibration = model.calibration
        self._finish("cpu", None)

    @property
    def device(self) -> torch.device:
        """The CPU, wherever onnxruntime works."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Type of pixels and features."""
        return torch.float32

    @property
    def decode(self) -> Decode:
        """See `Embedder.decode`: chosen when the file is opened."""
        found: Decode = self.exported.decode
        return found

    @decode.setter
    def decode(self, decode: str) -> None:
        if checked(decode) != self.exported.decode:
            raise ValueError(f"{self.name!r} was opened with decode={self.exported.decode!r}: open it again")

    @property
    def label(self) -> str:
        """See `OnnxModel.label`."""
        found: str = self.exported.label
        return found

    def signature(self, distance: str = "cls") -> dict[str, str]:
        """See `OnnxModel.signature`."""
        found: dict[str, str] = self.exported.signature(distance)
        return found

    def calibrated_model(self, files: bool = True) -> Model:
        """See `OnnxModel.calibrated_model`."""
        found: Model = self.exported.calibrated_model()
        return found

    def config(self) -> dict[str, Any]:
        """The facts in the file's metadata."""
        return {**vars(self.exported.facts), "calibration": None}

    def embed_pixels(self, pixels: Tensor) -> Embedding:
        """Embed pixels; ValueError if they require grad."""
        if pixels.requires_grad and torch.is_grad_enabled():
            raise ValueError("an ONNX model has no gradients: use the model that it was exported from")
        found: Embedding = self.exported.run(pixels.float().contiguous().cpu().numpy())
        return found.tensors()

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Refused: an ONNX file is not a model folder."""
        raise ValueError(f"{self.name!r} is a file already: copy it")
