"""Model folders from anybody: their settings are checked, and nothing but their own files is read."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from idmetric import IDSim, load
from idmetric.metric.errors import CheckpointError
from idmetric.metric.idsim import IDSimConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small ViT's model folder, of settings that are right: whole numbers are numbers."""
    size = {"embed_dim": 24, "depth": 2, "num_heads": 2, "drop_path_rate": 0.1, "class_token": True}
    config = IDSimConfig("vit_tiny_patch16_224", 32, 8, backbone_args=size, mean=(0, 0.5, 1), std=(1, 1.0, 1))
    folder = tmp_path / "vit"
    IDSim(config, device="cpu").save_pretrained(folder)
    load(folder, device="cpu")
    return folder


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    settings = {*config, *(field.name for field in fields(IDSimConfig))}
    args = {k: v for k, v in values.items() if k not in settings}
    config |= {k: v for k, v in values.items() if k in settings}
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
        "1 to 16384 pixels"),
        ({"hidden": 10**30}, "vit"), ({"hidden": -1}, "vit"),
        ({"image_size": 2_000_000_000}, "1 to 16384 pixels"),
        ({"image_size": 2e9}, "a whole number"), ({"patch_stages": [0] * 100_000}, "patch_stages"),
        ({"interpolation": "nearest"}, "unknown interpolation 'nearest'"), ({"embed_dim": 10**30}, "timm cannot build"),
        ({"second": "resnet18", "second_size": 2_000_000_000}, "second"),
        ({"backbone": "x" * 1_000_000}, "timm has no model"), ({"model_type": "\n" * 99 + "x" * 9999}, "unknown type"),
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_of_another_type_or_range_is_named(folder: Path, values: dict[str, Any], says: str) -> None:
    change(folder, **values)
    with pytest.raises(CheckpointError, match=says) as error:
        load(folder, device="cpu")
    message = str(error.value)
    assert folder.name in message
    assert "\n" not in message
    assert len(message) < 1100


@pytest.mark.parametrize(
    "argument", ["checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"]
)
def test_a_config_cannot_have_other_files_read_or_fetched(folder: Path, argument: str) -> None:
    change(folder, **{argument: {"url": "http://127.0.0.1:1/x", "file": "/etc/passwd"}})
    with pytest.raises(CheckpointError, match=f"backbone_args may not hold '{argument}'"):
        load(folder, device="cpu")
