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

from idmetric.train.losses.arrays import check_shapes, check_temperature, cosines, full, masked_logsumexp, masked_mean
from idmetric.train.losses.info_nce import info_nce_pairs
from idmetric.train.losses.near_id import ALPHA, TEMPERATURE, Tuples, batch_cosines, ranking

BIAS = -10.0  # of SigLIP's logits, as in Zhai et al. 2023 and the released code
CIRCLE_MARGIN, CIRCLE_SCALE = 0.25, 64.0  # released code
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
    row = torch.arange(len(tuples.anchor), device=tuples.anchor.device)
    slot = tuples.positive_valid.to(torch.uint8).argmax(1)
    present, positive = tuples.positive_valid[row, slot], tuples.positive[row, slot]
    counted = present[:, None] & present
    own = (row[:, None] == row) & counted
    other = (tuples.identity[:, None] != tuples.identity) & counted
    similarity, total = cosines(tuples.anchor, positive), []
    for logits, source in ((similarity, tuples.anchor), (similarity.T, positive)):
        near, near_valid = cosines(source[:, None], tuples.distractor)[:, 0], tuples.distractor_valid
        if not distractors:
            near, near_valid = near[:, :0], near_valid[:, :0]
        everything, negative = torch.cat([logits, near], 1), torch.cat([other, near_valid], 1)
        total.append(info_nce_pairs(everything, F.pad(own, (0, near.shape[1])), negative, temperature=temperature))
    return (total[0] + total[1]) / 2


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
    near = cosines(tuples.anchor[:, None], tuples.distractor)[:, 0]
    return base + alpha * oracle_ranking(near, oracle, tuples.distractor_valid, temperature=temperature)


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
    check_shapes(similarity.ndim == 2 and similarity.shape == oracle.shape, "two arrays (B, K)", similarity, oracle)
    check_temperature(temperature)
    ordered = (oracle[:, :, None] > oracle[:, None]) & valid[:, :, None] & valid[:, None]
    logits = full(similarity) / temperature
    return masked_mean(F.softplus(logits[:, None] - logits[:, :, None] + ORACLE_MARGIN), ordered)


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
    c = batch_cosines(tuples)
    pool, near = c.pool / temperature + BIAS, c.near / temperature + BIAS
    pair_terms, near_terms = F.softplus(torch.where(c.own, -pool, pool)), F.softplus(near)
    counted = c.own | c.rest
    if per_anchor:
        pairs, hard = (
            x.masked_fill(~valid, 0).sum() / len(x) for x, valid in ((pair_terms, counted), (near_terms, c.near_valid))
        )
    else:
        pairs, hard = masked_mean(pair_terms, counted), masked_mean(near_terms, c.near_valid)
    return pairs + hard + alpha * ranking(c, temperature=temperature, pooled=True)


def circle_ranked(tuples: Tuples, *, alpha: float = ALPHA, temperature: float = TEMPERATURE) -> Tensor:
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
    c = batch_cosines(tuples)
    negative = torch.cat([c.rest, c.near_valid], 1)
    base = circle(torch.cat([c.pool, c.near], 1), F.pad(c.own, (0, c.near.shape[1])), negative)
    top = c.pool.masked_fill(~c.rest, -torch.inf).amax(1)
    hinge = F.relu((top[:, None] - c.near) / temperature + CIRCLE_MARGIN)
    return base + alpha * masked_mean(hinge, c.near_valid)


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
    weight_p, weight_n = (1 + margin - s.detach()).relu(), (s.detach() + margin).relu()
    near = masked_logsumexp(-scale * weight_p * (s - 1 + margin), positive)
    far = masked_logsumexp(scale * weight_n * (s - margin), negative)
    both = positive.any(1) & negative.any(1)
    return F.softplus((near + far).masked_fill(~both, -torch.inf)).mean()
