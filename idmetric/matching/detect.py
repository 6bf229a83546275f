"""Regions by words: transformers' pipeline of zero-shot object detection, with OWLv2 (Minderer et al., NeurIPS 2023).

match(metric, subjects, images, detector=WordDetector(["dog", "person"]))
"""

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

_OVERLAP = 0.5  # intersection over union, above which the less confident of two boxes is dropped


@dataclass(frozen=True)
class WordDetector:
    """Finds what words name; its weights (safetensors alone) are loaded at the first use.

    Attributes:
        words: such as ["dog", "person"]; they are the labels of the regions.
        source: a model of OWLv2's type, `owner/name` on the Hub or a folder; Apache-2.0.
        revision: commit, branch or tag on the Hub; default its main branch.
        threshold: the lowest score of a detection; default that of transformers.
        device: such as cuda:1, mps or cpu; default the best available.

    Raises:
        RequestError: without words.
    """

    words: Sequence[str]
    source: str = "google/owlv2-base-patch16-ensemble"
    revision: str | None = None
    threshold: float = 0.1
    device: str | None = None
    _lock = Lock()  # `match` reads images in several threads

    def __post_init__(self) -> None:
        if not self.words or not all(word.strip() for word in self.words):
            raise RequestError('give words to look for, such as ["dog"]')

    @cached_property
    def folder(self) -> Path:
        """Where its files are."""
        return resolve(self.source, FILES, revision=self.revision, advice="in the shell --detector FOLDER")

    @property
    def signature(self) -> str:
        """Weights, threshold and words."""
        revision = folder_revision(self.folder)
        return f"{self.source}@{revision}, threshold {self.threshold:g}, words {', '.join(self.words)}"

    @cached_property
    def _pipeline(self) -> Any:
        """CheckpointError naming the weights, if they cannot be fetched, or are not OWLv2's."""
        need("eval", "detection by words", transformers="transformers")
        from transformers import pipeline

        device = self.device or auto_device()
        # in half precision some models fail, and others find other boxes
        model = open_model("Owlv2ForObjectDetection", self.folder, ("owlv2",), dtype=torch.float32, device=device)
        parts = open_processor("Owlv2Processor", self.folder)
        with understanding(self.folder):
            check_view(1, parts.image_processor.image_mean, parts.image_processor.image_std)
        task = "zero-shot-object-detection"
        return pipeline(task, model=model, tokenizer=parts.tokenizer, image_processor=parts.image_processor)

    def __call__(self, picture: Image.Image) -> list[Region]:
        """The regions of an RGB picture, most confident first."""
        from torchvision.ops import nms

        prompts = {f"a photo of a {word.strip()}": word.strip() for word in self.words}
        with self._lock:
            found = self._pipeline(picture, candidate_labels=list(prompts), threshold=self.threshold)
        regions, scores = [], []
        for detection in found:
            left, top, right, bottom = (detection["box"][side] for side in ("xmin", "ymin", "xmax", "ymax"))
            left, right = max(left, 0), min(right, picture.width)
            top, bottom = max(top, 0), min(bottom, picture.height)
            if left < right and top < bottom:
                regions.append(Region((left, top, right, bottom), label=prompts[detection["label"]]))
                scores.append(detection["score"])
        boxes = torch.tensor([region.box for region in regions], dtype=torch.float32).reshape(-1, 4)
        return [regions[number] for number in nms(boxes, torch.tensor(scores), _OVERLAP).tolist()]
