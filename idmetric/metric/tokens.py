"""Global features and patch tokens of timm's encoders."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Pool = Literal["auto", "cls", "avg", "head"]
Features = tuple[Tensor, Tensor, tuple[int, int]]  # global features (B, D), patch tokens (B, P, D'), grid of patches


def last_tokens(model: Any, x: Tensor) -> Features:
    """Output of the last block, before the final norm, as ID-Sim's release reads it.

    Args:
        model: a timm model; x: normalized pixels (B, 3, H, W).

    Returns:
        Global feature (B, D): the class token, or the mean of the feature map for encoders without one. Patch tokens
        (B, P, D) in row-major order, class and register tokens dropped. The patch grid (rows, columns).
    """
    if getattr(model, "num_prefix_tokens", 0):
        [(tokens, prefix)] = model.forward_intermediates(
            x, indices=1, norm=False, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        return prefix[:, 0], tokens, _token_grid(model, x)
    [features] = model.forward_intermediates(
        channels_last_on_cpu(x), indices=1, norm=False, output_fmt="NCHW", intermediates_only=True
    )
    return features.mean((2, 3)), features.flatten(2).mT, tuple(features.shape[2:])


def final_tokens(model: Any, x: Tensor, pool: Pool = "auto") -> Features:
    """Output of the whole encoder, final norm included, as baselines are usually scored.

    Args:
        model, x: as in `last_tokens`.
        pool: global feature: "cls" the class token, "avg" the mean of the patches, "head" timm's own pooling and
            pre-classifier (SigLIP's attention pooling; CLIP's projection when the model kept its head), "auto" the
            class token where there is one, else timm's.

    Returns:
        As `last_tokens`.
    """
    features = model.forward_features(x)
    prefix_count = 0
    if features.ndim == 3:
        prefix_count = int(getattr(model, "num_prefix_tokens", 0))
        tokens, grid = features[:, prefix_count:], _token_grid(model, x)
    else:
        channels_last = features
        if getattr(model, "output_fmt", "NCHW") == "NCHW":
            channels_last = features.movedim(1, -1)
        tokens, grid = channels_last.flatten(1, 2), tuple(channels_last.shape[1:3])

    has_class_token = prefix_count > 0 and getattr(model, "cls_token", None) is not None
    if pool == "cls" and not has_class_token:
        raise ValueError(f"{type(model).__name__} has no class token to pool: choose pool='avg' or 'head'")
    if has_class_token and pool in ("cls", "auto"):
        return features[:, 0], tokens, grid
    if pool == "avg":
        return tokens.mean(1), tokens, grid
    return model.forward_head(features, pre_logits=pool == "auto"), tokens, grid


def channels_last_on_cpu(x: Tensor) -> Tensor:
    """The same pixels with their channels last in memory, which makes convolutions on a CPU faster."""
    if x.device.type == "cpu":
        return x.contiguous(memory_format=torch.channels_last)
    return x


def _token_grid(model: Any, x: Tensor) -> tuple[int, int]:
    embed = model.patch_embed
    if hasattr(embed, "dynamic_feat_size"):
        return tuple(embed.dynamic_feat_size(x.shape[-2:]))
    return tuple(embed.grid_size)
