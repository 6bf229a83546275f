"""Model folders from anybody: their settings are checked, and nothing but their own files is read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from idmetric import IDSim, load
from idmetric.checkpoints.errors import CheckpointError
from idmetric.checkpoints.lora import merge_lora
from idmetric.models.idsim import IDSimConfig
from idmetric.models.released_idsim import read_head


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small ViT's model folder."""
    size = {"embed_dim": 24, "depth": 2, "num_heads": 2}
    IDSim(IDSimConfig("vit_tiny_patch16_224", 32, 8, backbone_args=size), device="cpu").save_pretrained(tmp_path)
    return tmp_path


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    args = {k: v for k, v in values.items() if k not in config}
    config |= {k: v for k, v in values.items() if k in config}
    if args:
        config["backbone_args"] |= args
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image_size": "32"}, "image_size = '32': a whole number"), ({"image_size": 32.5}, "a whole number"),
        ({"hidden": True}, "hidden = True"), ({"std": [0.5, 0.0, 0.5]}, "std"), ({"mean": [0.5]},
        "a list of 3 numbers"),
        ({"mean": [1e400, 0, 0]}, "mean"), ({"features": "first"}, "one of last-block, final"), ({"backbone": 5},
        "text"),
        ({"residual": "no"}, "true or false"), ({"backbone_args": [1]}, "an object"), ({"image_size": 0},
        "1 pixel or more"),
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_of_another_type_or_range_is_named(folder: Path, values: dict[str, Any], says: str) -> None:
    change(folder, **values)
    with pytest.raises(CheckpointError, match=says):
        load(folder, device="cpu")


@pytest.mark.parametrize(
    "argument", ["checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"]
)
def test_a_config_cannot_have_other_files_read_or_fetched(folder: Path, argument: str) -> None:
    change(folder, **{argument: {"url": "http://127.0.0.1:1/x", "file": "/etc/passwd"}})
    with pytest.raises(CheckpointError, match=f"backbone_args may not hold '{argument}'"):
        load(folder, device="cpu")


def test_weights_that_are_no_numbers_are_refused(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    name = next(k for k in state if k.endswith("fc1.weight"))
    save_file({**state, name: torch.full_like(state[name], float("nan"))}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        load(folder, device="cpu")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_the_heads_of_a_release_are_read_without_running_code(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, (f"open({str(ran)!r}, 'w').close()",)

    path = tmp_path / "mlp_cls.pth"
    path.write_bytes(pickle.dumps(Code()))
    with pytest.raises(CheckpointError, match=r"mlp_cls\.pth"):
        read_head(path, {})
    torch.save({"fc1.weight": Code()}, path)
    with pytest.raises(CheckpointError, match=r"mlp_cls\.pth"):
        read_head(path, {})
    assert not ran.exists()


def test_a_pattern_is_a_name_or_the_end_of_one_and_regular_expressions_are_refused() -> None:
    def alphas(**patterns: float) -> list[float]:
        names = ["a.qkv", "b.qkv", "b.xqkv", "qkv"]
        state = {f"{name}.weight": torch.zeros(1, 1) for name in names}
        adapter = {f"{name}.lora_{x}.weight": torch.ones(1, 1) for name in names for x in "AB"}
        merge_lora(state, adapter, {"lora_alpha": 1, "alpha_pattern": patterns})
        return [state[f"{name}.weight"].item() for name in names]

    assert alphas(qkv=2) == [2, 2, 1, 2]
    assert alphas(**{"b.qkv": 3, "qkv": 2}) == [2, 3, 1, 2]
    assert alphas(**{r"a\.qkv": 4}) == [4, 1, 1, 1]
    for pattern in (".*qkv", "(a+)+b", "[ab].qkv", "a|b", "^qkv", "qkv$", "a{9}", r"\d", ""):
        with pytest.raises(CheckpointError, match=r"alpha_pattern .* is a regular expression: only names of modules"):
            alphas(**{pattern: 2})


def test_settings_that_are_right_still_open_all_kinds_of_model(tmp_path: Path) -> None:
    """The checks refuse nothing that `save_pretrained` writes."""
    for k, (name, args) in enumerate({
        "vit_tiny_patch16_224": {"embed_dim": 24, "depth": 1, "num_heads": 2, "drop_path_rate": 0.1,
        "class_token": True},
        "swin_tiny_patch4_window7_224": {"depths": [1, 1, 1, 1], "embed_dim": 12, "num_heads": [1, 1, 2, 2]},
        "resnet18": {"channels": [4, 4, 8, 8], "output_stride": 16},
        "convnext_atto": {"depths": [1, 1, 1, 1], "dims": [4, 8, 8, 8]},
        "vit_small_patch16_dinov3": {"embed_dim": 24, "depth": 1, "num_heads": 2},
    }.items()):  # fmt: skip
        side = 224 if "swin" in name else 32
        model = IDSim(IDSimConfig(name, side, 8, backbone_args=args, mean=(0, 0.5, 1), std=(1, 1.0, 1)), device="cpu")
        model.save_pretrained(tmp_path / str(k))
        x = torch.rand(1, 3, side, side)
        assert load(tmp_path / str(k), device="cpu")(x).cls.equal(model(x).cls)
