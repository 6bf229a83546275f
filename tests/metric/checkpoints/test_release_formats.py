"""What published ID-Sim folders may hold: Meta's backbone files, other kinds of adapters, names, the Hub's cache.

The oracle is `published.PublishedIDSim`, wrapped, trained and saved by peft.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from idmetric import CheckpointError, IDSim, load
from idmetric.metric.idsim import IDSimConfig
from idmetric.metric.timm_models import build, fitted, read_weights
from idmetric.train.idsim.recipe import untrained
from tests.published import PublishedIDSim, randomize, shape_of

WIDTH, DEPTH, HEADS = 48, 2, 3
ARGS = {"depth": DEPTH, "embed_dim": WIDTH, "num_heads": HEADS}
VARIANT, SIZE = "dinov3_vitb16", 448
FILE = "dinov3_vitb16_pretrain_lvd1689m-73cec8be.pth"

Change = Callable[[Any], None]


def publish(
    folder: Path, *, biases: float = 0.0, dtype: torch.dtype = torch.float32, change: Change | None = None,
    **options: Any,
) -> tuple[Path, Path, Any]:  # fmt: skip
    """The release's four files and Meta's backbone file, and the peft model they were saved from."""
    torch.manual_seed(0)
    twin = PublishedIDSim(shape_of(VARIANT, WIDTH, DEPTH, HEADS), 16).eval()
    randomize(twin)
    for block in twin.extractor.model.blocks:
        with torch.no_grad():
            block.attn.qkv.bias.mul_(biases)
    trunk = folder / "checkpoints" / FILE
    trunk.parent.mkdir()
    torch.save(twin.extractor.model.published_state(), trunk)
    options = {"target_modules": ["qkv", "proj", "fc1", "fc2"], "r": 4, "lora_alpha": 8, **options}
    wrapped = peft.get_peft_model(twin, peft.LoraConfig(**options)).eval()
    randomize(wrapped, "lora_")
    if change is not None:
        change(wrapped)
    for parameter in (*wrapped.base_model.model.mlp_cls.parameters(), *wrapped.base_model.model.mlp_patch.parameters()):
        parameter.data = parameter.data.to(dtype).float()  # what a file of that type can hold
    adapter = folder / f"{VARIANT}_cls_patch"
    wrapped.save_pretrained(adapter)
    for name in ("mlp_cls", "mlp_patch"):
        state = getattr(wrapped.base_model.model, name).state_dict()
        torch.save({key: value.to(dtype) for key, value in state.items()}, adapter / f"{name}.pth")
    return adapter, trunk, wrapped


def agrees(folder: Path, tolerance: float = 2e-6, **options: Any) -> IDSim:
    """Load a folder of `publish` and compare embeddings with the peft model, unmerged and merged by peft."""
    adapter, trunk, wrapped = publish(folder, **options)
    model = IDSim(adapter, backbone_weights=trunk, backbone_args=ARGS, device="cpu")
    x = torch.rand(2, 3, SIZE, SIZE)
    found = model(x)
    assert found.patches is not None
    with torch.no_grad():
        for inner in (wrapped, wrapped.merge_and_unload()):
            cls, patches = inner(x)
            assert (found.cls - cls).abs().max() <= tolerance
            assert (found.patches - patches).abs().max() <= 2 * tolerance
    assert (found.cls[0] - found.cls[1]).abs().max() > 1e-2  # or the comparison would show nothing
    return model


# Meta's backbone file


def test_query_and_value_biases_are_used_and_the_keys_are_not(tmp_path: Path) -> None:
    model = agrees(tmp_path, biases=1.0)
    assert model.config()["backbone"] == "vit_base_patch16_dinov3_qkvb.lvd1689m"
    model.save_pretrained(tmp_path / "ours")
    x = torch.rand(1, 3, SIZE, SIZE)
    assert load(tmp_path / "ours", device="cpu")(x).cls.equal(model(x).cls)


def test_biases_that_a_model_cannot_hold_are_not_dropped(tmp_path: Path) -> None:
    _, trunk, _ = publish(tmp_path, biases=1.0)
    name = "vit_base_patch16_dinov3_qkvb"
    assert "blocks.0.attn.v_bias" in fitted(read_weights(trunk), build(name, args=ARGS, empty=True), name, trunk)
    settings = IDSimConfig("vit_base_patch16_dinov3", 64, 16, backbone_args=ARGS)
    with pytest.raises(CheckpointError, match=r"unexpected .*q_bias"):
        untrained(settings, str(trunk), seed=0)  # what training starts from
    state = torch.load(trunk, weights_only=True)
    state["blocks.1.attn.qkv.bias_mask"][:5] = 0
    torch.save(state, trunk)
    with pytest.raises(CheckpointError, match=r"blocks\.1\.attn\.qkv\.bias_mask hides other biases"):
        read_weights(trunk)


def test_metas_dinov2_file_is_read_too(tmp_path: Path) -> None:
    import timm

    name, args = "vit_base_patch14_dinov2.lvd142m", {"depth": 1, "embed_dim": 48, "num_heads": 3}
    torch.manual_seed(0)
    own = timm.create_model(name, num_classes=0, **args).state_dict()
    save_file(own, tmp_path / "timm.safetensors")
    torch.save({**own, "mask_token": torch.zeros(1, 48)}, tmp_path / "meta.pth")  # the names are the same
    torch.save(own, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    model = build(name, args=args, empty=True)
    expected = fitted(read_weights(tmp_path / "timm.safetensors"), model, name, "timm.safetensors")
    for file in ("meta.pth", "old.pth"):
        found = fitted(read_weights(tmp_path / file), model, name, file)
        assert found.keys() == expected.keys()
        assert all(found[key].equal(expected[key]) for key in expected)


def test_files_that_hold_no_plain_table_of_weights_say_so(tmp_path: Path) -> None:
    adapter, trunk, _ = publish(tmp_path)
    state = torch.load(trunk, weights_only=True)

    for saved in (
        {f"model.{k}": v for k, v in state.items()},
        {"teacher": state},
        {**state, "evil": Path("x")},
        {k: v for k, v in state.items() if "blocks.1." not in k},
    ):
        torch.save(saved, trunk)
        with pytest.raises(CheckpointError, match=FILE):
            IDSim(adapter, backbone_weights=trunk, backbone_args=ARGS, device="cpu")


# Adapters


def test_adapters_and_heads_stored_in_half_are_computed_in_float32(tmp_path: Path) -> None:
    agrees(tmp_path, dtype=torch.bfloat16)


@pytest.mark.parametrize("rslora", [False, True])
def test_an_alpha_for_some_modules_is_plain_lora(rslora: bool, tmp_path: Path) -> None:
    alphas = {"blocks.0.attn.qkv": 32, r"1\.attn\.qkv": 3, "mlp.fc1": 0.5, "mlp_patch.fc1": 24, "^mlp_cls.fc2": 48}
    agrees(tmp_path, alpha_pattern=alphas, rank_pattern={"fc1": 2}, use_rslora=rslora)


@pytest.mark.parametrize(
    "setting", [{"use_dora": True}, {"init_lora_weights": "olora"}, {"init_lora_weights": "pissa"}], ids=str
)
def test_another_kind_of_adapter_is_refused_by_the_file_that_says_so(setting: dict[str, Any], tmp_path: Path) -> None:
    adapter, trunk, _ = publish(tmp_path)
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **setting}))
    with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
        IDSim(adapter, backbone_weights=trunk, backbone_args=ARGS, device="cpu")


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the tensors or settings of a file."""
    if file.suffix == ".json":
        settings = json.loads(file.read_text())
        change(settings)
        file.write_text(json.dumps(settings))
        return
    state = load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)
    change(state)
    save_file(state, file) if file.suffix == ".safetensors" else torch.save(state, file)


