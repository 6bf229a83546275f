"""LoRA by PEFT: attach it to the layers that the papers adapt, train, save a model with plain weights.

attach(model.backbone, rank=16, alpha=32, dropout=0.05)     # ID-Sim, C.1
...
with folded(model):
    model.save_pretrained("run")                             # opens without peft
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from idmetric.metric.checkpoints.lora import merge_lora
from idmetric.metric.files import need

_NAME = "default"  # of the adapter, within PEFT

# Names of linear layers, as patterns of the whole path.
TARGETS = MappingProxyType(
    {
        # "attention and feedforward MLP layers" (ID-Sim, section 4.1) of timm's transformers; heads, the patch
        # embedding and attention pooling have layers of the same names, but are not blocks and stay as they are
        "vit": r"(?:.*\.)?blocks\.\d+\."
        r"(?:attn\.(?:qkv|q_proj|k_proj|v_proj|q|k|v|kv|proj)|mlp\.(?:fc1|fc2|fc1_g|fc1_x|w12|w3))",
        # Qwen2-VL and Qwen2.5-VL: all linear layers of the language model's blocks
        "qwen": r"(?:.*\.)?language_model\.layers\.\d+\.(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj)",
    }
)


def attach(
    module: nn.Module,
    rank: int = 16,
    alpha: float = 32,
    dropout: float = 0.05,
    targets: str = "vit",
    *,
    seed: int = 0,
) -> nn.Module:
    """Freeze a module and add trainable LoRA to its linear layers, in place (Hu et al. 2022): W x + alpha / rank B A x.

    At first the outputs don't change, since B is 0. The adapters are float32, also on a bfloat16 or float16 module.

    Args:
        module: such as the timm model in `IDSim.backbone`.
        rank, alpha, dropout: ID-Sim C.1; VisME, section 5.1, has the same rank and alpha.
        targets: a key of `TARGETS`, or a regular expression of whole names of linear layers.
        seed: of A's random values, the same on any device; torch's global random state does not change.

    Returns:
        The module.
    """
    need("train", "LoRA", peft="peft")
    import peft

    names = target_names(module, targets)
    passing = _reading_weights(module, names)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        bias="none",
        target_modules="|".join(re.escape(name) for name in names),  # whole names: a list would match endings
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the accelerators as well
        peft.inject_adapter_in_model(config, module, _NAME)
    for _, layer in _layers(module):
        for part in (layer.lora_A[_NAME], layer.lora_B[_NAME]):
            part.to(torch.promote_types(part.weight.dtype, torch.float32))
        layer.train(layer.get_base_layer().training)  # new modules, including dropout, begin in train mode
    for attention in passing:
        attention.qkv_bias_separate = True
    return module


def target_names(module: nn.Module, targets: str) -> list[str]:
    """Names of the linear layers that `attach` would change."""
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    pattern = TARGETS.get(targets, targets)
    names = [name for name in linear if re.fullmatch(pattern, name)]
    if not names:
        kinds = dict.fromkeys(re.sub(r"\d+", "N", name) for name in linear)
        raise ValueError(
            f"{type(module).__name__} has no linear layers named {targets!r} for LoRA. Its linear layers: "
            f"{', '.join(kinds) or 'none'} (N: numbers). Give a regular expression of whole names, or one of "
            f"{', '.join(TARGETS)}"
        )
    return names


@contextlib.contextmanager
def folded(module: nn.Module) -> Iterator[nn.Module]:
    """Inside, the module has plain layers with weights W + alpha / rank B A, as if it had been trained without LoRA.

    For saving (`model.save_pretrained`) and for measuring speed. The sum is computed in float32 and rounded once to the
    weights' type. Afterwards the module is bit for bit as before; the CPU's memory keeps the original weights.
    """
    originals: list[tuple[nn.Module, str, nn.Module, Tensor, Tensor]] = []
    try:
        for path, layer in _layers(module):
            parent_path, _, name = path.rpartition(".")
            parent = module.get_submodule(parent_path)
            base = layer.get_base_layer()
            weight = base.weight.detach()  # shares its memory
            originals.append((parent, name, layer, weight, weight.to("cpu", copy=True)))
            a = layer.lora_A[_NAME].weight.detach()
            b = layer.lora_B[_NAME].weight.detach()
            state = merge_lora(
                {"layer.weight": weight},
                {"layer.lora_A": a, "layer.lora_B": b},
                {"lora_alpha": layer.lora_alpha[_NAME]},
            )
            weight.copy_(state["layer.weight"])
            setattr(parent, name, base)
        yield module
    finally:
        for parent, name, layer, weight, original in originals:
            setattr(parent, name, layer)
            weight.copy_(original)


def _layers(module: nn.Module) -> list[tuple[str, Any]]:
    """Names and layers with LoRA."""
    return [(name, layer) for name, layer in module.named_modules() if hasattr(layer, "get_base_layer")]


def _reading_weights(module: nn.Module, names: Sequence[str]) -> list[Any]:
    """Attention modules that read the weight of their qkv layer instead of calling it, and so would bypass LoRA.

    (timm's EVA, BEiT, Swin v2, and DINOv3 with a qkv bias.) With a separate qkv bias they call the layer; the sum is
    the same up to rounding.
    """
    attentions = []
    for name in names:
        parent_path, _, layer_name = name.rpartition(".")
        parent: Any = module.get_submodule(parent_path)
        if layer_name == "qkv" and getattr(parent, "q_bias", None) is not None:
            if not hasattr(parent, "qkv_bias_separate"):
                raise ValueError(
                    f"{name}: {type(parent).__name__} reads this layer's weight past LoRA: choose targets without qkv"
                )
            attentions.append(parent)
    return attentions
