"""Detectors of transformers, with weights from the Hub or a folder (safetensors alone).

| class | published weights | license | finds by | gives |
|---|---|---|---|---|
| `GroundingDino` (Liu et al., ECCV 2024) | IDEA-Research/grounding-dino-base, -tiny | Apache-2.0 | words | boxes |
| `Owlv2` (Minderer et al., NeurIPS 2023) | google/owlv2-base-patch16-ensemble | Apache-2.0 | words, photos | boxes |
| `Sam3` (Carion et al., 2025) | facebook/sam3 | SAM License, login needed | words | boxes, masks |
| `Sam2` (Ravi et al., ICLR 2025) | facebook/sam2.1-hiera-large | Apache-2.0 | a box | its mask |
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from idmetric.matching.detect import Detections, Detector
from idmetric.matching.regions import Box
from idmetric.metric.checkpoints.format import CONFIG, revision_of
from idmetric.metric.checkpoints.pretrained import FILES, folder_revision, open_model, open_processor
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.embedder import auto_device
from idmetric.metric.errors import RequestError
from idmetric.metric.files import need


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A model of transformers; its weights are loaded at the first use.

    Attributes:
        source: `owner/name` on the Hub, or a folder.
        revision: commit, branch or tag on the Hub; default its main branch.
        device: such as cuda:1, mps or cpu; default the best available.
    """

    source: str = ""
    revision: str | None = None
    device: str | None = None

    processor_class: ClassVar[str] = ""
    model_class: ClassVar[str] = ""
    parts: ClassVar[Sequence[str]] = ()  # see `open_model`, as `unused`
    unused: ClassVar[Sequence[str]] = ()

    @cached_property
    def folder(self) -> Path:
        """Where its files are."""
        advice = "in the shell --detector NAME=FOLDER"
        return resolve(self.source, FILES, revision=self.revision, advice=advice)

    @cached_property
    def weights(self) -> str:
        """The name of exactly these weights: repository and commit, or folder and a digest of its files."""
        if Path(self.source).is_dir():
            return f"{self.folder.name}@{folder_revision(self.folder)}"
        return f"{self.source}@{revision_of(self.folder / CONFIG)}"

    @cached_property
    def loaded(self) -> tuple[Any, Any]:
        """Processor and model.

        Raises:
            MissingExtraError: without transformers.
            CheckpointError: naming the weights, if they cannot be fetched, or do not fit the class.
        """
        need("eval", self.model_class, transformers="transformers")
        model = open_model(
            self.model_class,
            self.folder,
            self.parts,
            dtype=torch.float32,  # in half precision some fail, and others find other boxes
            device=self.device or auto_device(),
            unused=self.unused,
        )
        return open_processor(self.processor_class, self.folder), model


@dataclass(frozen=True, kw_only=True)
class GroundingDino(Pretrained, Detector):
    """Grounding DINO, by one word or phrase after the other."""

    source: str = "IDEA-Research/grounding-dino-base"
    threshold: float = 0.25  # transformers' default

    name = "grounding-dino"
    processor_class = "GroundingDinoProcessor"
    model_class = "GroundingDinoForObjectDetection"
    parts = ("grounding-dino", "swin", "bert")

    def candidates(self, image: Image.Image, words: Sequence[str], queries: Sequence[Any]) -> Iterator[Detections]:
        """See `Detector`."""
        processor, model = self.loaded
        for word in words:
            prompt = word.casefold().rstrip(". ") + "."  # as it was trained
            inputs = processor(text=prompt, images=image, return_tensors="pt").to(model.device)
            [result] = processor.post_process_grounded_object_detection(
                model(**inputs), inputs.input_ids, self.threshold, target_sizes=[(image.height, image.width)]
            )
            yield Detections(result["boxes"], result["scores"], [word] * len(result["scores"]))


