"""Detectors of transformers' real classes with random weights: equal to transformers' own postprocessing."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.ops import nms

from idmetric.matching.codes import decode
from idmetric.matching.detect_models import GroundingDino, Owlv2, Sam3
from idmetric.metric.errors import CheckpointError, RequestError
from tests.diffusion_parts import grounding_dino
from tests.matching.detector_parts import owlv2, sam3

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
HEIGHT, WIDTH = 40, 60
SIZES = [(HEIGHT, WIDTH)]
WORDS = ["red mug", "cat"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("detectors")
    for save in (grounding_dino, owlv2, sam3):
        save(root / save.__name__)
    return root


def noise(seed=0, width=WIDTH, height=HEIGHT):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def check(detections, boxes, scores, labels, overlap):
    """Compare with candidates that are clipped, thinned out and ordered here."""
    boxes = torch.stack([boxes[:, 0::2].clamp(0, WIDTH), boxes[:, 1::2].clamp(0, HEIGHT)], 2).flatten(1)
    is_inside = ((boxes[:, 2:] - boxes[:, :2]) >= 1).all(1)
    boxes, scores = boxes[is_inside], scores[is_inside]
    labels = [label for label, inside in zip(labels, is_inside, strict=True) if inside]
    rows = nms(boxes, scores, overlap).tolist()
    assert len(rows) > 1
    assert detections.boxes.tolist() == [pytest.approx(box, abs=1e-3) for box in boxes[rows].tolist()]
    assert detections.scores.tolist() == pytest.approx(scores[rows].tolist(), abs=1e-5)
    assert list(detections.labels) == [labels[row] for row in rows]
    assert detections.scores.tolist() == sorted(detections.scores.tolist(), reverse=True)
    return rows


def test_grounding_dino_asks_for_each_word(folders):
    detector = GroundingDino(source=str(folders / "grounding_dino"), device="cpu", threshold=0.3)
    processor, model = detector.loaded
    boxes, scores, labels = [], [], []
    for word, prompt in zip(WORDS, ("red mug.", "cat."), strict=True):
        inputs = processor(text=prompt, images=noise(), return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        [expected] = processor.post_process_grounded_object_detection(
            outputs, inputs.input_ids, threshold=0.3, target_sizes=SIZES
        )
        boxes.append(expected["boxes"])
        scores.append(expected["scores"])
        labels += [word] * len(expected["scores"])
    check(detector.detect(noise(), ["red  mug", "cat"]), torch.cat(boxes), torch.cat(scores), labels, 0.7)


@pytest.mark.parametrize("threshold", [0.0, 0.445])
def test_owlv2_by_words(folders, threshold):
    detector = Owlv2(source=str(folders / "owlv2"), device="cpu", threshold=threshold)
    processor, model = detector.loaded
    inputs = processor(text=[["a photo of a red mug", "a photo of a cat"]], images=noise(), return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs)
    [expected] = processor.post_process_grounded_object_detection(outputs, threshold=threshold, target_sizes=SIZES)
    labels = [WORDS[number] for number in expected["labels"].tolist()]
    check(detector.detect(noise(), WORDS), expected["boxes"], expected["scores"], labels, 0.5)


def test_owlv2_by_a_photo(folders):
    detector = Owlv2(source=str(folders / "owlv2"), device="cpu", photo_threshold=0.66, overlap=0.3)
    processor, model = detector.loaded
    inputs = processor(query_images=noise(1), images=noise(), return_tensors="pt")
    with torch.no_grad():
        outputs = model.image_guided_detection(**inputs)
    scores = outputs.logits[0].amax(-1).sigmoid()
    [expected] = processor.post_process_image_guided_detection(
        outputs, threshold=0.66, nms_threshold=0.3, target_sizes=torch.tensor(SIZES)
    )
    detections = detector.detect(noise(), references=[noise(1)])
    inside = expected["boxes"].clamp(min=0).minimum(torch.tensor([WIDTH, HEIGHT] * 2))
    order = expected["scores"].argsort(descending=True)
    assert len(order) > 1
    assert torch.allclose(detections.boxes, inside[order], atol=1e-3)
    assert detections.scores[0] == pytest.approx(float(scores.max()), abs=1e-5)  # and not 1, as transformers has it
    assert set(detections.labels) == {""}


def test_photos_are_cut_to_their_masks(folders):
    detector = Owlv2(source=str(folders / "owlv2"), device="cpu", photo_threshold=0.0)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[10:30, 5:45] = 255
    masked = detector.detect(noise(), references=[noise(1)], masks=[mask])
    cut = detector.detect(noise(), references=[noise(1).crop((5, 10, 45, 30))])
    whole = detector.detect(noise(), references=[noise(1)])
    assert torch.equal(masked.scores, cut.scores)
    assert not torch.equal(masked.scores, whole.scores)


def test_sam3_gives_masks(folders):
    detector = Sam3(source=str(folders / "sam3"), device="cpu", threshold=0.0, overlap=1.0)
    processor, model = detector.loaded
    parts = []
    for word in WORDS:
        inputs = processor(images=noise(), text=word, return_tensors="pt")
        inputs.pop("original_sizes")
        with torch.no_grad():
            outputs = model(**inputs)
        [expected] = processor.post_process_instance_segmentation(outputs, 0.0, 0.5, target_sizes=SIZES)
        parts.append(expected)
    boxes, scores, masks = (torch.cat([part[key] for part in parts]) for key in ("boxes", "scores", "masks"))
    labels = [WORDS[0]] * len(parts[0]["scores"]) + [WORDS[1]] * len(parts[1]["scores"])
    detections = detector.detect(noise(), WORDS)
    rows = check(detections, boxes, scores, labels, 1.0)
    assert torch.equal(detections.masks, masks[rows].bool())
    for region, mask in zip(detections.regions, detections.masks, strict=True):
        assert decode(region.mask.code).tolist() == mask.tolist()
        assert region.label in WORDS


def test_regions_have_boxes_scores_and_labels(folders):
    detector = GroundingDino(source=str(folders / "grounding_dino"), device="cpu", threshold=0.0)
    detections = detector.detect(noise(), WORDS)
    for number, region in enumerate(detections.regions):
        assert list(region.box) == detections.boxes[number].tolist()
        assert region.score == detections.scores[number]
        assert region.label == detections.labels[number]


def test_nothing_above_the_threshold_is_no_detection(folders):
    for detector in (
        GroundingDino(source=str(folders / "grounding_dino"), device="cpu", threshold=1.0),
        Owlv2(source=str(folders / "owlv2"), device="cpu", threshold=1.0),
        Sam3(source=str(folders / "sam3"), device="cpu", threshold=1.0),
    ):
        assert detector.detect(noise(), WORDS).regions == []


def test_what_cannot_be_looked_for_is_named_before_the_weights_are_loaded():
    detector = GroundingDino(source="owner/absent")
    for words in ([], [""], ["dog", "  "]):
        with pytest.raises(RequestError, match="give words to look for"):
            detector.detect(noise(), words)
    with pytest.raises(RequestError, match="give words to look for"):
        detector.detect(noise(), ["dog"], references=[noise()])
    with pytest.raises(RequestError, match="grounding-dino finds nothing by photos, but by words"):
        detector.detect(noise(), references=[noise()])


def test_the_signature_has_weights_and_settings(folders, tmp_path):
    detector = Sam3(source=str(folders / "sam3"), threshold=0.4)
    assert detector.signature.startswith("sam3 sam3@")
    assert detector.signature.endswith(", threshold 0.4, overlap 0.7, mask threshold 0.5")
    changed = shutil.copytree(folders / "sam3", tmp_path / "sam3")
    tensors = load_file(changed / "model.safetensors")
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] + 1}, changed / "model.safetensors", {"format": "pt"})
    assert Sam3(source=str(changed), threshold=0.4).signature != detector.signature


def test_weights_that_do_not_fit_are_refused(folders, tmp_path):
    folder = shutil.copytree(folders / "owlv2", tmp_path / "owlv2")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("class_head.dense0.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="missing class_head"):
        Owlv2(source=str(folder)).detect(noise(), ["dog"])

    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        Owlv2(source=str(folder)).detect(noise(), ["dog"])


def test_without_a_network_the_hub_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="google/owlv2-base") as raised:
        Owlv2().detect(noise(), ["dog"])
    assert str(raised.value).endswith("give a local folder, in the shell --detector NAME=FOLDER")


def test_words_do_not_change_each_other(folders):
    """A word that is asked for next to another one is found where it is found alone."""
    detector = GroundingDino(source=str(folders / "grounding_dino"), device="cpu", threshold=0.3, overlap=1.0)
    alone = detector.detect(noise(), ["cat"])
    both = detector.detect(noise(), WORDS)
    rows = [row for row, label in enumerate(both.labels) if label == "cat"]
    assert torch.allclose(both.boxes[rows], alone.boxes)
    assert alone.labels == ["cat"] * len(alone.labels)
