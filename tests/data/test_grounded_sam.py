"""Grounding DINO and SAM 2 as a remover, with tiny random weights in the layout of the published ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from idmetric.data.generate.masks import GroundedSam, open_remover
from idmetric.data.generate.weights import Place, Rejection
from tests import diffusion_parts as parts

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def remover() -> GroundedSam:
    folder = parts.saved()
    weights = {"detector": str(folder / "grounding_dino"), "segmenter": str(folder / "sam2")}
    opened = open_remover("grounded_sam", Place("cpu"), weights, threshold=0.0, least=0.0, most=1.0)
    assert isinstance(opened, GroundedSam)
    return opened


@pytest.fixture
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))


def test_the_box_is_the_best_of_transformers_own(remover: GroundedSam, photo: Image.Image) -> None:
    processor, model = remover.finder.loaded
    for category, phrase in (("Red_Mug", "red mug."), ("cat", "cat.")):
        inputs = processor(text=phrase, images=photo, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        found = processor.post_process_grounded_object_detection(outputs, inputs.input_ids, 0.0, 0.0, [(40, 60)])[0]
        best = int(found["scores"].argmax())
        box, score = remover.box(photo, category)
        assert score == pytest.approx(float(found["scores"][best]), abs=1e-6)
        expected = found["boxes"][best].clamp(min=0).minimum(torch.tensor([60.0, 40.0, 60.0, 40.0])).tolist()
        assert box == pytest.approx(expected, abs=1e-4)
    assert remover.box(photo, "red mug") != remover.box(photo, "cat")


def test_the_mask_is_sams_of_that_box(remover: GroundedSam, photo: Image.Image) -> None:
    box, _ = remover.box(photo, "red mug")
    made = remover.mask(photo, "red mug")
    assert (made.size, made.mode, np.unique(made).tolist()) == (photo.size, "L", [0, 255])

    _, model = remover.sam.model.loaded
    pixels = torch.from_numpy(np.asarray(photo.resize((64, 64), Image.Resampling.BILINEAR)).copy()).permute(2, 0, 1)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    corners = torch.tensor([[[box[0] * 64 / 60, box[1] * 64 / 40, box[2] * 64 / 60, box[3] * 64 / 40]]])
    with torch.no_grad():
        logits = model(((pixels / 255 - mean) / std)[None], input_boxes=corners, multimask_output=False).pred_masks
    by_hand = F.interpolate(logits[0], (40, 60), mode="bilinear", align_corners=False)[0, 0] > 0
    assert ((np.asarray(made) > 0) == by_hand.numpy()).mean() > 0.99  # Pillow and torchvision resize alike, not equally


def test_unlikely_boxes_and_odd_regions_are_rejected(remover: GroundedSam, photo: Image.Image) -> None:
    _, score = remover.box(photo, "red mug")
    share = (np.asarray(remover.mask(photo, "red mug")) > 0).mean()
    unlikely = replace(remover, threshold=score + 1e-6).mask(photo, "red mug")
    assert unlikely == Rejection(f"no red mug is found: the most likely box has probability {score:.2f}")
    large = replace(remover, most=float(share) - 0.01).mask(photo, "red mug")
    assert large == Rejection(f"the region found as red mug covers {share:.1%} of the picture")
