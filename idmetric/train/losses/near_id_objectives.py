"""The objectives NearID is compared with (NearID Tables 3 and 4), on the same batches of tuples.

| Table 3 | here |
|---|---|
| InfoNCE (sym., 1-pos) | `symmetric_info_nce(tuples)` |
| + R neg | `symmetric_info_nce(tuples, distractors=True)` |
| + Oracle Ranking | `oracle_info_nce(tuples, oracle)` |
| + R neg + Oracle Ranking | `oracle_info_nce(tuples, oracle, distractors=True)` |
| SigLIP (BCE, ext., + hard>batch rank) | `sigmoid_ranked(tuples)` |
| Circle (ext., + hard>batch margin rank) | `circle_ranked(tuples)` |

Table 4 is short: where it gives no number or no normalization, the released code's is taken, and said so. Masks are
those of `near_id`: missing entries appear in no sum.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.train.losses.arrays import check_matrix, check_temperature, cosines, full, masked_logsumexp, masked_mean
from idmetric.train.losses.info_nce import info_nce_pairs
from idmetric.train.losses.near_id import ALPHA, TEMPERATURE, Tuples, batch_cosines, distractor_cosines, ranking

BIAS = -10.0  # of SigLIP's logits, as in Zhai et al. 2023 and the released code
CIRCLE_MARGIN = 0.25  # released code
CIRCLE_SCALE = 64.0  # released code
ORACLE_MARGIN = 0.05  # m of Table 4, which gives no number; released code


def symmetric_info_nce(
    tuples: Tuples, *, temperature: float | Tensor = TEMPERATURE, distractors: bool = False
) -> Tensor:
    """Symmetric softmax cross-entropy between anchors and one positive each (Table 4, InfoNCE and "+ R neg").

    Args:
        tuples: the whole batch; the positive is an anchor's first valid one (the released code draws it at random).
            Anchors without a positive take no part.
        temperature: tau > 0.
        distractors: append each anchor's own distractors to its row of both softmaxes ("+ R neg"): in the direction
            positive -> anchor they are compared with the positive.

    Returns:
        A scalar >= 0, the mean of both directions; 0 if no anchor has a positive.
    """
    anchor = tuples.anchor
    identity = tuples.identity
    row = torch.arange(len(anchor), device=anchor.device)
    slot = tuples.positive_valid.to(torch.uint8).argmax(1)
    valid = tuples.positive_valid[row, slot]
    positive = tuples.positive[row, slot]
    counted = valid[:, None] & valid
    is_positive = (row[:, None] == row) & counted
    is_negative = (identity[:, None] != identity) & counted

    similarity = cosines(anchor, positive)
    total = torch.zeros_like(similarity[0, 0])
    for cosine, query in ((similarity, anchor), (similarity.T, positive)):
        candidates = cosine
        is_rival = is_negative
        is_match = is_positive
        if distractors:
            distractor = distractor_cosines(query, tuples.distractor)
            candidates = torch.cat([cosine, distractor], 1)
            is_rival = torch.cat([is_negative, tuples.distractor_valid], 1)
            is_match = F.pad(is_positive, (0, distractor.shape[1]))
        total = total + info_nce_pairs(candidates, is_match, is_rival, temperature=temperature)
    return total / 2


def oracle_info_nce(
    tuples: Tuples,
    oracle: Tensor,
    *,
    temperature: float = TEMPERATURE,
    distractors: bool = False,
    alpha: float = ALPHA,
) -> Tensor:
    """`symmetric_info_nce` plus alpha times `oracle_ranking` (Table 4, "+ Oracle"); arguments as there.

    The paper gives no weight for this row beyond L_disc + alpha L_rank of the table's caption.
    """
    base = symmetric_info_nce(tuples, temperature=temperature, distractors=distractors)
    distractor = distractor_cosines(tuples.anchor, tuples.distractor)
    order = oracle_ranking(distractor, oracle, tuples.distractor_valid, temperature=temperature)
    return base + alpha * order


def oracle_ranking(
    similarity: Tensor,
    oracle: Tensor,
    valid: Tensor,
    *,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """RankNet on pairs of a row: -log sigma(l_i - l_j - m) wherever oracle_i > oracle_j (Table 4, "+ Oracle").

    Args:
        similarity: (B, K), of an anchor to its distractors.
        oracle: (B, K), how much of the identity is left: MTG's 1 - part area / object area. NaN = unknown. Equal
            values form no pair.
        valid: bool (B, K).
        temperature: tau of l = similarity / tau, as the table defines it. (The released code takes plain cosines.)

    Returns:
        A scalar >= 0, mean over pairs; 0 without any.
    """
    check_matrix(similarity, oracle)
    check_temperature(temperature)
    both_valid = valid[:, :, None] & valid[:, None]
    is_ordered = oracle[:, :, None] > oracle[:, None]
    is_ordered = is_ordered & both_valid
    logits = full(similarity) / temperature
    difference = logits[:, None] - logits[:, :, None]
    return masked_mean(F.softplus(difference + ORACLE_MARGIN), is_ordered)


def sigmoid_ranked(
    tuples: Tuples,
    *,
    temperature: float | Tensor = TEMPERATURE,
    alpha: float = ALPHA,
    per_anchor: bool = False,
) -> Tensor:
    """Sigmoid cross-entropy of all pairs, distractors as negatives, plus the ranking term (Table 4, "SigLIP + Rank").

    L = BCE over (anchor, pool) pairs + BCE(l_r, 0) over distractors + alpha L_rank, each a mean over its valid pairs as
    in the released code (Zhai et al. divide the sum over pairs by the number of anchors), l = cos / tau + BIAS. The
    bias cancels in -log sigma(l_r - LSE_b), which is NearID's own L_rank.

    Args:
        tuples: the whole tuples.
        temperature: tau > 0.
        alpha: weight of the ranking term.
        per_anchor: as Zhai et al., divide both sums by the number of anchors instead of their numbers of pairs. A mean
            over pairs leaves the positives about 1/B of the first term, and the distractors all of the second.

    Returns:
        A scalar >= 0.
    """
    check_temperature(temperature)
    batch = batch_cosines(tuples)
    pool = batch.pool / temperature + BIAS
    distractor = batch.distractor / temperature + BIAS
    pair_terms = F.softplus(torch.where(batch.is_positive, -pool, pool))
    distractor_terms = F.softplus(distractor)

    mean = _mean_per_anchor if per_anchor else masked_mean
    pairs = mean(pair_terms, batch.is_positive | batch.is_negative)
    distractors = mean(distractor_terms, batch.distractor_valid)
    return pairs + distractors + alpha * ranking(batch, temperature=temperature, pooled=True)


def _mean_per_anchor(terms: Tensor, valid: Tensor) -> Tensor:
    return terms.masked_fill(~valid, 0).sum() / len(terms)


def circle_ranked(
    tuples: Tuples,
    *,
    alpha: float = ALPHA,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """Circle loss with distractors among the negatives, plus a hinge (Table 4, "Circle + Rank").

    The hinge is (1/K) sum_k [ max_b l_b - l_rk + m ]+ over batch negatives b, with l = cos / tau and m as in
    `circle`. (The released code takes plain cosines, and the mean over the batch instead of its maximum.)

    Args:
        tuples: the whole tuples.
        alpha: weight of the hinge.
        temperature: tau of the hinge's logits.

    Returns:
        A scalar >= 0.
    """
    check_temperature(temperature)
    batch = batch_cosines(tuples)
    similarity = torch.cat([batch.pool, batch.distractor], 1)
    is_positive = F.pad(batch.is_positive, (0, batch.distractor.shape[1]))
    is_negative = torch.cat([batch.is_negative, batch.distractor_valid], 1)
    base = circle(similarity, is_positive, is_negative)

    negatives = batch.pool.masked_fill(~batch.is_negative, -torch.inf)
    hardest = negatives.amax(1)
    difference = hardest[:, None] - batch.distractor
    hinge = F.relu(difference / temperature + CIRCLE_MARGIN)
    return base + alpha * masked_mean(hinge, batch.distractor_valid)


def circle(
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = CIRCLE_MARGIN,
    scale: float = CIRCLE_SCALE,
) -> Tensor:
    """Circle loss (Sun et al. 2020, Eq. 6 with the margins of section 3.2), mean over queries.

    log(1 + sum_n e^{scale a_n (s_n - m)} sum_p e^{-scale a_p (s_p - 1 + m)}), where the weights
    a_p = max(0, 1 + m - s_p) and a_n = max(0, s_n + m) carry no gradient.

    Args:
        similarity: (Q, N), cosines.
        positive, negative: bool (Q, N).
        margin: m, in (0, 1).
        scale: gamma.

    Returns:
        A scalar >= 0; queries without a positive or without a negative contribute 0.
    """
    s = full(similarity)
    weights = s.detach()
    positive_weight = (1 + margin - weights).relu()
    negative_weight = (weights + margin).relu()
    positive_logits = -scale * positive_weight * (s - 1 + margin)
    negative_logits = scale * negative_weight * (s - margin)

    positive_sum = masked_logsumexp(positive_logits, positive)
    negative_sum = masked_logsumexp(negative_logits, negative)
    has_both = positive.any(1) & negative.any(1)
    total = positive_sum + negative_sum
    total = total.masked_fill(~has_both, -torch.inf)
    return F.softplus(total).mean()
