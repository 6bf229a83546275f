from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from idmetric import CheckpointError, IDSim, checkpoint, load, released
from idmetric.idsim import Head, centre_and_normalise
from tests.conftest import SMALL

VARIANTS = {
    "dinov3_vitb16": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    "dinov2_vitb14": {"depth": 2, "embed_dim": 48, "num_heads": 3},
}


def test_saved_and_loaded_gives_equal_scores(small: IDSim, tmp_path: Path) -> None:
    small.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    x, y = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    for again in (IDSim(tmp_path, device="cpu"), load(tmp_path, device="cpu"), IDSim.from_pretrained(tmp_path)):
        assert again.to("cpu")(x, y, "joint").equal(small(x, y, "joint"))
        assert len(again.revision) == 12
        assert not any(p.requires_grad for p in again.parameters())


def test_the_revision_names_the_weights(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other = IDSim(SMALL["dinov3"], device="cpu")
    other.save_pretrained(tmp_path / "c")
    a, b, c = (load(tmp_path / x, device="cpu").revision for x in "abc")
    assert a == b != c


def test_folders_that_are_no_models(metric: IDSim, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        IDSim(tmp_path / "", device="cpu") if (tmp_path / "model.safetensors").write_bytes(b"") else load(tmp_path)
    metric.save_pretrained(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CheckpointError, match="cannot read weights"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="unknown model 'nothing'"):
        load("nothing")
    with pytest.raises(CheckpointError, match="unknown model 'nothing'"):
        IDSim("nothing")


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_configs_that_do_not_fit(metric: IDSim, tmp_path: Path) -> None:
    for changes, message in (
        ({"format": 99}, "reads 1"),
        ({"model_type": "other"}, "unknown type 'other'"),
        ({"surprise": 1}, "surprise"),
        ({"hidden": 25}, "wrong shape"),
        ({"backbone": "vit_nonsense"}, "no model 'vit_nonsense'"),
    ):
        metric.save_pretrained(tmp_path)
        edit_config(tmp_path, **changes)
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path)


def test_missing_and_extra_weights_are_named(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["extra.weight"] = state.pop("mlp_cls.fc1.weight")
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing mlp_cls\.fc1\.weight; unexpected extra\.weight"):
        load(tmp_path)


def test_an_unreachable_hub_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> str:
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    for use in (lambda: IDSim(), lambda: load("dinov2_vitb14"), lambda: load("someone/something")):
        with pytest.raises(CheckpointError) as caught:
            use()
        message = str(caught.value)
        assert "\n" not in message
        assert "no route to host" in message
        assert "local folder" in message
        assert "--model tiny" in message


def test_a_hub_repository_is_read_at_one_commit(metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "snapshots" / commit
    metric.save_pretrained(folder)
    asked: list[tuple[str, str | None]] = []

    def download(repo: str, filename: str, *, revision: str | None = None, cache_dir: str | None = None) -> str:
        assert repo == "owner/name"
        asked.append((filename, revision))
        return str(folder / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    found = load("owner/name", device="cpu")
    assert found.revision == commit
    assert ("model.safetensors", commit) in asked


def test_push_to_hub_uploads_what_load_reads(metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    made: list[tuple[str, bool]] = []

    class Api:
        def __init__(self, token: str | None = None) -> None:
            assert token == "secret"

        def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> None:
            made.append((repo, private))

        def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> str:
            shutil.copytree(folder_path, tmp_path / "hub")
            return f"https://hub/{repo_id}"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert metric.push_to_hub("owner/name", private=True, token="secret") == "https://hub/owner/name"
    assert made == [("owner/name", True)]
    x, y = torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64)
    assert load(tmp_path / "hub", device="cpu")(x, y).equal(metric(x, y))


# LoRA and the release's format, against peft


class Extractor(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class Twin(nn.Module):
    """The release's module layout: a trunk and two heads, wrapped by peft as a whole."""

    def __init__(self, variant: str, side: int, weights: dict[str, Tensor]) -> None:
        super().__init__()
        trunk = timm.create_model(released.IDSIM[variant].backbone, num_classes=0, img_size=side, **VARIANTS[variant])
        state = dict(weights)
        if "pos_embed" in state:  # Meta's resampling of DINOv2's table, 37 x 37 as pretrained
            table = state["pos_embed"][:, 1:].reshape(1, 37, 37, 48).permute(0, 3, 1, 2)
            factor = (side / 14 + 0.1) / 37
            table = F.interpolate(table, scale_factor=(factor, factor), mode="bicubic")
            state["pos_embed"] = torch.cat([state["pos_embed"][:, :1], table.flatten(2).transpose(1, 2)], 1)
        trunk.load_state_dict(state)
        self.extractor = Extractor(trunk)
        self.mlp_cls, self.mlp_patch = Head(48, 16), Head(48, 16)


def randomise(module: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.1)


@pytest.mark.parametrize("targets", [["qkv", "proj", "fc1", "fc2"], ["qkv"], r".*blocks\.\d+\.(attn\.qkv|mlp\.fc1)"])
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_official_layout_equals_the_peft_model(variant: str, targets: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    patch = 16 if "dinov3" in variant else 14
    side = patch * 4
    pretrained = timm.create_model(released.IDSIM[variant].backbone, num_classes=0, **VARIANTS[variant])
    randomise(pretrained)
    save_file(pretrained.state_dict(), tmp_path / "trunk.safetensors")
    twin = Twin(variant, side, pretrained.state_dict()).eval()
    randomise(twin.mlp_cls)
    randomise(twin.mlp_patch)
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules=targets)
    wrapped = peft.get_peft_model(twin, config).eval()
    randomise_lora = [p for n, p in wrapped.named_parameters() if "lora_" in n]
    with torch.no_grad():
        for parameter in randomise_lora:
            parameter.copy_(torch.randn(parameter.shape) * 0.1)
    folder = tmp_path / f"id-sim_{variant}_cls_patch"
    wrapped.save_pretrained(folder)
    inner = wrapped.base_model.model
    torch.save(inner.mlp_cls.state_dict(), folder / "mlp_cls.pth")
    torch.save(inner.mlp_patch.state_dict(), folder / "mlp_patch.pth")

    state = released.read_idsim(
        released.IDSIM[variant],
        folder=folder,
        backbone_args=VARIANTS[variant],
        backbone_weights=tmp_path / "trunk.safetensors",
        image_size=side,
    )
    checkpoint.write(tmp_path / "folded", state.config, state.state)
    model = IDSim(tmp_path / "folded", device="cpu")
    x = torch.rand(3, 3, side, side)
    found = model(x)
    trunk = inner.extractor.model
    if hasattr(trunk, "rope"):
        trunk.rope.periods = trunk.rope.periods.bfloat16().float()
    with torch.no_grad():
        [(tokens, prefix)] = trunk.forward_intermediates(
            (x - model._mean) / model._std, indices=1, norm=False, return_prefix_tokens=True, output_fmt="NLC",
            intermediates_only=True,
        )  # fmt: skip
        expected_cls = centre_and_normalise(inner.mlp_cls(prefix[:, 0]))
        expected_patches = centre_and_normalise(inner.mlp_patch(tokens))
    assert found.patches is not None
    assert (found.cls - expected_cls).abs().max() <= 1e-4
    assert (found.patches - expected_patches).abs().max() <= 1e-4
    plain = {k: v for k, v in state.state.items() if k.startswith("backbone.")}
    base = load_file(tmp_path / "trunk.safetensors")
    assert any(
        not plain[f"backbone.{k}"].equal(v) for k, v in base.items() if "qkv.weight" in k
    )  # something was folded


def test_an_adapter_that_cannot_be_folded_says_why() -> None:
    state = {"a.weight": torch.zeros(4, 3)}
    good = {"a.lora_A.weight": torch.ones(2, 3), "a.lora_B.weight": torch.ones(4, 2)}
    folded = checkpoint.fold_lora(state, good, {"r": 2, "lora_alpha": 4})
    assert folded["a.weight"].equal(torch.full((4, 3), 4.0))
    assert checkpoint.fold_lora(state, good, {"lora_alpha": 4, "alpha_pattern": {"a": 1}})["a.weight"][0, 0] == 1
    rs = checkpoint.fold_lora(state, good, {"lora_alpha": 4, "use_rslora": True})["a.weight"][0, 0]
    assert rs.item() == pytest.approx(2 * 4 / 2**0.5)
    for adapter, config, message in (
        (good, {"use_dora": True}, "DoRA"),
        (good, {"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"a.bias": torch.ones(4)}, {}, "no LoRA matrix"),
        ({k.replace("a.", "b.", 1): v for k, v in good.items()}, {}, "does not have"),
        ({"a.lora_A.weight": torch.ones(2, 3)}, {}, "half of the pair"),
        ({**good, "a.lora_B.weight": torch.ones(5, 2)}, {}, "do not fit"),
    ):
        with pytest.raises(CheckpointError, match=message):
            checkpoint.fold_lora(state, adapter, config)


def test_heads_are_read_without_running_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"fc1.weight": Evil()}, tmp_path / "mlp_cls.pth")
    with pytest.raises(CheckpointError, match="cannot read the head"):
        released._read_head(tmp_path / "mlp_cls.pth", {})
    assert not (tmp_path / "ran").exists()


def test_rope_periods_are_rounded_as_metas_and_stay_so() -> None:
    model = IDSim(SMALL["dinov3"], device="cpu")
    periods = model.backbone.rope.periods
    assert periods.equal(periods.bfloat16().float())
    unrounded = timm.create_model("vit_small_patch16_dinov3", **SMALL["dinov3"].backbone_args).rope.periods
    assert not periods.equal(unrounded)
    after = model.half().float().backbone.rope.periods
    assert after.equal(periods)
