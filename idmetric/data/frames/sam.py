"""Masks of boxes, by SAM 2.1 (safetensors, Apache-2.0)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.clips import Box
from idmetric.data.generate.weights import Repository
from idmetric.metric.files import need

SEGMENTER = Repository("facebook/sam2.1-hiera-large", "apache-2.0")
_OF_VIDEOS = (  # the memory with which it tracks objects, in the same file
    "memory_",
    "mask_downsample",
    "object_pointer_proj",
    "temporal_positional_encoding_projection_layer",
    "no_memory_positional_encoding",
    "no_object_pointer",
    "occlusion_spatial_embedding_parameter",
)


@dataclass(frozen=True)
class Sam:
    """The model; its weights are loaded at the first use.

    Attributes:
        device: such as cuda:1, mps or cpu; None = the best available.
    """

    weights: Repository = SEGMENTER
    device: str | None = None

    @cached_property
    def loaded(self) -> tuple[Any, Any]:
        """Processor and model; CheckpointError for weights that cannot be fetched, or do not fit."""
        need("generate", "masks of boxes", transformers="transformers")
        import torch

        from idmetric.metric.checkpoints.config import check_view
        from idmetric.metric.checkpoints.pretrained import FILES, open_model, open_processor
        from idmetric.metric.checkpoints.resolve import resolve
        from idmetric.metric.embedder import auto_device
        from idmetric.metric.errors import understanding

        folder = resolve(self.weights.repo, FILES, revision=self.weights.revision, advice="by --segment FOLDER")
        device = self.device or auto_device()
        model = open_model("Sam2Model", folder, ("sam2",), dtype=torch.float32, device=device, unused=_OF_VIDEOS)
        processor = open_processor("Sam2Processor", folder)
        with understanding(folder):
            check_view(1, processor.image_processor.image_mean, processor.image_processor.image_std)
        return processor, model

    def mask(self, photo: Image.Image, box: Box) -> NDArray[np.bool_]:
        """The object in a box, (H, W): the single mask that the model predicts for it."""
        import torch

        processor, model = self.loaded
        boxes = [[list(box)]]  # of the image, of its only object
        inputs = processor(images=photo, input_boxes=boxes, return_tensors="pt").to(model.device)
        with torch.inference_mode():
            outputs = model(**inputs, multimask_output=False)
        logits = outputs.pred_masks.float().cpu()
        [masks] = processor.post_process_masks(logits, inputs["original_sizes"].cpu())
        return np.asarray(masks[0, 0], dtype=bool)