@dataclass(frozen=True, kw_only=True)
class Owlv2(Pretrained, Detector):
    """OWLv2, by words, or by photos: the query of a photo is its box that stands out most.

    Attributes:
        photo_threshold: `threshold` of photos.
    """

    source: str = "google/owlv2-base-patch16-ensemble"
    threshold: float = 0.1  # transformers' default
    photo_threshold: float = 0.9  # of transformers' example
    overlap: float = 0.5

    name = "owlv2"
    finds_by = ("words", "photos")
    processor_class = "Owlv2Processor"
    model_class = "Owlv2ForObjectDetection"
    parts = ("owlv2",)

    def candidates(self, image: Image.Image, words: Sequence[str], queries: Sequence[Any]) -> Iterator[Detections]:
        """See `Detector`."""
        processor, model = self.loaded
        if words:
            prompts = [f"a photo of a {word}" for word in words]
            inputs = processor(text=[prompts], images=image, return_tensors="pt").to(model.device)
            yield self._processed(model(**inputs), self.threshold, image, words)
        for photos in queries:
            for photo in photos:
                inputs = processor(query_images=photo, images=image, return_tensors="pt").to(model.device)
                outputs = model.image_guided_detection(**inputs)
                outputs["pred_boxes"] = outputs["target_pred_boxes"]
                # transformers' postprocessing of photos divides scores by the best one, which would then always be 1
                yield self._processed(outputs, self.photo_threshold, image, [""])

    def _processed(self, outputs: Any, threshold: float, image: Image.Image, words: Sequence[str]) -> Detections:
        processor, _ = self.loaded
        sizes = [(image.height, image.width)]
        [result] = processor.post_process_grounded_object_detection(outputs, threshold, sizes, [words])
        return Detections(result["boxes"], result["scores"], result["text_labels"])


@dataclass(frozen=True, kw_only=True)
class Sam3(Pretrained, Detector):
    """SAM 3: all instances of each word, with masks.

    Attributes:
        mask_threshold: the lowest probability of a mask's pixels.
    """

    source: str = "facebook/sam3"
    threshold: float = 0.3  # both are transformers' defaults
    mask_threshold: float = 0.5

    name = "sam3"
    processor_class = "Sam3Processor"
    model_class = "Sam3Model"
    parts = ("sam3", "clip_text_model")
    unused = ("tracker_model.", "tracker_neck.")  # the tracker of videos, in the same file

    def candidates(self, image: Image.Image, words: Sequence[str], queries: Sequence[Any]) -> Iterator[Detections]:
        """See `Detector`."""
        processor, model = self.loaded
        pixels = processor(images=image, return_tensors="pt").to(model.device)["pixel_values"]
        vision = model.get_vision_features(pixels)  # of all words
        for word in words:
            tokens = processor.tokenizer(word, return_tensors="pt", padding="max_length", max_length=32)
            outputs = model(vision_embeds=vision, **tokens.to(model.device))
            [result] = processor.post_process_instance_segmentation(
                outputs, self.threshold, self.mask_threshold, [(image.height, image.width)]
            )
            count = len(result["scores"])
            masks = None
            if count:
                masks = result["masks"]
            yield Detections(result["boxes"], result["scores"], [word] * count, masks)


_BY_NAME: dict[str, type[GroundingDino | Owlv2 | Sam3]] = {
    "grounding-dino": GroundingDino,
    "owlv2": Owlv2,
    "sam3": Sam3,
}


def detector_named(choice: str, device: str | None = None, **settings: Any) -> GroundingDino | Owlv2 | Sam3:
    """The detector NAME, or NAME=WEIGHTS: "grounding-dino", "owlv2" or "sam3".

    WEIGHTS are a folder, or `owner/name[@revision]` on the Hub. settings: such as threshold.

    Raises:
        RequestError: for another name.
    """
    name, _, weights = choice.partition("=")
    if name not in _BY_NAME:
        raise RequestError(f"unknown detector {choice!r}: choose {', '.join(_BY_NAME)}, which take =WEIGHTS")
    if os.path.isdir(weights):
        settings["source"] = weights
    elif weights:
        settings["source"], _, revision = weights.partition("@")
        settings["revision"] = revision or None
    return _BY_NAME[name](device=device, **settings)


@dataclass(frozen=True, kw_only=True)
class Sam2(Pretrained):
    """SAM 2.1: the single mask that it predicts for a box."""

    source: str = "facebook/sam2.1-hiera-large"

    processor_class = "Sam2Processor"
    model_class = "Sam2Model"
    parts = ("sam2",)
    unused = (  # the memory with which it tracks objects in videos, in the same file
        "memory_",
        "mask_downsample",
        "object_pointer_proj",
        "temporal_positional_encoding_projection_layer",
        "no_memory_positional_encoding",
        "no_object_pointer",
        "occlusion_spatial_embedding_parameter",
    )

    def mask(self, image: Image.Image, box: Box) -> NDArray[np.bool_]:
        """The object in a box, (H, W)."""
        processor, model = self.loaded
        boxes = [[list(box)]]  # of the image, of its only object
        inputs = processor(images=image, input_boxes=boxes, return_tensors="pt").to(model.device)
        with torch.inference_mode():
            outputs = model(**inputs, multimask_output=False)
        logits = outputs.pred_masks.float().cpu()
        sizes = inputs["original_sizes"].cpu()
        [masks] = processor.post_process_masks(logits, sizes)
        mask: NDArray[np.bool_] = masks[0, 0].numpy().astype(bool)
        return mask
