"""Losses of anchor, positive and negatives without a softmax: the ablations of ID-Sim's Table 9."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.losses.arrays import check_temperature, full, masked_mean


def hinge(positive: Tensor, negative: Tensor, *, margin: float = 0.1, valid: Tensor | None = None) -> Tensor:
    """Mean of max(0, margin - s+ + s-): the positive shall be nearer by `margin` (ID-Sim Table 9, "Hinge").

    Args:
        positive: similarity of each anchor to its positive, (B,), higher = more alike: cosines or negative distances.
        negative: similarities of each anchor to its negatives, (B, N).
        margin: in units of the similarity; ID-Sim section C.3 has 0.1.
        valid: bool (B, N), False where a negative does not count.

    Returns:
        A scalar >= 0: mean over an anchor's negatives, then over anchors; an anchor without negatives contributes 0.
    """
    positive, negative, valid = _checked(positive, negative, valid)
    return masked_mean(F.relu(margin - positive[:, None] + negative), valid, 1).mean()


def binary_cross_entropy(
    positive: Tensor,
    negative: Tensor,
    *,
    temperature: float | Tensor = 0.07,
    threshold: float | Tensor = 0.0,
    valid: Tensor | None = None,
) -> Tensor:
    """Same or not, each pair on its own: -log sigma(l+) - log(1 - sigma(l-)), halved (ID-Sim Table 9, "BCE").

    The logit is l = (similarity - threshold) / temperature. The paper gives no formula. Taken on the difference
    s+ - s- the loss would equal InfoNCE with a single negative, which Table 9 lists separately, so it is read as
    the classification of pairs.

    Args:
        positive: similarity of each anchor to its positive, (B,), higher = more alike.
        negative: similarities of each anchor to its negatives, (B, N).
        temperature: > 0.
        threshold: similarity that means "as likely same as not", a number or a learned scalar. 0 suits cosines; for
            negative distances, which are never above 0, take a negative one, such as -0.5.
        valid: bool (B, N), False where a negative does not count.

    Returns:
        A scalar > 0: an anchor's positive weighs as much as all its negatives together; mean over anchors.
    """
    positive, negative, valid = _checked(positive, negative, valid)
    check_temperature(temperature)
    same = F.softplus((threshold - positive) / temperature)
    different = masked_mean(F.softplus((negative - threshold) / temperature), valid, 1)
    return (same + different).mean() / 2


def _checked(positive: Tensor, negative: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if positive.ndim != 1 or negative.ndim != 2 or len(negative) != len(positive) or not len(positive):
        raise ValueError(f"need shapes (B,) and (B, N), B >= 1; got {tuple(positive.shape)}, {tuple(negative.shape)}")
    if valid is None:
        valid = torch.ones_like(negative, dtype=torch.bool)
    return full(positive), full(negative), valid
