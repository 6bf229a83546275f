"""ID-Sim's published format, in folders that peft and timm write here, against those libraries' own models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from idmetric import CheckpointError, IDSim, load, released
from idmetric.idsim import Head
from tests.conftest import SMALL

VARIANTS: dict[str, dict[str, Any]] = {
    "dinov3_vitl16": {"depth": 3, "embed_dim": 64, "num_heads": 4},
    "dinov3_vitb16": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    "dinov2_vitl14": {"depth": 3, "embed_dim": 64, "num_heads": 4},
    "dinov2_vitb14": {"depth": 2, "embed_dim": 48, "num_heads": 3},
}
SUFFIXES = ["qkv", "proj", "fc1", "fc2"]  # these hit the patch embedding and the heads as well
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Extractor(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class Twin(nn.Module):
    """The release's module layout: a trunk and two heads, wrapped by peft as a whole."""

    def __init__(self, variant: str, weights: dict[str, Tensor]) -> None:
        super().__init__()
        shape = VARIANTS[variant]
        trunk = timm.create_model(released.IDSIM[variant].backbone, num_classes=0, img_size=448, **shape)
        state = dict(weights)
        if "pos_embed" in state:  # Meta's resampling of DINOv2's table, 37 x 37 as pretrained
            table = state["pos_embed"][:, 1:].reshape(1, 37, 37, -1).permute(0, 3, 1, 2)
            factor = (448 / 14 + 0.1) / 37
            table = F.interpolate(table, scale_factor=(factor, factor), mode="bicubic")
            state["pos_embed"] = torch.cat([state["pos_embed"][:, :1], table.flatten(2).transpose(1, 2)], 1)
        trunk.load_state_dict(state)
        if hasattr(trunk, "rope"):  # Meta's checkpoints hold them so
            trunk.rope.periods = trunk.rope.periods.bfloat16().float()
        self.extractor = Extractor(trunk)
        self.mlp_cls, self.mlp_patch = Head(shape["embed_dim"], 16), Head(shape["embed_dim"], 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What a hook on the last block sees, through the heads, centred and normalised: (B, D), (B, P, D)."""
        seen: list[Tensor] = []
        trunk = self.extractor.model
        handle = trunk.blocks[-1].register_forward_hook(lambda module, args, out: seen.append(out))
        trunk.forward_features((x - MEAN) / STD)
        handle.remove()
        cls, patches = seen[0][:, 0], seen[0][:, trunk.num_prefix_tokens :]
        return tuple(F.normalize(y - y.mean(-1, keepdim=True), dim=-1)
                     for y in (self.mlp_cls(cls), self.mlp_patch(patches)))  # fmt: skip


def randomise(module: nn.Module, only: str = "") -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if only in name and "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape) * (0.5 if "gamma" in name else 0.1))


def publish(folder: Path, variant: str, targets: Any = SUFFIXES, **options: Any) -> tuple[Path, Path, nn.Module]:
    """An adapter with heads in the release's files, the trunk's file, and the peft model they come from."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    pretrained = timm.create_model(released.IDSIM[variant].backbone, num_classes=0, **VARIANTS[variant])
    randomise(pretrained)
    save_file(pretrained.state_dict(), folder / "trunk.safetensors")
    twin = Twin(variant, pretrained.state_dict())
    randomise(twin.mlp_cls)
    randomise(twin.mlp_patch)
    options = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.05, **options}
    wrapped = peft.get_peft_model(twin, peft.LoraConfig(target_modules=targets, **options)).eval()
    randomise(wrapped, "lora_")
    adapter = folder / f"id-sim_{variant}_cls_patch"
    wrapped.save_pretrained(adapter)
    inner = wrapped.base_model.model
    for name in ("mlp_cls", "mlp_patch"):
        torch.save(getattr(inner, name).state_dict(), adapter / f"{name}.pth")
    return adapter, folder / "trunk.safetensors", inner


def open_release(folder: Path, variant: str, *args: Any, **options: Any) -> tuple[IDSim, nn.Module]:
    adapter, trunk, inner = publish(folder, variant, *args, **options)
    model = load(adapter, backbone_weights=trunk, backbone_args=VARIANTS[variant], device="cpu")
    assert isinstance(model, IDSim)
    return model, inner


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_embeddings_and_distances_are_those_of_the_peft_model(variant: str, tmp_path: Path) -> None:
    geomloss = pytest.importorskip("geomloss")
    model, inner = open_release(tmp_path, variant)
    x, y = torch.rand(2, 3, 448, 448), torch.rand(2, 3, 448, 448)
    y[0] = (x[0] + 0.1 * y[0]).clamp(0, 1)
    with torch.no_grad():
        (cls_x, patches_x), (cls_y, patches_y) = inner(x), inner(y)
    found = model(x)
    assert found.patches is not None
    side = 28 if "dinov3" in variant else 32
    assert found.grid == (side, side)
    assert (found.cls - cls_x).abs().max() <= 1e-4
    assert (found.patches - patches_x).abs().max() <= 1e-4

    cls = 1 - F.cosine_similarity(cls_x, cls_y)
    pooled = 1 - F.cosine_similarity(patches_x.mean(1), patches_y.mean(1))

    def sinkhorn(**options: Any) -> Tensor:
        loss = geomloss.SamplesLoss("sinkhorn", p=2, blur=0.05, backend="tensorized", **options)
        return torch.stack([loss(a[None], b[None])[0] for a, b in zip(patches_x, patches_y, strict=True)])

    debiased = sinkhorn(diameter=2.0)
    expected = {
        "cls": cls,
        "patch_pooled": pooled,
        "joint_pooled": cls + pooled,
        "patch_biased": sinkhorn(scaling=0.05, debias=False),
        "patch": debiased,
        "joint": cls + debiased,
    }
    for name, value in expected.items():
        assert (model(x, y, name) - value).abs().max() <= 1e-4, name
        assert value.max() > 1e-3, name  # or the comparison would show nothing


