"""Masks of named objects on any background, by Grounding DINO and SAM 2.1.

ILGen removes backgrounds with RMBG v1.4 (appendix A): its weights need code of their repository and forbid commercial
use. Here Grounding DINO (Liu et al., ECCV 2024) finds the box of what the category names, and SAM 2.1 (Ravi et al.,
ICLR 2025) the mask of the object in that box. transformers has both models, their weights are safetensors under
Apache-2.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.generate.errors import Rejected
from idmetric.data.generate.regions import mask_of
from idmetric.data.generate.weights import AUTO, Place, Weights, WeightsError, need, version

DETECTOR = Weights("IDEA-Research/grounding-dino-base", "apache-2.0")
SEGMENTER = Weights("facebook/sam2.1-hiera-large", "apache-2.0")
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class GroundedSam:
    """Finds the object by its category's name: the most likely box of Grounding DINO, cut out by SAM 2.1.

    RMBG needs no name and returns a soft mask; this one is of 0 and 255, and takes one object where there are several.

    Attributes:
        threshold: smallest probability of a box; 0.25 is the default of Grounding DINO in transformers.
        least, most: share of the picture that an object may cover.
    """

    place: Place = AUTO
    detector: Weights = DETECTOR
    segmenter: Weights = SEGMENTER
    threshold: float = 0.25
    least: float = 0.02
    most: float = 0.9

    name: ClassVar[str] = "grounded_sam"

    @property
    def settings(self) -> dict[str, Any]:
        values = {"threshold": self.threshold, "least": self.least, "most": self.most}
        return {"remover": self.name, "detector": self.detector.key, "segmenter": self.segmenter.key, **values}

    @property
    def licences(self) -> dict[str, str]:
        return {weights.key: weights.licence for weights in (self.detector, self.segmenter)}

    @cached_property
    def versions(self) -> dict[str, str]:
        return {"detector": version(self.detector), "segmenter": version(self.segmenter)}

    def load(self) -> None:
        _ = self.models

    @cached_property
    def models(self) -> tuple[Any, Any, Any, Any]:
        """Processor and model of the detector, then of the segmenter."""
        detector = self._opened(self.detector, "GroundingDinoProcessor", "GroundingDinoForObjectDetection")
        return (*detector, *self._opened(self.segmenter, "Sam2Processor", "Sam2Model"))

    def _opened(self, weights: Weights, processor: str, model: str) -> tuple[Any, Any]:
        need("transformers")
        import transformers

        options = {} if weights.local else {"revision": weights.revision}
        try:
            words = getattr(transformers, processor).from_pretrained(weights.repo, **options)
            found = getattr(transformers, model).from_pretrained(weights.repo, use_safetensors=True, **options)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise WeightsError(f"cannot load {weights} as {model}: {error}") from error
        return words, found.eval().to(self.place.torch_device())

    def mask(self, image: Image.Image, category: str) -> Image.Image:
        photo = image.convert("RGB")
        box, score = self.box(photo, category)
        if score < self.threshold:
            raise Rejected(f"no {category} is found: the most likely box has probability {score:.2f}")
        return mask_of(self.body(photo, box), self.least, self.most, f"the region found as {category}")

    def box(self, photo: Image.Image, category: str) -> tuple[Box, float]:
        """The most likely box of a category in pixels, and its probability."""
        import torch

        processor, model, _, _ = self.models
        phrase = " ".join(category.replace("_", " ").casefold().split()).rstrip(". ") + "."  # as it was trained
        inputs = processor(text=phrase, images=photo, return_tensors="pt").to(self.place.torch_device())
        with torch.inference_mode():
            outputs = model(**inputs)
        scores = outputs.logits[0].float().sigmoid().amax(-1)  # of each query, over the phrase's tokens
        best = int(scores.argmax())
        x, y, width, height = outputs.pred_boxes[0, best].float().tolist()
        sides = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        left, top, right, bottom = (min(max(side, 0.0), 1.0) for side in sides)
        return (left * photo.width, top * photo.height, right * photo.width, bottom * photo.height), float(scores[best])

    def body(self, photo: Image.Image, box: Box) -> NDArray[np.bool_]:
        """The object in a box, (H, W)."""
        import torch

        _, _, processor, model = self.models
        inputs = processor(images=photo, input_boxes=[[list(box)]], return_tensors="pt")
        inputs = inputs.to(self.place.torch_device())
        with torch.inference_mode():
            outputs = model(**inputs, multimask_output=False)
        masks = processor.post_process_masks(outputs.pred_masks.float().cpu(), inputs["original_sizes"].cpu())
        found: NDArray[np.bool_] = masks[0].reshape(-1, photo.height, photo.width)[0].numpy().astype(bool)
        return found
