from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from idmetric import CheckpointError, Embedder, IDSim, NearID, load
from idmetric.metric.checkpoints.lora import check_lora, merge_lora
from idmetric.metric.nearid import NearIDConfig
from tests.conftest import SMALL, random_model


def test_saved_and_loaded_gives_equal_scores(small: IDSim, tmp_path: Path) -> None:
    small.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    x, y = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    for again in (IDSim(tmp_path, device="cpu"), load(tmp_path, device="cpu"), IDSim.from_pretrained(tmp_path)):
        assert again.to("cpu")(x, y, "joint").equal(small(x, y, "joint"))
        assert len(again.revision) == 12
        assert not any(p.requires_grad for p in again.parameters())


def test_weights_and_settings_count_in_the_revision(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path / "a")
    for name in "bd":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    IDSim(SMALL["dinov3"], device="cpu").save_pretrained(tmp_path / "c")
    edit_config(tmp_path / "d", interpolation="bilinear")
    a, b, c, d = (load(tmp_path / name, device="cpu").revision for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3
    with pytest.raises(CheckpointError, match="revision"):
        IDSim("tiny", revision="main")


def test_folders_that_are_no_models(metric: IDSim, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        IDSim(tmp_path / "", device="cpu") if (tmp_path / "model.safetensors").write_bytes(b"") else load(tmp_path)
    metric.save_pretrained(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="unknown model 'nothing'"):
        load("nothing")
    with pytest.raises(CheckpointError, match="'nothing' is neither an existing folder nor a Hub repository"):
        IDSim("nothing")


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    "changes",
    [{"format": 99}, {"model_type": "other"}, {"surprise": 1}, {"hidden": 25}, {"backbone": "vit_nonsense"}],
    ids=str,
)
def test_configs_that_do_not_fit(changes: dict[str, Any], metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path)
    edit_config(tmp_path, **changes)
    [(name, value)] = changes.items()
    with pytest.raises(CheckpointError, match=f"{name}|{value}|mlp_cls"):
        load(tmp_path)


def test_missing_and_extra_weights_are_named(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["extra.weight"] = state.pop("mlp_cls.fc1.weight")
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"mlp_cls\.fc1\.weight.*extra\.weight"):
        load(tmp_path)


@pytest.mark.parametrize("kind", [IDSim, NearID])
def test_a_file_without_tensors_is_refused_and_no_weights_are_drawn(kind: type, tmp_path: Path) -> None:
    model: Embedder = random_model("dinov3")
    if kind is NearID:
        vit = {"embed_dim": 24, "depth": 1, "num_heads": 2}
        model = NearID(NearIDConfig("vit_base_patch16_siglip_224", 48, backbone_args=vit), device="cpu")
    model.save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="missing backbone"):
        load(tmp_path, device="cpu")


@pytest.mark.parametrize("kind", ["backbone", "nearid"])
def test_settings_of_which_no_model_can_be_built_are_named_by_their_folder(kind: str, tmp_path: Path) -> None:
    config = {"model_type": kind, "format": 1, "backbone": "vit_tiny_patch16_224", "image_size": 64}
    config |= {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "backbone_args": {"embed_dim": 7}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{tmp_path.name}.*timm cannot build"):
        load(tmp_path, device="cpu")


def test_the_pointer_of_git_lfs_says_how_to_get_the_file_and_split_weights_are_refused(
    metric: IDSim, tmp_path: Path
) -> None:
    metric.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "model-00001-of-00002.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(tmp_path)
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n")
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*git lfs pull"):
        load(tmp_path)


# LoRA


def test_an_adapter_that_cannot_be_folded_says_why() -> None:
    state = {"a.weight": torch.zeros(4, 3)}
    good = {"a.lora_A.weight": torch.ones(2, 3), "a.lora_B.weight": torch.ones(4, 2)}
    folded = merge_lora(dict(state), good, {"r": 2, "lora_alpha": 4})
    assert folded["a.weight"].equal(torch.full((4, 3), 4.0))
    rs = merge_lora(dict(state), good, {"lora_alpha": 4, "use_rslora": True})["a.weight"][0, 0]
    assert rs.item() == pytest.approx(2 * 4 / 2**0.5)
    for config in (
        {"use_dora": True},
        {"alpha_pattern": {"(.|.)*x": 1}},
        {"fan_in_fan_out": True},
        {"peft_type": "LOHA"},
        {"init_lora_weights": "pissa_niter_4"},
    ):
        with pytest.raises(CheckpointError, match="peft"):
            check_lora(config)
    for adapter in (
        {**good, "a.lora_magnitude_vector": torch.ones(4)},
        {"a.bias": torch.ones(4)},
        {k.replace("a.", "b.", 1): v for k, v in good.items()},
        {"a.lora_A.weight": torch.ones(2, 3)},
        {**good, "a.lora_B.weight": torch.ones(5, 2)},
        {**good, "a.lora_A.weight": torch.ones(2, 4)},
    ):
        with pytest.raises((CheckpointError, RuntimeError)):
            merge_lora(dict(state), adapter, {})