TARGETS: list[tuple[Any, dict[str, Any]]] = [
    (SUFFIXES, {}),
    (["qkv"], {}),
    (r".*blocks\.\d+\.(attn\.qkv|mlp\.fc1)", {}),
    (SUFFIXES, {"alpha_pattern": {r"extractor\.model\.blocks\.0\.attn\.qkv": 40, r"mlp_cls\.fc1": 60}}),
    (SUFFIXES, {"use_rslora": True, "rank_pattern": {"qkv": 2}, "alpha_pattern": {r"blocks\.0\.attn\.qkv": 3}}),
]


@pytest.mark.parametrize(("targets", "options"), TARGETS)
@pytest.mark.parametrize("variant", ["dinov2_vitb14", "dinov3_vitb16"])
def test_any_target_rank_and_alpha_is_folded(
    variant: str, targets: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    model, inner = open_release(tmp_path, variant, targets, **options)
    x = torch.rand(1, 3, 448, 448)
    with torch.no_grad():
        cls, patches = inner(x)
    found = model(x)
    assert found.patches is not None
    assert (found.cls - cls).abs().max() <= 1e-4
    assert (found.patches - patches).abs().max() <= 1e-4
    base = load_file(tmp_path / "trunk.safetensors")
    changed = {k for k, v in base.items() if k in model.backbone.state_dict() and k != "pos_embed"
               and not model.backbone.state_dict()[k].equal(v)}  # fmt: skip
    assert "blocks.1.attn.qkv.weight" in changed
    assert ("patch_embed.proj.weight" in changed) == (targets == SUFFIXES)


def test_the_release_is_recognised_and_saved_in_our_format(tmp_path: Path) -> None:
    adapter, trunk, _ = publish(tmp_path, "dinov3_vitb16")
    options: dict[str, Any] = {"backbone_weights": trunk, "backbone_args": VARIANTS["dinov3_vitb16"], "device": "cpu"}
    model = IDSim(adapter, **options)
    renamed = adapter.rename(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="variant="):
        IDSim(renamed, **options)
    again = IDSim(renamed, variant="dinov3_vitb16", **options)
    again.save_pretrained(tmp_path / "ours")
    assert model.revision == again.revision
    head = torch.load(renamed / "mlp_cls.pth", weights_only=True)
    torch.save({k: v * 2 for k, v in head.items()}, renamed / "mlp_cls.pth")
    other = IDSim(renamed, variant="dinov3_vitb16", **options)
    config = json.loads((renamed / "adapter_config.json").read_text())
    (renamed / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 80}))
    third = IDSim(renamed, variant="dinov3_vitb16", **options)
    assert len({again.revision, other.revision, third.revision}) == 3  # every file counts
    x, y = torch.rand(1, 3, 50, 50), torch.rand(1, 3, 50, 50)
    assert load(tmp_path / "ours", device="cpu")(x, y, "joint").equal(model(x, y, "joint"))
    (renamed / "mlp_patch.pth").unlink()
    with pytest.raises(CheckpointError, match=r"no mlp_patch\.pth"):
        IDSim(renamed, variant="dinov3_vitb16", **options)


# Against transformers

RENAMED: dict[str, dict[str, str]] = {
    "dinov3": {"norm1": "norm1", "norm2": "norm2", "attn.proj": "attention.o_proj", "mlp.fc1": "mlp.up_proj",
               "mlp.fc2": "mlp.down_proj"},
    "dinov2": {"norm1": "norm1", "norm2": "norm2", "attn.proj": "attention.o_proj", "mlp.fc1": "mlp.fc1",
               "mlp.fc2": "mlp.fc2"},
}  # fmt: skip


