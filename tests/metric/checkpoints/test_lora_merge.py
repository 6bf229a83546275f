from __future__ import annotations

import copy
from typing import Any

import peft
import pytest
import timm
import torch
from torch import Tensor, nn

from idmetric.train.lora import attach, folded, target_names

# name, arguments, linear layers of a block
TIMM = {
    "vit": ("vit_tiny_patch16_224", {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32}, 4),
    "siglip": ("vit_base_patch16_siglip_224", {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32}, 4),
    "dinov3": ("vit_small_patch16_dinov3", {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 32}, 4),
    "swin": (
        "swinv2_tiny_window8_256",
        {"embed_dim": 24, "depths": (1, 1), "num_heads": (2, 2), "img_size": 32, "window_size": 4},
        4,
    ),
}


def folded_state(model: nn.Module) -> dict[str, Tensor]:
    with folded(model):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def vit(kind: str = "vit") -> Any:
    torch.manual_seed(0)
    name, options, _ = TIMM[kind]
    model = timm.create_model(name, num_classes=0, **options).eval()
    with torch.no_grad():
        for part, p in model.named_parameters():
            if part.endswith(("gamma_1", "gamma_2", "ls1.gamma", "ls2.gamma", "norm1.weight", "norm2.weight")):
                p.fill_(1.0)  # some begin so small that blocks do nothing
    return model


def picture(model: Any) -> Tensor:
    return torch.randn(2, 3, *model.patch_embed.img_size, generator=torch.Generator().manual_seed(0))


def shake(module: nn.Module, seed: int = 1) -> None:
    """Adapters as after some training: B is no longer 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if "lora_" in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))


def test_the_seed_alone_decides_the_adapters() -> None:
    def drawn(seed: int, noise: int) -> list[Tensor]:
        model = vit()
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        attach(model, seed=seed)
        assert torch.get_rng_state().equal(state)
        return [p.detach() for name, p in model.named_parameters() if "lora_A" in name]

    first, again, other = drawn(0, 1), drawn(0, 2), drawn(1, 1)
    assert all(x.equal(y) for x, y in zip(first, again, strict=True))
    assert not any(x.equal(y) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize("kind", TIMM)
def test_all_blocks_have_adapters_that_fold_as_by_peft(kind: str) -> None:
    plain = vit(kind)
    x = picture(plain)
    model = attach(copy.deepcopy(plain), rank=4, dropout=0.05).eval()
    with torch.no_grad():
        assert (model(x) - plain(x)).abs().max() < 1e-5  # B is 0
    shake(model)
    out = model(x)
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    for name, p in model.named_parameters():
        assert p.requires_grad == ("lora_" in name)
        assert not p.requires_grad or (p.grad is not None and p.grad.abs().max() > 0), name

    state = folded_state(model)
    assert list(state) == list(plain.state_dict())
    config = peft.LoraConfig(r=4, lora_alpha=32, lora_dropout=0.05, target_modules="|".join(target_names(plain, "vit")))
    twin = peft.get_peft_model(copy.deepcopy(plain), config)
    adapters = {name: p for name, p in model.named_parameters() if "lora_" in name}
    twin.base_model.model.load_state_dict(adapters, strict=False)
    merged = twin.merge_and_unload().state_dict()
    for name, value in state.items():
        torch.testing.assert_close(value, merged[name])
    changed = [name for name, value in state.items() if not value.equal(plain.state_dict()[name])]
    assert len(changed) == 2 * TIMM[kind][2]
    assert all(".attn." in name or ".mlp." in name for name in changed)
    with torch.no_grad():
        plain.load_state_dict(state)
        assert (plain(x) - out).abs().max() < 1e-4 * out.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_have_float32_adapters_and_fold_within_one_rounding(dtype: torch.dtype) -> None:
    model = attach(vit().to(dtype), rank=4, dropout=0.0)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    shake(model)
    model(picture(model).to(dtype)).float().square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters() if p.requires_grad)
    layer: Any = model.get_submodule("blocks.0.attn.qkv")
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    exact = layer.base_layer.weight.double() + 8 * (b.double() @ a.double())
    found = folded_state(model)["blocks.0.attn.qkv.weight"]
    assert found.dtype == dtype
    error = (found.double() - exact).abs() / exact.abs().clamp_min(1e-3)
    assert error.max() <= torch.finfo(dtype).eps * 0.51
    assert model.get_submodule("blocks.0.attn.qkv").base_layer.weight.dtype == dtype  # type: ignore[union-attr]


def test_after_folding_all_is_bit_for_bit_as_before_even_after_an_error() -> None:
    model = attach(vit(), rank=4)
    shake(model)
    model.eval()
    x = picture(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    out = model(x)
    with folded(model):
        assert not any(hasattr(part, "lora_A") for part in model.modules())
        assert (model(x) - out).abs().max() < 1e-4
    with pytest.raises(RuntimeError, match="disk"), folded(model):
        raise RuntimeError("disk")
    assert list(before) == list(model.state_dict())
    assert all(before[name].equal(value) for name, value in model.state_dict().items())
    assert model(x).equal(out)


def test_a_model_without_such_layers_is_refused_with_the_layers_it_has() -> None:
    model = timm.create_model("resnet18", num_classes=10)
    with pytest.raises(ValueError, match=r"ResNet has no linear layers named 'vit'.*Its linear layers: fc .*qwen"):
        attach(model)
    before = list(model.state_dict())
    assert all(p.requires_grad for p in model.parameters())  # refused before anything was changed
    attach(model, targets="fc", rank=2)
    assert len(model.state_dict()) == len(before) + 2
    with pytest.raises(ValueError, match=r"blocks\.N\.attn\.qkv"):
        attach(vit(), targets=r"head|blocks\.7\..*")


def test_attention_that_reads_weights_past_lora_is_refused() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24, bias=False)
            self.q_bias = nn.Parameter(torch.zeros(8))

    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"attn": Attention()})])})
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.qkv: Attention reads this layer's weight past LoRA"):
        attach(model)
    assert all(p.requires_grad for p in model.parameters())


# Qwen


def qwen() -> Any:
    transformers = pytest.importorskip("transformers")
    text = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 50, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32,
              "fullatt_block_indexes": [1]}  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    return transformers.Qwen2_5_VLModel(config)


def test_qwen_trains_and_folds() -> None:
    model = qwen()
    names = list(model.state_dict())
    language = target_names(model, "qwen")
    assert len(language) == 2 * 7
    assert all(name.startswith("language_model.layers.") for name in language)
    attach(model, rank=2, dropout=0.0, targets="qwen")
    shake(model)
    tokens = torch.arange(12).view(2, 6)
    out = model(input_ids=tokens).last_hidden_state
    out.square().sum().backward()
    assert all((p.grad is not None and p.grad.abs().max() > 0) for p in model.parameters() if p.requires_grad)
    assert list(folded_state(model)) == names
    with folded(model), torch.no_grad():
        torch.testing.assert_close(model(input_ids=tokens).last_hidden_state, out.detach(), atol=1e-4, rtol=1e-4)
