"""Recall@k made differentiable, ILGen's training loss (section 3.3; Patel et al., CVPR 2022).

For a query q, its positives P_q and its database Omega, with similarities s and a sigmoid sigma::

    r(x)   = 1 + sum over z in Omega, z != x, of sigma((s_qz - s_qx) / rank_temperature)     the smooth rank of x
    R_k(q) = min(k, sum over x in P_q of sigma((k - r(x)) / recall_temperature)) / min(k, |P_q|)
    loss   = mean over queries of (1 - mean over k of R_k(q))

**The floor is above 0.** sigma(k - r) is far from a step at recall_temperature 1, so a perfect ranking still costs:
0.128 for three positives and k = 1, 2, 4, 8.

**The database does not hold the query:** ILGen's has NB - 1 images. (The code released with recall@k keeps the query
in, at similarity 1 to itself, which adds about 1 to every rank.)

**Memory.** Only positives are ranked: Q * P * N comparisons for Q queries with at most P positives among N images
(400 * 3 * 1600 for ILGen's batch: 8 MB per array).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from idmetric.train.losses.arrays import check_labels, check_matrix, check_temperature, cosines, full, masked_mean

KS = (1, 2, 4, 8)  # supplement B


def recall_at_k(
    similarity: Tensor,
    positive: Tensor,
    database: Tensor,
    *,
    ks: Sequence[int] = KS,
    rank_temperature: float = 0.01,
    recall_temperature: float = 1.0,
) -> Tensor:
    """1 - mean recall@k of queries against images (formula: module).

    Args:
        similarity: (Q, N), cosines; higher = retrieved earlier.
        positive: bool (Q, N), a subset of `database`.
        database: bool (Q, N), the images each query searches.
        ks: depths of the ranking, >= 1.
        rank_temperature: of the comparison of two similarities, 0.01 in the paper.
        recall_temperature: of the comparison of a rank with k, 1.0 in the paper.

    Returns:
        A scalar in [0, 1], mean over queries that have a positive; 0 where none has. In float32 or better.
    """
    check_matrix(similarity, positive, database)
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must be one or more whole numbers >= 1, got {list(ks)}")
    check_temperature(rank_temperature)
    check_temperature(recall_temperature)
    # columns of each query's positives (Q, P), filled up with other columns
    count = positive.sum(1)
    most = int(count.max()) if count.numel() else 0
    order = positive.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    columns = order[:, :most]
    is_positive = torch.arange(most, device=count.device) < count[:, None]

    ranks = _ranks(full(similarity), columns, database, rank_temperature)
    recalls = []
    for k in ks:
        hits = torch.sigmoid((k - ranks) / recall_temperature)
        hits = hits.masked_fill(~is_positive, 0).sum(1)
        recalls.append(hits.clamp(max=k) / count.clamp(1, k))
    mean_recall = torch.stack(recalls).mean(0)
    return masked_mean(1 - mean_recall, count > 0)


def batch_recall_at_k(
    embedding: Tensor,
    label: Tensor,
    *,
    query: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """`recall_at_k` of a batch that searches itself (ILGen Fig. 5): images of one label are each other's positives.

    Args:
        embedding: (N, D), of any length: cosines are taken.
        label: int (N,), the class of each image, in any order.
        query: indices (Q,) of the images that query, one per class in ILGen; None = all, as in the released code.
        options: as in `recall_at_k`.

    Returns:
        A scalar in [0, 1], mean over queries with another image of their class.
    """
    check_labels(embedding, label)
    row = torch.arange(len(label), device=label.device)
    if query is None:
        query = row
    database = query[:, None] != row
    is_same_class = label[query, None] == label
    similarity = cosines(embedding[query], embedding)
    return recall_at_k(similarity, is_same_class & database, database, **options)


def _ranks(
    similarity: Tensor,
    columns: Tensor,
    database: Tensor,
    temperature: float,
) -> Tensor:
    """Smooth ranks (Q, P) of the images in `columns` (Q, P)."""
    rivals = database[:, None].expand(-1, columns.shape[1], -1)
    rivals = rivals.scatter(2, columns[:, :, None], False)
    ranked = similarity.gather(1, columns)
    difference = similarity[:, None] - ranked[:, :, None]
    ahead = torch.sigmoid(difference / temperature)
    ahead = ahead.masked_fill(~rivals, 0)
    return 1 + ahead.sum(2)
