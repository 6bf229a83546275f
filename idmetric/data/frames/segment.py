"""Masks of boxes, for datasets that publish boxes alone: LaSOT and GOT-10k (ID-Sim, A.2.1).

The paper chose its video datasets for their "availability of mask annotations" and does not say where those of LaSOT
and GOT-10k come from. Here Segment Anything (Kirillov et al., ICCV 2023) draws them from the published boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.frames.clips import Box
from idmetric.data.generate.weights import AUTO, Place, Weights, load_transformer

if TYPE_CHECKING:
    from PIL import Image

SAM = Weights("facebook/sam-vit-base", "apache-2.0")


@dataclass(frozen=True)
class Segmenter:
    """Segment Anything from transformers (safetensors): the single mask that it predicts for a box."""

    place: Place = AUTO
    base: Weights = SAM

    @cached_property
    def model(self) -> tuple[Any, Any]:
        """Processor and model, loaded at the first use.

        Raises:
            WeightsError: if the weights cannot be fetched or are not Segment Anything's.
        """
        return load_transformer(self.base, self.place, "SamProcessor", "SamModel")

    def mask(self, image: Image.Image, box: Box) -> NDArray[np.bool_]:
        """The mask (H, W) of the object in a box: left, top, width, height in pixels."""
        import torch

        processor, model = self.model
        left, top, width, height = box
        corners = [[[left, top, left + width, top + height]]]
        inputs = processor(images=image, input_boxes=corners, return_tensors="pt")
        sizes = [inputs.pop(name) for name in ("original_sizes", "reshaped_input_sizes")]
        with torch.inference_mode():
            logits = model(**inputs.to(self.place.torch_device()), multimask_output=False).pred_masks
            masks = processor.post_process_masks(logits.cpu(), *sizes)
        found: NDArray[np.bool_] = masks[0][0, 0].numpy().astype(bool)
        return found
