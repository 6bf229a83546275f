"""DINOv3's tensors under timm's names instead of Meta's, and its query and value biases.

timm has each DINOv3 twice: without these biases, and with them as `..._qkvb`. Meta's code always has them, and keeps
the keys' biases at zero by a mask.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from idmetric.metric.checkpoints.errors import CheckpointError

_NAMES = {"ls1.gamma": "gamma_1", "ls2.gamma": "gamma_2", "storage_tokens": "reg_token"}
_BIASES = ("attn.q_bias", "attn.v_bias")


def timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of Meta's DINOv3, or of an adapter to it, under timm's names.

    Tensors that only pretraining uses, the rotary periods (computed by the model) and the keys' biases are left out.
    """
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        if key.endswith("qkv.bias"):
            found[f"{key[:-8]}q_bias"], _, found[f"{key[:-8]}v_bias"] = value.chunk(3)
        elif key.endswith("qkv.bias_mask"):
            if not all(bool((part == wanted).all()) for part, wanted in zip(value.chunk(3), (1, 0, 1), strict=True)):
                raise CheckpointError(f"{key} hides other biases than the keys': not a mask of DINOv3's releases")
        elif key != "mask_token" and not key.startswith("rope"):
            end = next((end for end in _NAMES if key.endswith(end)), "")
            found[key.removesuffix(end) + _NAMES.get(end, "")] = value
    return found


def with_biases(name: str, *states: Mapping[str, Tensor]) -> str:
    """A DINOv3's name in timm; the variant with biases if tensors under timm's names hold one that is not zero."""
    used = any(bool(value.any()) for state in states for key, value in state.items() if key.endswith(_BIASES))
    return name.replace("_dinov3.", "_dinov3_qkvb.") if used else name


def fit_biases(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors with biases of zero where only the model has biases, and without where only the tensors have them."""
    wanted = {key: value.shape for key, value in model.state_dict().items() if key.endswith(_BIASES)}
    given = [key for key in state if key.endswith(_BIASES)]
    if not given:
        return {**state, **{key: torch.zeros(shape) for key, shape in wanted.items()}}
    if wanted:
        return dict(state)
    if lost := [key for key in given if state[key].any()]:
        raise CheckpointError(
            f"{lost[0]} is not zero, and the model has no such bias: choose timm's _qkvb variant of it"
        )
    return {key: value for key, value in state.items() if key not in given}
