"""Loading holds one copy of the weights, and half precision, compilation and memory layout do not change scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from idmetric import Backbone, IDSim, NearID, load
from idmetric.metric.checkpoints.weights import load_state
from idmetric.metric.nearid import NearIDConfig


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


def test_a_model_opens_under_a_default_device_without_memory(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path)
    x = torch.rand(1, 3, 64, 64)
    with torch.device("meta"):
        found = load(tmp_path, device="cpu")
        encoder = Backbone("resnet18", pretrained=False, device="cpu")
    assert found(x).cls.equal(metric(x).cls)
    assert encoder(x).cls.isfinite().all()


def test_loading_leaves_the_random_generator_alone(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    load(tmp_path, device="cpu")
    assert torch.rand(3).equal(expected)


def test_a_loaded_model_can_be_trained_and_its_file_stays(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model = load(tmp_path, device="cpu").requires_grad_(True).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.rand(2, 3, 64, 64)
    model(x).cls[0].dot(model(x).cls[1]).backward()
    optimizer.step()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert not model.state_dict()["mlp_cls.fc1.weight"].equal(metric.state_dict()["mlp_cls.fc1.weight"])


@pytest.mark.parametrize("kind", ["idsim", pytest.param("nearid", marks=pytest.mark.slow)])
def test_compiled_models_give_the_same_scores(kind: str, metric: IDSim) -> None:
    small = NearIDConfig(image_size=56, backbone_args={"depth": 2, "embed_dim": 48, "num_heads": 4})
    model = metric if kind == "idsim" else NearID(small, device="cpu")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.rand(2, 3, 64, 64)
    found, expected = compiled(x), model(x)
    last = model.to(memory_format=torch.channels_last)(x)
    assert (last.cls - expected.cls).abs().max() < 1e-5
    assert found.patches is not None
    assert expected.patches is not None
    assert (found.cls - expected.cls).abs().max() < 1e-5
    assert (found.patches - expected.patches).abs().max() < 1e-5