def as_transformers(family: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's weights under the names transformers gives them."""
    layers = {"dinov3": "model.layer", "dinov2": "encoder.layer"}[family]
    final = {"dinov3": "norm", "dinov2": "layernorm"}[family]
    patch = {"dinov3": "embeddings.patch_embeddings", "dinov2": "embeddings.patch_embeddings.projection"}[family]
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        if not key.startswith("blocks."):
            name = {"cls_token": "embeddings.cls_token", "reg_token": "embeddings.register_tokens",
                    "pos_embed": "embeddings.position_embeddings"}.get(key, key)  # fmt: skip
            name = name.replace("patch_embed.proj", patch)
            found[f"{final}.{name[5:]}" if name.startswith("norm.") else name] = value
            continue
        _, number, rest = key.split(".", 2)
        start = f"{layers}.{number}."
        if rest in ("gamma_1", "gamma_2", "ls1.gamma", "ls2.gamma"):
            found[f"{start}layer_scale{1 if '1' in rest else 2}.lambda1"] = value
        elif rest.startswith("attn.qkv."):
            for part, own in zip("qkv", value.chunk(3), strict=True):
                found[f"{start}attention.{part}_proj.{rest[9:]}"] = own
        else:
            module, _, kind = rest.rpartition(".")
            found[f"{start}{RENAMED[family][module]}.{kind}"] = value
    return found


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_the_trunk_is_that_of_transformers(variant: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    family, shape = variant[:6], VARIANTS[variant]
    args = {"hidden_size": shape["embed_dim"], "num_hidden_layers": shape["depth"], "image_size": 448,
            "num_attention_heads": shape["num_heads"]}  # fmt: skip
    model = IDSim(released_config(variant, hidden=16), device="cpu")  # new; its preprocessing is the release's
    torch.manual_seed(0)
    randomise(model)
    state = dict(model.backbone.state_dict())
    if family == "dinov3":
        other = transformers.DINOv3ViTModel(
            transformers.DINOv3ViTConfig(
                **args, patch_size=16, intermediate_size=4 * shape["embed_dim"], num_register_tokens=4, key_bias=False,
                query_bias=False, value_bias=False, layer_norm_eps=model.backbone.norm.eps,
            )
        )  # fmt: skip
        other.rope_embeddings.inv_freq = 1 / model.backbone.rope.periods
        blocks = other.model.layer
    else:
        other = transformers.Dinov2Model(transformers.Dinov2Config(**args, patch_size=14, mlp_ratio=4))
        blocks = other.encoder.layer
    missing, extra = other.load_state_dict(as_transformers(family, state), strict=False)
    assert set(missing) <= {"embeddings.mask_token"}
    assert not extra
    seen: list[Any] = []
    blocks[-1].register_forward_hook(lambda module, inputs, out: seen.append(out))
    x = torch.rand(1, 3, 448, 448)
    with torch.no_grad():
        other.eval()((x - MEAN) / STD)
        hidden = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
        prefix = 5 if family == "dinov3" else 1
        cls, patches = model.mlp_cls(hidden[:, 0]), model.mlp_patch(hidden[:, prefix:])
    found = model(x)
    assert found.patches is not None

    def unit(y: Tensor) -> Tensor:
        return F.normalize(y - y.mean(-1, keepdim=True), dim=-1)

    assert (found.cls - unit(cls)).abs().max() <= 1e-4
    assert (found.patches - unit(patches)).abs().max() <= 1e-4


def released_config(variant: str, hidden: int) -> Any:
    from idmetric.idsim import IDSimConfig

    return IDSimConfig(released.IDSIM[variant].backbone, hidden=hidden, backbone_args=VARIANTS[variant])


def test_heads_are_read_without_running_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"fc1.weight": Evil()}, tmp_path / "mlp_cls.pth")
    with pytest.raises(CheckpointError, match="cannot read the head"):
        released._read_head(tmp_path / "mlp_cls.pth", {})
    assert not (tmp_path / "ran").exists()
    for damaged in (b"", b"(((.", b"]q\x00q", b"\x80\x02}q\x00K", b"PK\x03\x04"):
        (tmp_path / "mlp_cls.pth").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"mlp_cls\.pth"):
            released._read_head(tmp_path / "mlp_cls.pth", {})
    torch.save({"ln.weight": torch.ones(3)}, tmp_path / "mlp_cls.pth")
    with pytest.raises(CheckpointError, match=r"mlp_cls\.pth: not an ID-Sim head"):
        released._read_head(tmp_path / "mlp_cls.pth", {})


def test_a_foreign_adapter_or_backbone_is_named(tmp_path: Path) -> None:
    adapter, trunk, _ = publish(tmp_path, "dinov3_vitb16")
    options: dict[str, Any] = {"backbone_weights": trunk, "backbone_args": VARIANTS["dinov3_vitb16"], "device": "cpu"}
    state, file = load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.safetensors"
    save_file({**state, "base_model.model.text.x": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors.*text\.x"):
        IDSim(adapter, **options)
    save_file(state, file)
    weights = load_file(trunk)
    save_file({k: v for k, v in weights.items() if "blocks.1." not in k}, trunk)
    with pytest.raises(CheckpointError, match=r"trunk\.safetensors.*missing blocks\.1"):
        IDSim(adapter, **options)


def test_rope_periods_are_rounded_as_metas_and_stay_so() -> None:
    model = IDSim(SMALL["dinov3"], device="cpu")
    periods = model.backbone.rope.periods
    assert periods.equal(periods.bfloat16().float())
    unrounded = timm.create_model("vit_small_patch16_dinov3", **SMALL["dinov3"].backbone_args).rope.periods
    assert not periods.equal(unrounded)
    after = model.half().float().backbone.rope.periods
    assert after.equal(periods)
