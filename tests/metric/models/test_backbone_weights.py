"""Files of weights for timm's encoders: read without timm, loaded whole or refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from packaging.version import Version
from safetensors.torch import save_file
from torch import Tensor

from idmetric import Backbone, CheckpointError
from idmetric.metric.checkpoints.weights import SAFE_TORCH
from idmetric.metric.idsim import IDSimConfig
from idmetric.metric.timm_models import build
from idmetric.train.idsim.recipe import untrained
from idmetric.train.nearid import siglip
from idmetric.train.nearid.config import NearIDTraining as NearIDTraining

SMALL: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 2}
SIGLIP = "vit_base_patch16_siglip_224"
SIDE = 32
reads_pickles = pytest.mark.skipif(
    Version(torch.__version__) < Version(SAFE_TORCH), reason="torch 2.10 reads .pth files"
)


def trained(name: str, args: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a model with its classifier, none of them at the value where training begins."""
    torch.manual_seed(0)
    state = timm.create_model(name, **args).state_dict()
    return {
        key: value + 0.1 * torch.rand(value.shape) if value.is_floating_point() else value
        for key, value in state.items()
    }


def save(state: dict[str, Tensor], path: Path) -> Path:
    save_file({key: value.clone() for key, value in state.items()}, path)
    return path


# Every way in: a name, and a function that opens a file of that model's weights


def backbone(path: Path) -> Any:
    return Backbone("vit_tiny_patch16_224", weights=path, image_size=SIDE, backbone_args=SMALL, device="cpu")


def idsim_training(path: Path) -> Any:
    settings = IDSimConfig("vit_tiny_patch16_224", SIDE, 8, backbone_args=SMALL)
    return untrained(settings, str(path), seed=0)


def nearid_training(path: Path) -> Any:
    return siglip.start(NearIDTraining(SIGLIP, str(path), backbone_args=SMALL, image_size=SIDE))


OPENERS = {
    "Backbone": ("vit_tiny_patch16_224", backbone),
    "train idsim": ("vit_tiny_patch16_224", idsim_training),
    "train nearid": (SIGLIP, nearid_training),
}
Opener = Callable[[Path], Any]


@pytest.mark.parametrize(("name", "opened"), OPENERS.values(), ids=OPENERS)
def test_weights_that_do_not_fill_the_model_exactly_are_refused(name: str, opened: Opener, tmp_path: Path) -> None:
    state = trained(name, {**SMALL, "num_classes": 0})
    assert opened(save(state, tmp_path / "whole.safetensors"))

    def refusal(changed: dict[str, Tensor]) -> str:
        file = save(changed, tmp_path / "w.safetensors")
        with pytest.raises(CheckpointError) as error:
            opened(file)
        assert str(file) in str(error.value)
        return str(error.value)

    key = "blocks.1.attn.qkv.bias"
    assert f"missing {key}" in refusal({k: v for k, v in state.items() if k != key})
    assert "unexpected blocks.2.norm1.weight" in refusal({**state, "blocks.2.norm1.weight": torch.zeros(24)})
    assert f"wrong shape {key}" in refusal({**state, key: torch.zeros(7)})
    assert f"wrong type {key} torch.int8" in refusal({**state, key: state[key].to(torch.int8)})

    os.mkfifo(tmp_path / "pipe.pth")
    for path in (tmp_path / "pipe.pth", tmp_path / "absent.pth", tmp_path):
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            opened(path)


@reads_pickles
@pytest.mark.parametrize("changed", [Tensor.to_sparse, lambda value: value.to("meta")], ids=["sparse", "meta"])
def test_tensors_without_plain_values_are_refused(changed: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    state = trained("vit_tiny_patch16_224", {**SMALL, "num_classes": 0})
    state["norm.weight"] = changed(state["norm.weight"])
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"w\.pth"):
        backbone(tmp_path / "w.pth")


class Attack:
    """A pickle that writes a file when it is read."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.target),))


@pytest.mark.parametrize("version", ["2.4.0", "2.9.1", "2.10.0a0+git1234567"])
@pytest.mark.parametrize(("name", "opened"), OPENERS.values(), ids=OPENERS)
def test_no_pickle_is_read_by_a_torch_that_may_run_its_code(
    name: str, opened: Opener, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its ending; torch.load is not even called, and neither is timm."""
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr(timm.models, "load_checkpoint", None)
    for ending in ("pth", "bin", "safetensors"):
        file = tmp_path / f"w.{ending}"
        torch.save(trained(name, {**SMALL, "num_classes": 0}), file)
        with pytest.raises(CheckpointError, match=rf"w\.{ending}"):
            opened(file)


@pytest.mark.parametrize(("name", "opened"), OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize("ending", ["pth", "bin", "safetensors"])
def test_a_pickle_as_weights_runs_no_code(name: str, opened: Opener, ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"w.{ending}"
    torch.save(Attack(tmp_path / "attacked"), file)
    with pytest.raises(CheckpointError, match=rf"w\.{ending}"):
        opened(file)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("argument", ["checkpoint_path", "pretrained_cfg_overlay", "pretrained_cfg", "pretrained"])
def test_arguments_of_timm_cannot_name_another_file_of_weights(argument: str, tmp_path: Path) -> None:
    torch.save(Attack(tmp_path / "attacked"), tmp_path / "w.pth")
    file = str(tmp_path / "w.pth")
    value = {"checkpoint_path": file, "pretrained": True}.get(argument, {"file": file})
    with pytest.raises(ValueError, match=argument):
        Backbone("resnet18", pretrained=False, backbone_args={argument: value})
    assert not (tmp_path / "attacked").exists()


# Weights that fit are loaded as timm loads them


@pytest.mark.parametrize(
    ("name", "args", "side"),
    [
        ("vit_tiny_patch16_224", SMALL, 160), ("vit_small_patch14_dinov2", SMALL, 224), ("flexivit_small", SMALL, 160),
        (SIGLIP, SMALL, 160), ("beit_base_patch16_224", SMALL, 160), ("vit_small_patch16_dinov3", SMALL, 160),
        ("eva02_tiny_patch14_224", SMALL, 140), ("deit_tiny_distilled_patch16_224", SMALL, 160),
        ("swinv2_tiny_window8_256", {"embed_dim": 24, "depths": (1, 1), "num_heads": (2, 2)}, 128),
        ("levit_128s", {}, 224), ("resnet18", {}, 96),
    ],
)  # fmt: skip
def test_weights_with_a_classifier_are_loaded_as_timm_loads_them(
    name: str, args: dict[str, Any], side: int, tmp_path: Path
) -> None:
    state = trained(name, args)
    model = Backbone(name, weights=save(state, tmp_path / "w.safetensors"), image_size=side, backbone_args=args,
                     device="cpu")  # fmt: skip
    size = {"img_size": side} if timm.get_pretrained_cfg(name).fixed_input_size else {}
    timms = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay={"state_dict": state}, num_classes=0, **args, **size
    )
    found = model.backbone.state_dict()
    expected = timms.state_dict()
    assert found.keys() == expected.keys()
    assert all(found[key].equal(expected[key]) for key in expected)


def test_the_biases_of_other_models_than_dinov3_may_not_be_missing(tmp_path: Path) -> None:
    state = trained("beit_base_patch16_224", {**SMALL, "num_classes": 0})
    file = save({key: value for key, value in state.items() if not key.endswith("_bias")}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"missing blocks\.0\.attn\.q_bias"):
        Backbone("beit_base_patch16_224", weights=file, backbone_args=SMALL)
    assert "blocks.0.attn.q_bias" in build("beit_base_patch16_224", args=SMALL).state_dict()
