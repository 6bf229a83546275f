"""Classification of instances with a margin on the cosine (ILGen Table 6 and supplement B)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.losses.arrays import cosines


def softmax_margin(
    embedding: Tensor, weight: Tensor, label: Tensor, *, scale: float = 16.0, margin: float = 0.0
) -> Tensor:
    """Cross-entropy of scale * (cos(x, w_c) - margin [c = label]) over classes c (Wang et al. 2018, Eq. 4).

    Args:
        embedding: (B, D), of any length: cosines are taken.
        weight: one learned prototype per class, (C, D), of any length, such as the weight of `nn.Linear(D, C)`.
        label: int (B,), in [0, C).
        scale: > 0; ILGen has 16, after UnED.
        margin: subtracted from the right class's similarity; ILGen has 0.

    Returns:
        A scalar >= 0, mean over the batch. In float32 or better.
    """
    if embedding.ndim != 2 or weight.ndim != 2 or embedding.shape[1] != weight.shape[1] or not len(embedding):
        raise ValueError(f"need shapes (B, D) and (C, D), got {tuple(embedding.shape)} and {tuple(weight.shape)}")
    similarity = cosines(embedding, weight)
    own = F.one_hot(label, len(weight)).to(torch.bool)
    return F.cross_entropy(scale * torch.where(own, similarity - margin, similarity), label)
