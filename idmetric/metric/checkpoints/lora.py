"""LoRA adapters (PEFT's format) merged into plain weights, so that inference needs no peft."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints.weights import renamed
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import accept

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
    "layers_to_transform",
    "layers_pattern",
    "exclude_modules",
)
_MATRIX = re.compile(r"(.+)\.lora_([AB])(?:\.default)?(?:\.weight)?")
_OTHER_STARTS = ("pissa", "olora", "loftq", "corda", "lora_ga")  # these change the base model's weights first


def check_lora(config: Mapping[str, Any]) -> None:
    """Refuse an adapter_config.json of another kind of adapter than `merge_lora` merges, by CheckpointError."""
    unsupported = [setting for setting in _OTHER_KINDS if config.get(setting)]
    if config.get("peft_type", "LORA") != "LORA":
        unsupported.append(str(config["peft_type"]))
    start = str(config.get("init_lora_weights", True))
    if start.startswith(_OTHER_STARTS):
        unsupported.append(start)
    # patterns are of the kinds that cannot take forever to match
    for setting in ("alpha_pattern", "rank_pattern"):
        for pattern, value in (config.get(setting) or {}).items():
            accept(f"{setting} of {pattern}", value, float)
            if not re.fullmatch(r"\^?[\w.\\]+", pattern):
                unsupported.append(f"the {setting} {pattern!r}")
    targets = config.get("target_modules")
    if isinstance(targets, str) and (re.search(r"\)[*+{]", targets) or len(re.findall("[*+{]", targets)) > 4):
        unsupported.append(f"the target_modules {targets!r}")
    if unsupported:
        raise CheckpointError(f"an adapter with {', '.join(unsupported)} is not plain LoRA: merge it with peft")
    if not isinstance(targets, str):
        accept("target_modules", targets, tuple[str, ...])
    accept("use_rslora", config.get("use_rslora", False), bool)
    accept("lora_alpha", config.get("lora_alpha", 8), float)
    if accept("r", config.get("r", 8), int) < 1:
        raise CheckpointError("an adapter of rank 0 changes nothing: it was not written whole")


def is_trained(key: str, config: Mapping[str, Any]) -> bool:
    """Whether an adapter may hold a tensor besides LoRA's: of a bias, or a module that its config says it trains."""
    module, _, kind = key.rpartition(".")
    if kind.endswith("bias") and config.get("bias", "none") != "none":
        return True
    return any(f".{name}." in f".{module}." for name in config.get("modules_to_save") or ())


def check_layers(
    state: Mapping[str, Tensor], adapter: Mapping[str, Tensor], config: Mapping[str, Any], prefix: str = ""
) -> None:
    """Refuse an adapter that lacks LoRA for a layer that its config targets, or has it for another, or of another rank.

    Arguments as of `merge_lora`, before the merge.
    """
    targeted = set()
    for key, value in state.items():
        module = key.removesuffix(".weight")
        if module != key and value.ndim in (2, 4) and _is_target(prefix + module, config["target_modules"]):
            targeted.add(module)
    adapted = set()
    for module, pair in _pairs(adapter).items():
        adapted.add(module)
        rank = _by_pattern(prefix + module, config.get("rank_pattern"), config.get("r", 8))
        if "A" in pair and len(pair["A"]) != rank:
            raise CheckpointError(f"the adapter of {module!r} has rank {len(pair['A'])}, its config says {rank:g}")
    missing = sorted(targeted - adapted)
    surplus = sorted(adapted - targeted)
    if missing:
        raise CheckpointError(f"the adapter lacks {missing[0]!r}, one of {len(missing)} layers that its config targets")
    if surplus:
        raise CheckpointError(f"the adapter holds {surplus[0]!r}, a layer that its config does not target")


def _is_target(module: str, targets: str | list[str]) -> bool:
    """Whether a layer is one of PEFT's `target_modules`: a pattern of whole names, or names and ends of names."""
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(f".{module}".endswith(f".{target}") for target in targets)


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
    for key, value in adapter.items():
        if _MATRIX.fullmatch(key):
            continue
        if ".lora_" in key or key not in state or state[key].shape != value.shape:
            raise CheckpointError(f"the adapter holds {key!r}: not a LoRA matrix, and no layer of the model fits it")
        state[key] = value

    for module, pair in _pairs(adapter).items():
        name = f"{module}.weight"
        if name not in state or len(pair) < 2:
            raise CheckpointError(f"the adapter lacks a lora_A or lora_B of {module!r}, or the model that layer")
        divisor: float = len(pair["A"])  # the rank
        if config.get("use_rslora"):
            divisor = math.sqrt(divisor)
        alpha = _by_pattern(prefix + module, config.get("alpha_pattern"), config.get("lora_alpha", 8))
        scale = alpha / divisor
        state[name] = _add_product(state[name], pair["A"], pair["B"], scale)
    return state


def _pairs(adapter: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The matrices A and B of each layer."""
    matrices = {key: value for key, value in adapter.items() if _MATRIX.fullmatch(key)}
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, value in renamed(matrices, lambda key: _MATRIX.sub(r"\1.\2", key)).items():
        module, _, side = name.rpartition(".")
        pairs.setdefault(module, {})[side] = value
    return pairs


def _by_pattern(module: str, patterns: Mapping[str, Any] | None, default: Any) -> float:
    """The alpha or rank of a layer: that of the first pattern which its name ends with, as PEFT matches them."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return float(value)
    return float(default)


def _add_product(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + scale * B A, in float32 or better."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    matrix, inner, outer = (tensor.flatten(1).to(dtype) for tensor in (weight, a, b))
    return torch.addmm(matrix, outer, inner, alpha=scale).view(weight.shape)
