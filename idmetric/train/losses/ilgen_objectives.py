"""The losses that ILGen is compared with: contrastive on mined negatives, softmax margin (Table 6, supplement B)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.train.losses.arrays import check_pairs, check_shapes, cosines, full

_MOST = 2**24  # cosines held at once


def contrastive(positive: Tensor, negative: Tensor, *, margin: float = 1.0) -> Tensor:
    """Mean of d+^2 / 2 + max(0, margin - d-)^2 / 2 with d the Euclidean distance of unit descriptors.

    The form is Hadsell et al. 2006, Eq. 4 (ILGen cites Chopra et al. 2005, gives no formula, and a margin of 1); d
    follows from the cosine as sqrt(2 - 2 cos).

    Args:
        positive: cosine of each anchor to its positive, (B,); ILGen draws one of the same class at random.
        negative: cosines of each anchor to its negatives, (B, N); ILGen has N = 1, see `hardest_negatives`.
        margin: distance beyond which a negative no longer counts; unit descriptors are at most 2 apart.

    Returns:
        A scalar >= 0: mean over an anchor's negatives, then over anchors. In float32 or better.
    """
    check_pairs(positive, negative)
    positive_terms = 2 - 2 * full(positive)
    # the floor keeps the slope of the root finite where two descriptors coincide
    distance = (2 - 2 * full(negative)).clamp_min(1e-12).sqrt()
    negative_terms = F.relu(margin - distance).square()
    return (positive_terms + negative_terms.mean(1)).mean() / 2


@torch.no_grad()
def hardest_negatives(
    anchor: Tensor,
    candidate: Tensor,
    anchor_label: Tensor,
    candidate_label: Tensor,
) -> Tensor:
    """For each anchor, the most similar candidate of another class ("the hardest one in the dataset").

    Args:
        anchor: (Q, D), of any length: cosines are taken.
        candidate: (N, D).
        anchor_label, candidate_label: int (Q,) and (N,).

    Returns:
        Indices into `candidate`, int64 (Q,); the first of equally similar ones.

    Raises:
        ValueError: if an anchor has no candidate of another class.
    """
    hardest = torch.empty(len(anchor), dtype=torch.int64, device=anchor.device)
    step = max(1, _MOST // max(1, len(candidate)))
    for start in range(0, len(anchor), step):
        block = slice(start, start + step)
        is_same_class = anchor_label[block, None] == candidate_label
        if is_same_class.all(1).any():
            raise ValueError("every anchor needs a candidate of another class to be its negative")
        similarity = cosines(anchor[block], candidate)
        hardest[block] = similarity.masked_fill(is_same_class, -torch.inf).argmax(1)
    return hardest


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
    fit = embedding.ndim == weight.ndim == 2 and embedding.shape[1] == weight.shape[1]
    check_shapes(fit and len(embedding) > 0, "(B, D) and (C, D), B >= 1", embedding, weight)
    similarity = cosines(embedding, weight)
    is_class = F.one_hot(label, len(weight)).to(torch.bool)
    with_margin = similarity - margin
    logits = torch.where(is_class, with_margin, similarity)
    return F.cross_entropy(scale * logits, label)
