"""ID-Sim's loss on one micro-batch: an anchor's similarities to its candidates, on class features and on patches.

An anchor's candidates are its own positive and hard negative ("single-negative sampling", C.3), or the positives and
hard negatives of all triplets of the micro-batch, less those of its identity ("other instances within the batch",
section 3.3). Both losses see the same candidates (Figure 3).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idmetric.metric.sinkhorn import Annealing, sinkhorn
from idmetric.train.idsim.config import Negatives
from idmetric.train.losses.arrays import cosines

# C.5: square root of Sinkhorn's last temperature; "Regularization: 0.05", by the release's code
ANNEALING = Annealing(blur=0.05, scaling=0.05)


class BatchSimilarities(NamedTuple):
    """Similarities of b anchors to M candidates, higher = more alike.

    `positive` (b,) are those to each anchor's positive, `values` (b, M) those to all candidates; `negative` (b, M) is
    True where a candidate is a negative.
    """

    positive: Tensor
    values: Tensor
    negative: Tensor


def compare(
    anchor: Tensor, positive: Tensor, negative: Tensor, identity: Tensor, negatives: Negatives
) -> BatchSimilarities:
    """Similarities of anchors to their candidates: class features (B, D), or patches (B, P, D), of unit length.

    Args:
        anchor, positive, negative: of the B triplets of a micro-batch.
        identity: (3, B) numbers of the identities of anchors, positives and negatives.
        negatives: see the module.
    """
    if negatives == "single":
        values = similarity(anchor, torch.stack([positive, negative], 1))
        is_negative = torch.tensor([False, True], device=anchor.device).expand(len(anchor), 2)
        return BatchSimilarities(values[:, 0], values, is_negative)
    values = similarity(anchor, torch.cat([positive, negative]))
    is_negative = identity[0, :, None] != identity[1:].flatten()
    return BatchSimilarities(values.diagonal(), values, is_negative)


def similarity(a: Tensor, b: Tensor) -> Tensor:
    """Similarity (B, M), higher = more alike: the cosine of features, minus the Sinkhorn distance of patches (Eq. 3).

    Args:
        a: (B, D), or patch tokens (B, P, D).
        b: (M, ...), compared with all of a; or (B, M, ...), a[i] being compared with b[i].
    """
    is_own = b.ndim > a.ndim  # b[i] are the candidates of a[i] alone
    if a.ndim == 2:
        return cosines(a[:, None], b)[:, 0] if is_own else cosines(a, b)
    if not is_own:
        return -sinkhorn(a, b, matrix=True, annealing=ANNEALING)
    repeated = a.repeat_interleave(b.shape[1], 0)
    return -sinkhorn(repeated, b.flatten(0, 1), annealing=ANNEALING).view(b.shape[:2])


@torch.no_grad()
def accuracy(similar: BatchSimilarities) -> Tensor:
    """Share of anchors nearer to their positive than to all their negatives; a tie counts as wrong."""
    to_negatives = similar.values.masked_fill(~similar.negative, -torch.inf)
    return (similar.positive > to_negatives.amax(1)).float().mean()