LAYER = "base_model.model.extractor.model.blocks.0.attn.qkv"


def drop_a_layer(state: dict[str, Any]) -> None:
    del state[f"{LAYER}.lora_A.weight"], state[f"{LAYER}.lora_B.weight"]


def halve_the_rank(state: dict[str, Any]) -> None:
    state[f"{LAYER}.lora_A.weight"] = state[f"{LAYER}.lora_A.weight"][:2].clone()
    state[f"{LAYER}.lora_B.weight"] = state[f"{LAYER}.lora_B.weight"][:, :2].clone()


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("adapter_model.safetensors", drop_a_layer),
        ("adapter_model.safetensors", dict.clear),
        ("adapter_model.safetensors", halve_the_rank),
        ("adapter_model.safetensors", lambda state: state.update({f"{LAYER}.base_layer.weight": torch.ones(144, 48)})),
        (
            "adapter_model.safetensors",
            lambda state: state.update({f"{LAYER}.lora_A.default.weight": torch.ones(4, 48)}),
        ),
        ("adapter_model.safetensors", lambda state: state.update({f"{LAYER}.weight": torch.ones(144, 48)})),
        ("adapter_model.safetensors", lambda state: state.update({f"{LAYER}.bias": torch.ones(144)})),
        ("adapter_config.json", lambda settings: settings.update(lora_alpha=float("nan"))),
        ("adapter_config.json", lambda settings: settings.update(lora_alpha="16")),
        ("adapter_config.json", lambda settings: settings.update(alpha_pattern={"qkv": "16"})),
        ("adapter_config.json", lambda settings: settings.update(r=0)),
        ("adapter_config.json", lambda settings: settings.update(r=8)),
        ("adapter_config.json", lambda settings: settings.update(target_modules=["nothing"])),
        ("adapter_config.json", lambda settings: settings.update(target_modules=["qkv"])),
        ("adapter_config.json", lambda settings: settings.update(target_modules=None)),
        ("adapter_config.json", lambda settings: settings.update(target_modules="(a|.)*qkv")),
        ("adapter_config.json", lambda settings: settings.update(layers_to_transform=[0])),
        ("adapter_config.json", lambda settings: settings.update(use_rslora="false")),
        ("mlp_cls.pth", lambda state: [state.pop(key) for key in list(state) if key.startswith("fc2.lora_")]),
        ("mlp_cls.pth", lambda state: state.update({"fc1.weight": state["fc1.base_layer.weight"] * 2})),
    ],
)
def test_an_adapter_has_exactly_the_layers_that_its_config_targets(file: str, change: Change, tmp_path: Path) -> None:
    """Each of these opened, and gave another distance, when layers were merged as they came."""
    adapter, trunk, _ = publish(tmp_path)
    edit(adapter / file, change)
    with pytest.raises(CheckpointError, match=r"adapter_|mlp_cls"):
        IDSim(adapter, backbone_weights=trunk, backbone_args=ARGS, device="cpu")


