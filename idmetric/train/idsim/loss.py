"""ID-Sim's loss on one micro-batch: an anchor's similarities to its candidates, on class features and on patches.

An anchor's candidates are its own positive and hard negative ("single-negative sampling", C.3), or the positives and
hard negatives of all triplets of the micro-batch, less those of its identity ("other instances within the batch",
section 3.3). Both losses see the same candidates (Figure 3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from idmetric.distance.sinkhorn import sinkhorn_distance, sinkhorn_matrix
from idmetric.losses.arrays import cosines
from idmetric.losses.info_nce import info_nce
from idmetric.losses.triplet import binary_cross_entropy, hinge
from idmetric.train.idsim.config import Negatives, Objective, PatchMetric


class Similarities(NamedTuple):
    """Similarities (b, M) of b anchors to M candidates, higher = more alike.

    `positive` (b,) is the column of each anchor's positive, `negative` (b, M) is True where a candidate is a negative.
    """

    values: Tensor
    positive: Tensor
    negative: Tensor


def compare(
    features: Tensor, positive: Tensor, negative: Tensor, identity: Tensor, first: int, negatives: Negatives,
    metric: PatchMetric = "sinkhorn", **sinkhorn: Any,
) -> Similarities:  # fmt: skip
    """Similarities of anchors to their candidates: class features (n, D), or patches (n, P, D), of unit length.

    Args:
        features: of b anchors of the micro-batch, from triplet number `first` on.
        positive, negative: of the positives and hard negatives of all B triplets.
        identity: (3, B) numbers of the identities of anchors, positives and negatives.
        negatives: see the module.
        metric: of patches; see `patch_similarity`. sinkhorn: arguments of `idmetric.distance.sinkhorn`.
    """
    count = len(features)
    own = slice(first, first + count)
    if negatives == "single":
        candidates = torch.stack([positive[own], negative[own]], 1)
        column = torch.zeros(count, dtype=torch.long, device=features.device)
        is_negative = torch.tensor([False, True], device=features.device).expand(count, 2)
    else:
        candidates = torch.cat([positive, negative])
        column = torch.arange(first, first + count, device=features.device)
        is_negative = identity[0, own, None] != identity[1:].flatten()[None]
    if features.ndim == 2:
        return Similarities(_cosines(features, candidates), column, is_negative)
    return Similarities(patch_similarity(features, candidates, metric, **sinkhorn), column, is_negative)


def patch_similarity(a: Tensor, b: Tensor, metric: PatchMetric = "sinkhorn", **sinkhorn: Any) -> Tensor:
    """Similarity of sets of patch tokens of unit length, higher = more alike.

    | metric | meaning | range |
    |---|---|---|
    | sinkhorn | minus the Sinkhorn distance (ID-Sim Eq. 3) | [-2, 0] |
    | cosine | mean cosine of the tokens at the same place | [-1, 1] |
    | pooled | cosine of the mean tokens: the release's mode "patch" | [-1, 1] |

    Table 9's "Cosine Patch Metric" is not defined in the paper; section 3.3 speaks of "direct position-wise
    comparisons", which `cosine` is.

    Args:
        a: (b, P, D).
        b: (M, P, D), compared with all of a; or (b, M, P, D), a[i] being compared with b[i].

    Returns:
        Shape (b, M).
    """
    if metric == "pooled":
        return _cosines(a.mean(1), b.mean(-2))
    if metric == "cosine":
        return _cosines(a.flatten(1), b.flatten(-2))  # places weigh equally, as tokens have one length
    if b.ndim == 3:
        return -sinkhorn_matrix(a, b, **sinkhorn)
    return -sinkhorn_distance(a.repeat_interleave(b.shape[1], 0), b.flatten(0, 1), **sinkhorn).view(b.shape[:2])


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosines of a (n, D) with all b (M, D), or of each a with its own b (n, M, D): (n, M)."""
    return cosines(a, b) if b.ndim == 2 else cosines(a[:, None], b)[:, 0]


def loss_of(
    found: Similarities, objective: Objective, *, temperature: float, margin: float, hinge_margin: float,
    threshold: float,
) -> Tensor:  # fmt: skip
    """The objective of Table 9 on similarities: a scalar, mean over anchors.

    Args:
        temperature: of infonce and bce. margin: of infonce. hinge_margin: of hinge. threshold: of bce; see the losses.
    """
    positive = found.values.gather(1, found.positive[:, None])[:, 0]
    if objective == "hinge":
        return hinge(positive, found.values, margin=hinge_margin, valid=found.negative)
    if objective == "bce":
        return binary_cross_entropy(
            positive, found.values, temperature=temperature, threshold=threshold, valid=found.negative
        )
    return info_nce(positive, found.values, temperature=temperature, margin=margin, valid=found.negative)


@torch.no_grad()
def accuracy(found: Similarities) -> Tensor:
    """Share of anchors nearer to their positive than to all their negatives; a tie counts as wrong."""
    positive = found.values.gather(1, found.positive[:, None])[:, 0]
    return (positive > found.values.masked_fill(~found.negative, -torch.inf).amax(1)).float().mean()
