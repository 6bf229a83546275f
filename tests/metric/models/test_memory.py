"""Loading holds one copy of the weights, whatever torch's default device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from idmetric import Backbone, IDSim, load
from idmetric.metric.checkpoints.weights import load_state


def test_loading_builds_the_encoder_once_and_without_memory(
    small: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.save_pretrained(tmp_path)
    built, original = [], timm.create_model

    def create_model(name: str, **options: Any) -> nn.Module:
        built.append(original(name, **options))
        return built[-1]

    monkeypatch.setattr(timm, "create_model", create_model)
    weights: list[str] = []
    monkeypatch.setattr(
        "idmetric.metric.idsim.load_state",
        lambda module, *rest: (weights.extend({p.device.type for p in module.parameters()}), load_state(module, *rest)),
    )
    x = torch.rand(1, 3, 64, 64)
    assert load(tmp_path, device="cpu")(x).cls.equal(small(x).cls)
    assert len(built) == 1
    assert weights == ["meta"]


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "convit_tiny"])
def test_models_with_tables_that_files_do_not_hold_load_with_them(name: str, tmp_path: Path) -> None:
    args = {"depths": [2, 1, 1, 1], "embed_dim": 24, "num_heads": [1, 2, 2, 2]} if "swin" in name else {}
    model = Backbone(name, pretrained=False, backbone_args=args, device="cpu")
    model.save_pretrained(tmp_path)
    x = torch.rand(1, 3, *model.image_size)
    reloaded: Any = load(tmp_path, device="cpu")
    assert reloaded.backbone(x).equal(model.backbone(x))


def test_a_model_opens_under_a_default_device_without_memory_or_random_numbers(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path)
    x = torch.rand(1, 3, 64, 64)
    state = torch.get_rng_state()
    with torch.device("meta"):
        found = load(tmp_path, device="cpu")
        assert torch.get_rng_state().equal(state)
        encoder = Backbone("resnet18", pretrained=False, device="cpu")
    assert found(x).cls.equal(metric(x).cls)
    assert encoder(x).cls.isfinite().all()