@pytest.mark.parametrize("name", ["ls1.gamma", "gamma_1"])
def test_a_tensor_by_metas_name_and_timms_is_refused(name: str, tmp_path: Path) -> None:
    adapter, trunk, _ = publish(tmp_path)
    other = {"ls1.gamma": "gamma_1", "gamma_1": "ls1.gamma"}[name]
    edit(trunk, lambda state: state.update({f"blocks.0.{key}": torch.ones(WIDTH) for key in (other, name)}))
    with pytest.raises(CheckpointError, match=rf"{FILE}.*gamma"):
        IDSim(adapter, backbone_weights=trunk, backbone_args=ARGS, device="cpu")


@pytest.mark.parametrize(
    "options",
    [
        {"bias": "lora_only"},
        {"bias": "all"},
        {"target_modules": ["qkv", "fc1"], "modules_to_save": ["norm1", "ls2"]},
        {"target_modules": r".*attn\.(qkv|proj)", "modules_to_save": ["mlp_cls", "mlp_patch"]},
    ],
    ids=lambda options: " ".join(f"{k}={v}" for k, v in options.items()),
)
def test_trained_biases_and_whole_modules_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    def train(wrapped: Any) -> None:
        torch.manual_seed(1)
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if parameter.requires_grad and "lora_" not in name:  # what peft saves whole
                    parameter.add_(torch.randn(parameter.shape) * 0.2)
                    assert "bias" in name or "modules_to_save" in name

    agrees(tmp_path, change=train, **options)
