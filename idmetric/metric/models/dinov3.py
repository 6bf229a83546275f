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


def timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of Meta's DINOv3, or of an adapter to it, under timm's names.

    Tensors that only pretraining uses, the rotary periods (computed by the model) and the keys' biases are left out.
    """
    renamed = {}
    for key, value in state.items():
        if key.endswith("qkv.bias"):
            prefix = key.removesuffix("qkv.bias")
            renamed[f"{prefix}q_bias"], _, renamed[f"{prefix}v_bias"] = value.chunk(3)
        elif key.endswith("qkv.bias_mask"):
            query, keys, values = value.chunk(3)
            if keys.any() or not (query == 1).all() or not (values == 1).all():
                raise CheckpointError(f"{key} hides other biases than the keys': not a mask of DINOv3's releases")
        elif key != "mask_token" and not key.startswith("rope"):
            for meta_name, timm_name in _NAMES.items():
                if key.endswith(meta_name):
                    key = key.removesuffix(meta_name) + timm_name
            renamed[key] = value
    return renamed


def with_biases(name: str, *states: Mapping[str, Tensor]) -> str:
    """A DINOv3's name in timm; the variant with biases if tensors under timm's names hold one that is not zero."""
    for state in states:
        if any(state[key].any() for key in _biases(state)):
            return name.replace("_dinov3.", "_dinov3_qkvb.")
    return name


def fit_biases(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors with biases of zero where only the model has biases, and without where only the tensors have them."""
    fitted = dict(state)
    expected = model.state_dict()
    if not _biases(state):
        for key in _biases(expected):
            fitted[key] = torch.zeros(expected[key].shape)
    elif not _biases(expected):
        for key in _biases(state):
            if fitted.pop(key).any():
                raise CheckpointError(
                    f"{key} is not zero, and the model has no such bias: choose timm's _qkvb variant of it"
                )
    return fitted


def _biases(state: Mapping[str, Tensor]) -> list[str]:
    return [key for key in state if key.endswith(("attn.q_bias", "attn.v_bias"))]
