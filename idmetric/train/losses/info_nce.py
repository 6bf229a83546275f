"""InfoNCE: each anchor picks its positive among negatives (ID-Sim Eq. 2, VisME Eq. 4, ILGen supplement B).

| function | takes | for |
|---|---|---|
| `info_nce` | similarities to one positive and N negatives | ID-Sim, on cosines or negative Sinkhorn distances |
| `query_target_info_nce` | embeddings of queries, their targets, hard negatives | VisME |
| `label_info_nce` | embeddings and class labels: every image is a query | ILGen |
| `info_nce_pairs` | a similarity matrix, masks of positives and negatives | any other batch |
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.train.losses.arrays import (
    check_labels,
    check_matrix,
    check_pairs,
    check_shapes,
    check_temperature,
    cosines,
    full,
    masked_logsumexp,
    masked_mean,
)


def info_nce(
    positive: Tensor,
    negative: Tensor,
    *,
    temperature: float | Tensor = 0.07,
    margin: float = 0.0,
    valid: Tensor | None = None,
) -> Tensor:
    """Mean of -log( e^{s+} / (e^{s+} + sum_i e^{s_i-}) ) with s = similarity / temperature (ID-Sim Eq. 2).

    ID-Sim's two readings differ in `negative` alone: N = 1 is the "single-negative sampling" of its section C.3 (each
    anchor's own hard negative), further columns are the "remaining N - 1 negatives" of section 3.3, other instances
    of the batch.

    Args:
        positive: similarity of each anchor to its positive, shape (B,), higher = more alike.
        negative: similarities of each anchor to its negatives, shape (B, N).
        temperature: tau > 0, a number or a learned scalar; ID-Sim leaves its value unstated.
        margin: taken from the positive similarity first. Section C.3 lists "Margin: 0.1" under InfoNCE, Eq. 2 has
            none; 0 = Eq. 2.
        valid: bool (B, N), False where a negative does not count; an anchor without negatives contributes 0.

    Returns:
        A scalar >= 0, in float32 or better.

    Raises:
        ValueError: if shapes do not fit, there are no anchors, or temperature <= 0.
    """
    check_pairs(positive, negative)
    check_temperature(temperature)
    positive = full(positive)[:, None] - margin
    negative = full(negative)
    if valid is not None:
        negative = negative.masked_fill(~valid, -torch.inf)
    logits = torch.cat([positive, negative], 1) / temperature
    return (logits.logsumexp(1) - logits[:, 0]).mean()


def query_target_info_nce(
    query: Tensor,
    target: Tensor,
    negative: Tensor | None = None,
    *,
    temperature: float | Tensor = 0.02,
    identity: Tensor | None = None,
    negative_identity: Tensor | None = None,
    negative_valid: Tensor | None = None,
) -> Tensor:
    """Each query picks its own target among all targets and all hard negatives of the batch (VisME Eq. 3-5).

    Every other candidate of the batch is a negative ("C- = B without c+", section 4.2.1); hard negatives are sampled
    "into the same mini-batch" and so compete for every query. VisME keeps same-identity candidates apart by drawing
    each identity once a batch; `identity` gives the same guarantee to batches drawn otherwise.

    Args:
        query: embeddings (B, D), of any length: cosines are taken.
        target: embeddings (B, D); row i is the positive of query i.
        negative: hard negatives of all rows, (M, D), or None.
        temperature: tau > 0, a number or `LearnableTemperature()()`; the paper learns it from 0.02.
        identity: int (B,), one number per identity; other rows' candidates of a query's identity are then left out of
            its sum instead of being negatives. None = the paper, where they cannot occur.
        negative_identity: int (M,), the same for hard negatives.
        negative_valid: bool (M,), False at padding.

    Returns:
        A scalar >= 0, mean over queries. In float32 or better.
    """
    fit = query.ndim == 2 and query.shape == target.shape and len(query) > 0
    check_shapes(fit, "queries and targets (B, D), B >= 1", query, target)
    similarity = cosines(query, target)
    is_positive = torch.eye(len(query), dtype=torch.bool, device=query.device)
    is_negative = ~is_positive
    if identity is not None:
        is_negative = identity[:, None] != identity

    if negative is not None:
        shape = (len(query), len(negative))
        is_hard = torch.ones(shape, dtype=torch.bool, device=query.device)
        if negative_valid is not None:
            is_hard = is_hard & negative_valid
        if identity is not None and negative_identity is not None:
            is_hard = is_hard & (identity[:, None] != negative_identity)
        similarity = torch.cat([similarity, cosines(query, negative)], 1)
        is_positive = F.pad(is_positive, (0, len(negative)))
        is_negative = torch.cat([is_negative, is_hard], 1)
    return info_nce_pairs(similarity, is_positive, is_negative, temperature=temperature)


def label_info_nce(
    embedding: Tensor,
    label: Tensor,
    *,
    temperature: float | Tensor = 0.05,
) -> Tensor:
    """Every image is a query, images of its class are its positives, all others negatives (ILGen supplement B).

    Args:
        embedding: (N, D), of any length: cosines are taken.
        label: int (N,), the class of each image; classes of one image give no term.
        temperature: tau > 0; ILGen uses 0.05.

    Returns:
        A scalar >= 0, mean over queries that have a positive. In float32 or better.
    """
    check_labels(embedding, label)
    similarity = cosines(embedding, embedding)
    is_same_class = label[:, None] == label
    is_positive = is_same_class.clone().fill_diagonal_(False)
    return info_nce_pairs(similarity, is_positive, ~is_same_class, temperature=temperature)


def info_nce_pairs(
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    temperature: float | Tensor,
) -> Tensor:
    """InfoNCE of each (query, positive) pair, averaged over a query's positives, then over queries that have one.

    A query's other positives are not in the denominator, so that a perfect ranking has loss 0.

    Args:
        similarity: (Q, N), higher = more alike.
        positive: bool (Q, N).
        negative: bool (Q, N); entries that are neither positive nor negative do not count.
        temperature: tau > 0.

    Returns:
        A scalar >= 0; 0 where no query has a positive. In float32 or better.
    """
    check_matrix(similarity, positive, negative)
    check_temperature(temperature)
    logits = full(similarity) / temperature
    negatives = masked_logsumexp(logits, negative)[:, None]
    terms = F.softplus(negatives - logits)
    query_means = masked_mean(terms, positive, 1)
    return masked_mean(query_means, positive.any(1))


class LearnableTemperature(nn.Module):
    """A temperature that is learned with the model (VisME Eq. 3): tau > 0 is the exponential of a parameter.

    VisME learns tau from 0.02 (section 5.1 and Table 5) and states neither its parametrization nor a bound. The
    logarithm is CLIP's choice, and so is the bound: 0.01 there keeps cosines from being scaled by more than 100.

    Args:
        initial: first value, > 0.
        minimum: lowest value, > 0 and at most `initial`. A step below it is set back by the next call.

    Leave the parameter out of weight decay, which would pull tau towards 1.
    """

    def __init__(self, initial: float = 0.02, *, minimum: float = 0.01) -> None:
        super().__init__()
        self.minimum = minimum
        self.log_temperature = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """The temperature, a scalar tensor with a graph."""
        with torch.no_grad():
            self.log_temperature.clamp_(min=math.log(self.minimum))
        return self.log_temperature.exp()
