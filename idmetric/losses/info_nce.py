"""InfoNCE with explicit positives and negatives (ID-Sim Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor


def info_nce(positive: Tensor, negative: Tensor, *, temperature: float = 0.07, valid: Tensor | None = None) -> Tensor:
    """Mean of -log( e^{s+} / (e^{s+} + sum_i e^{s_i-}) ) with s = similarity / temperature (ID-Sim Eq. 2).

    Args:
        positive: similarity of each anchor to its positive, shape (B,), higher = more alike.
        negative: similarities of each anchor to its negatives, shape (B, N).
        temperature: tau > 0; the paper leaves its value unstated.
        valid: bool (B, N), False where a negative does not count; an anchor without negatives contributes 0.

    Returns:
        A scalar >= 0, in float32 or better.

    Raises:
        ValueError: if shapes do not fit, there are no anchors, or temperature <= 0.
    """
    if positive.ndim != 1 or negative.ndim != 2 or len(negative) != len(positive) or not len(positive):
        raise ValueError(f"need shapes (B,) and (B, N), B >= 1; got {tuple(positive.shape)}, {tuple(negative.shape)}")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if positive.dtype != torch.float64:
        positive, negative = positive.float(), negative.float()
    logits = torch.cat([positive[:, None], negative], 1) / temperature
    if valid is not None:
        logits = torch.cat([logits[:, :1], logits[:, 1:].masked_fill(~valid, -torch.inf)], 1)
    return (logits.logsumexp(1) - logits[:, 0]).mean()
