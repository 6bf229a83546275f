"""Regions by words: transformers' pipeline of zero-shot detection, with OWLv2 (Minderer et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from PIL import Image

from idmetric.matching.regions import Region
from idmetric.metric.checkpoints.config import check_view
from idmetric.metric.checkpoints.pretrained import FILES, folder_revision, open_model, open_processor
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.embedder import auto_device
from idmetric.metric.errors import RequestError, understanding
from idmetric.metric.files import need


@dataclass(frozen=True)
class WordDetector:
    """Finds what words name; its weights (safetensors alone) are loaded at the first use.

    Attributes:
        words: such as ["dog", "person"], the labels of the regions; RequestError without any.
        source: a model of OWLv2's type, `owner/name` on the Hub or a folder; Apache-2.0.
        threshold: the lowest score of a detection; default that of transformers.
        overlap: of two boxes with a larger intersection over union the less confident one is dropped.
        device: such as cuda:1, mps or cpu; default the best available.
    """

    words: Sequence[str]
    source: str = "google/owlv2-base-patch16-ensemble"
    threshold: float = 0.1
    overlap: float = 0.5
    device: str | None = None
    _lock = Lock()  # `match` reads images in several threads

    def __post_init__(self) -> None:
        if not self.words or not all(word.strip() for word in self.words):
            raise RequestError('give words to look for, such as ["dog"]')

    @cached_property
    def folder(self) -> Path:
        """Where its files are."""
        return resolve(self.source, FILES, advice="in the shell --detector FOLDER")

    @property
    def signature(self) -> str:
        """Weights, threshold and words."""
        settings = f"threshold {self.threshold:g}, overlap {self.overlap:g}, words {', '.join(self.words)}"
        return f"{self.source}@{folder_revision(self.folder)}, {settings}"

    @cached_property
    def _pipeline(self) -> Any:
        """CheckpointError naming the weights, if they cannot be fetched, or are not OWLv2's."""
        need("eval", "detection by words", transformers="transformers")
        from transformers import pipeline

        device = self.device or auto_device()
        model = open_model(
            "Owlv2ForObjectDetection",
            self.folder,
            ("owlv2",),
            dtype=torch.float32,
            device=device,
        )
        words = open_processor("Owlv2Processor", self.folder)
        images = open_processor("Owlv2ImageProcessor", self.folder)
        with understanding(self.folder):
            check_view(1, images.image_mean, images.image_std)
        return pipeline(
            "zero-shot-object-detection",
            model=model,
            tokenizer=words.tokenizer,
            image_processor=images,
        )

    def __call__(self, picture: Image.Image) -> list[Region]:
        """The regions of an RGB picture, most confident first."""
        from torchvision.ops import clip_boxes_to_image, nms, remove_small_boxes

        prompts = {}
        for word in self.words:
            label = word.strip()
            prompts[f"a photo of a {label}"] = label
        with self._lock:
            detections = self._pipeline(
                picture,
                candidate_labels=list(prompts),
                threshold=self.threshold,
            )
        sides = [list(detection["box"].values()) for detection in detections]  # left, top, right, bottom
        boxes = torch.tensor(sides, dtype=torch.float32).reshape(-1, 4)
        boxes = clip_boxes_to_image(boxes, (picture.height, picture.width))
        scores = torch.tensor([detection["score"] for detection in detections])

        regions = []
        rows = remove_small_boxes(boxes, 1)
        apart = nms(boxes[rows], scores[rows], self.overlap)
        for row in rows[apart].tolist():
            left, top, right, bottom = boxes[row].tolist()
            label = prompts[detections[row]["label"]]
            regions.append(Region((left, top, right, bottom), label=label))
        return regions
