"""LoRA adapters (PEFT's format) merged into plain weights, so that inference needs no peft."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.errors import CheckpointError

# settings of PEFT's LoRA with which a layer computes something else, or has other base weights
_OTHER_KINDS = (
    "use_dora",
    "fan_in_fan_out",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
_OTHER_STARTS = ("pissa", "olora", "loftq", "corda", "lora_ga")  # these change the base model's weights first


def check_lora(config: Mapping[str, Any]) -> None:
    """Refuse an adapter_config.json of another kind of adapter than `merge_lora` merges, by CheckpointError."""
    unsupported = [setting for setting in _OTHER_KINDS if config.get(setting)]
    if config.get("peft_type", "LORA") != "LORA":
        unsupported.append(str(config["peft_type"]))
    start = str(config.get("init_lora_weights", True))
    if start.startswith(_OTHER_STARTS):
        unsupported.append(start)
    for pattern in config.get("alpha_pattern") or {}:
        if not re.fullmatch(r"\^?[\w.\\]+", pattern):  # others may take forever to match
            unsupported.append(f"the alpha_pattern {pattern!r}")
    if unsupported:
        raise CheckpointError(f"an adapter with {', '.join(unsupported)} is not plain LoRA: merge it with peft")


def merge_lora(
    state: dict[str, Tensor],
    adapter: Mapping[str, Tensor],
    config: Mapping[str, Any],
    prefix: str = "",
) -> dict[str, Tensor]:
    """Merge a LoRA adapter into plain weights: W + scale * B A (Hu et al. 2022, LoRA, Eq. 3).

    Biases and whole modules trained with the adapter (PEFT's `bias` and `modules_to_save`) replace those of `state`.

    Args:
        state: weights by name, e.g. `blocks.0.attn.qkv.weight` of shape (out, in), or (out, in, h, w) of a convolution.
        adapter: tensors named `<module>.lora_A.weight` (r, in[, h, w]) and `<module>.lora_B.weight` (out, r[, 1, 1]),
            where `<module>.weight` is in `state`; others are named as in `state`. PEFT's prefix is already removed.
        config: PEFT's adapter_config.json, which `check_lora` accepts; read are lora_alpha, alpha_pattern and
            use_rslora. The rank is taken from the tensors.
        prefix: what PEFT's names of modules have before those of `state`.

    Returns:
        `state` itself, its changed weights replaced one by one, so that it is never held twice. Changed weights
        are float32 (float64 stays), whatever the stored type: PEFT computes with adapters in float32 as well.

    Raises:
        CheckpointError: for tensors that are not LoRA's, or modules not in `state`.
        RuntimeError: for matrices that do not fit their weight.
    """
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, value in adapter.items():
        match = re.fullmatch(r"(.+)\.lora_([AB])(?:\.default)?(?:\.weight)?", key)
        if match is not None:
            module, side = match.groups()
            pairs.setdefault(module, {})[side] = value
        elif ".lora_" not in key and key in state and state[key].shape == value.shape:
            state[key] = value
        else:
            raise CheckpointError(f"the adapter holds {key!r}: not a LoRA matrix, and no layer of the model fits it")

    for module, pair in pairs.items():
        name = f"{module}.weight"
        if name not in state or len(pair) < 2:
            raise CheckpointError(f"the adapter lacks a lora_A or lora_B of {module!r}, or the model that layer")
        divisor: float = len(pair["A"])  # the rank
        if config.get("use_rslora"):
            divisor = math.sqrt(divisor)
        scale = _alpha(prefix + module, config) / divisor
        state[name] = _add_product(state[name], pair["A"], pair["B"], scale)
    return state


def _alpha(module: str, config: Mapping[str, Any]) -> float:
    """The alpha of a module: that of the first pattern which its name ends with, as PEFT matches them."""
    for pattern, alpha in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return float(alpha)
    return float(config.get("lora_alpha", 8))


def _add_product(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + scale * B A, in float32 or better."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    matrix, inner, outer = (tensor.flatten(1).to(dtype) for tensor in (weight, a, b))
    return torch.addmm(matrix, outer, inner, alpha=scale).view(weight.shape)
