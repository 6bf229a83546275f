"""Global features and patch tokens of timm's encoders."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.checkpoints.errors import CheckpointError

Pool = Literal["auto", "cls", "avg", "head"]


def last_tokens(model: Any, x: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
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
    if x.device.type == "cpu":  # convolutions are faster so; to the others it is all the same
        x = x.contiguous(memory_format=torch.channels_last)
    [features] = model.forward_intermediates(x, indices=1, norm=False, output_fmt="NCHW", intermediates_only=True)
    rows, columns = features.shape[-2:]
    return features.mean((2, 3)), features.flatten(2).transpose(1, 2), (rows, columns)


def final_tokens(model: Any, x: Tensor, pool: Pool = "auto") -> tuple[Tensor, Tensor, tuple[int, int]]:
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
    if features.ndim == 4:
        if getattr(model, "output_fmt", "NCHW") == "NHWC":
            rows, columns = features.shape[1:3]
            tokens = features.flatten(1, 2)
        else:
            rows, columns = features.shape[2:]
            tokens = features.flatten(2).transpose(1, 2)
        grid, prefix = (rows, columns), 0
    else:
        prefix = int(getattr(model, "num_prefix_tokens", 0))
        tokens, grid = features[:, prefix:], _token_grid(model, x)
    has_class_token = prefix > 0 and getattr(model, "cls_token", None) is not None
    if pool == "cls" and not has_class_token:
        raise ValueError(f"{type(model).__name__} has no class token to pool: choose pool='avg' or 'head'")
    if pool == "cls" or (pool == "auto" and has_class_token):
        return features[:, 0], tokens, grid
    if pool == "avg":
        return tokens.mean(1), tokens, grid
    return model.forward_head(features, pre_logits=pool == "auto"), tokens, grid


def _token_grid(model: Any, x: Tensor) -> tuple[int, int]:
    embed = model.patch_embed
    rows, columns = embed.dynamic_feat_size(x.shape[-2:]) if hasattr(embed, "dynamic_feat_size") else embed.grid_size
    return int(rows), int(columns)


def resample_positions(table: Tensor, grid: tuple[int, int], offset: float = 0.0) -> Tensor:
    """A ViT's position embedding (1, 1 + n * n, D) for a grid of patches, bicubic and without antialiasing.

    Args:
        offset: added to the grid's sides in the scale factors (side + offset) / n, as DINO's and DINOv2's own code
            does with 0.1.
    """
    n = round((table.shape[1] - 1) ** 0.5)
    if grid == (n, n):
        return table
    square = table[:, 1:].float().mT.reshape(1, -1, n, n)
    how: Any = {"scale_factor": [(side + offset) / n for side in grid]} if offset else {"size": grid}
    found = F.interpolate(square, mode="bicubic", align_corners=False, **how)
    if found.shape[-2:] != grid:
        raise CheckpointError(f"cannot resample a position embedding of {n} x {n} to {grid[0]} x {grid[1]}")
    return torch.cat([table[:, :1].float(), found.flatten(2).mT], 1).to(table.dtype)
