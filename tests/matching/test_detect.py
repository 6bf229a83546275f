"""Detection by words with OWLv2's real class and random weights, against transformers' own processor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.ops import nms

from idmetric.matching import WordDetector
from idmetric.metric.errors import CheckpointError, RequestError
from tests.matching.detector_parts import owlv2

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
HEIGHT, WIDTH = 40, 60
WORDS = ["red mug", "cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owlv2")
    owlv2(path)
    return path


@pytest.fixture(scope="module")
def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8))


@pytest.mark.parametrize("threshold", [0.0, 0.445])
def test_boxes_are_those_of_the_processor_without_overlaps(folder: Path, noise: Image.Image, threshold: float) -> None:
    from transformers import Owlv2ForObjectDetection, Owlv2Processor

    processor, model = Owlv2Processor.from_pretrained(folder), Owlv2ForObjectDetection.from_pretrained(folder)
    boxes, scores, labels = [], [], []
    for word in WORDS:
        inputs = processor(text=[[f"a photo of a {word}"]], images=noise, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        [result] = processor.post_process_grounded_object_detection(outputs, threshold, [(HEIGHT, WIDTH)])
        boxes.append(result["boxes"])
        scores.append(result["scores"])
        labels += [word] * len(result["scores"])
    all_boxes, all_scores = torch.cat(boxes).int().float(), torch.cat(scores)  # the pipeline gives whole pixels
    all_boxes = torch.stack([all_boxes[:, 0::2].clamp(0, WIDTH), all_boxes[:, 1::2].clamp(0, HEIGHT)], 2).flatten(1)
    inside = ((all_boxes[:, 2:] - all_boxes[:, :2]) > 0).all(1).nonzero()[:, 0]
    rows = inside[nms(all_boxes[inside], all_scores[inside], 0.5)].tolist()
    assert len(rows) > 1

    found = WordDetector(WORDS, str(folder), threshold=threshold, device="cpu")(noise)
    expected = {(*all_boxes[row].tolist(), labels[row]) for row in rows}
    assert {(*(region.box or ()), region.label) for region in found} == expected


def test_the_signature_names_weights_threshold_and_words(folder: Path) -> None:
    detectors = [WordDetector(["cat"], str(folder)), WordDetector(["cat"], str(folder), threshold=0.2)]
    assert len({detector.signature for detector in detectors}) == 2
    assert all(str(folder) in detector.signature and "cat" in detector.signature for detector in detectors)


@pytest.mark.parametrize("words", [[], [""], ["cat", " "]])
def test_words_are_needed(words: list[str]) -> None:
    with pytest.raises(RequestError, match="words"):
        WordDetector(words)


def test_weights_of_another_type_are_refused(folder: Path, noise: Image.Image, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "sam2"}))
    with pytest.raises(CheckpointError, match="sam2"):
        WordDetector(["cat"], str(tmp_path), device="cpu")(noise)


@pytest.mark.parametrize("value", [float("nan"), 0.0, float("inf")])
def test_preprocessing_that_is_not_finite_is_refused(
    folder: Path, noise: Image.Image, tmp_path: Path, value: float
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = tmp_path / name
        if path.is_file():
            settings = json.loads(path.read_text())
            for part in (settings, settings.get("image_processor", {})):
                if "image_std" in part:
                    part["image_std"] = [0.3, value, 0.3]
            path.write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="std"):
        WordDetector(["cat"], str(tmp_path), device="cpu")(noise)
