"""The NearID loss: same identity above near-identity distractor above random batch image (NearID section 3.2).

With l_uv = cos(u, v) / tau, anchors a_i, their positives g_ip, their distractors r_ik, G the positives of the whole
batch and B_i = G without i's own, means E over samples with a valid view in that slot::

    L_disc = mean_p E_i [ -l(a_i, g_ip) + log( sum over g in G of e^l(a_i, g) + sum_k e^l(a_i, r_ik) ) ]     Eq. 1
    L_rank = mean_k E_i [ softplus( log sum over g in B_i of e^l(a_i, g) - l(a_i, r_ik) ) ]                   Eq. 2
    L      = L_disc + alpha L_rank                                                                            Eq. 3
    L_coh  = E_i [ mean_p (1 - cos(g_ip, normalized sum_p g_ip)) ], added with weight beta                    Eq. 7, 8

The other own positives stay in L_disc's denominator; other anchors' distractors appear nowhere; the loss has the
direction anchor -> pool alone, though the text of the paper's Table 10 calls it symmetric.

**Masks** ("we average only over valid positives and distractors using masks (omitted for clarity)"): a missing view
or distractor is not a target and appears in no sum. The released code masks targets only: missing slots stay in its
denominators, which we do not follow.

**Several processes.** Gather first: a batch is the whole batch, and each process gets the same loss. (The released
code averages each process's own anchors, and its means over masks are local.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.train.losses.arrays import check_shapes, check_temperature, cosines, full, masked_logsumexp, masked_mean

TEMPERATURE = 0.07  # section 3.2
ALPHA = 0.5  # Eq. 3


@dataclass(frozen=True)
class Tuples:
    """A batch of training tuples (section 3.1). Embeddings may have any length: cosines are taken.

    Slots that are not valid may hold anything, also NaN: they are set to 0, do not count, and get no gradient.

    Args:
        anchor: (B, D). positive: (B, P, D). distractor: (B, K, D); K may be 0.
        positive_valid, distractor_valid: bool (B, P) and (B, K); None = all.
        identity: int (B,); rows of one identity are not each other's negatives. None = as the paper, where a row that
            MTG's repetition brings twice into a batch is.

    Raises:
        ValueError: if shapes do not fit.
    """

    anchor: Tensor
    positive: Tensor
    distractor: Tensor
    positive_valid: Tensor = None  # type: ignore[assignment]  # filled in below, as the next two
    distractor_valid: Tensor = None  # type: ignore[assignment]
    identity: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        anchor = self.anchor
        positive = self.positive
        distractor = self.distractor
        fit = anchor.ndim == 2 and positive.ndim == distractor.ndim == 3
        fit = fit and len(anchor) == len(positive) == len(distractor) > 0
        need = "anchors (B, D), positives (B, P, D) and distractors (B, K, D), B >= 1"
        check_shapes(fit, need, anchor, positive, distractor)

        filled = {"identity": self.identity}
        if self.identity is None:
            filled["identity"] = torch.arange(len(anchor), device=anchor.device)
        for name in ("positive", "distractor"):
            slots = getattr(self, name)
            valid = getattr(self, f"{name}_valid")
            if valid is None:
                valid = torch.ones(slots.shape[:2], dtype=torch.bool, device=slots.device)
            check_shapes(valid.shape == slots.shape[:2], "a mask (B, P) or (B, K) of its embeddings", valid, slots)
            filled[f"{name}_valid"] = valid
            filled[name] = slots.masked_fill(~valid[:, :, None], 0)
        vars(self).update(filled)


class Terms(NamedTuple):
    """The three terms of the loss, scalars."""

    discrimination: Tensor
    ranking: Tensor
    cohesion: Tensor


class Cosines(NamedTuple):
    """The terms of a batch's objective: cosines, and which of them count."""

    pool: Tensor  # (B, B * P), each anchor with each positive slot of the batch
    distractor: Tensor  # (B, K), each anchor with its own distractors
    is_positive: Tensor  # bool (B, B * P), the anchor's own valid positives
    is_negative: Tensor  # bool (B, B * P), batch negatives
    distractor_valid: Tensor  # bool (B, K)


def near_id(
    tuples: Tuples,
    *,
    temperature: float | Tensor = TEMPERATURE,
    alpha: float = ALPHA,
    beta: float = 0.0,
) -> Tensor:
    """The NearID loss, L_disc + alpha L_rank + beta L_coh (Eq. 3; formulas: module).

    Args:
        tuples: the whole batch, gathered over processes.
        temperature: tau > 0; fixed at 0.07 in the paper.
        alpha: weight of the ranking term (0.5; Table 8 varies it).
        beta: weight of the cohesion term; 0 = none, 0.1 = the paper's "+ Pos. Cohesion" (section 0.E.6).

    Returns:
        A scalar >= 0, in float32 or better.
    """
    terms = near_id_terms(tuples, temperature=temperature)
    return terms.discrimination + alpha * terms.ranking + beta * terms.cohesion


def near_id_terms(tuples: Tuples, *, temperature: float | Tensor = TEMPERATURE) -> Terms:
    """The unweighted terms of `near_id`, to weigh or to log; arguments as there."""
    check_temperature(temperature)
    batch = batch_cosines(tuples)
    return Terms(
        discrimination=_discrimination(batch, temperature),
        ranking=ranking(batch, temperature=temperature),
        cohesion=_cohesion(tuples),
    )


def batch_cosines(tuples: Tuples) -> Cosines:
    """All cosines of a batch."""
    count, slots, _ = tuples.positive.shape
    row = torch.arange(count, device=tuples.anchor.device)
    is_own = row[:, None] == row.repeat_interleave(slots)
    is_other_identity = tuples.identity[:, None] != tuples.identity.repeat_interleave(slots)
    valid = tuples.positive_valid.flatten()
    return Cosines(
        pool=cosines(tuples.anchor, tuples.positive.flatten(0, 1)),
        distractor=distractor_cosines(tuples.anchor, tuples.distractor),
        is_positive=is_own & valid,
        is_negative=is_other_identity & valid,
        distractor_valid=tuples.distractor_valid,
    )


def distractor_cosines(anchor: Tensor, distractor: Tensor) -> Tensor:
    """Cosines (B, K) of each anchor (B, D) with its own distractors (B, K, D)."""
    return cosines(anchor[:, None], distractor)[:, 0]


def ranking(
    batch: Cosines,
    *,
    temperature: float | Tensor = TEMPERATURE,
    pooled: bool = False,
) -> Tensor:
    """L_rank: each distractor above the log-sum-exp of the batch negatives (Eq. 2); 0 without batch negatives.

    Args:
        batch: from `batch_cosines(tuples)`.
        temperature: tau.
        pooled: mean over all valid distractors at once instead of slot by slot.
    """
    pool = batch.pool / temperature
    distractor = batch.distractor / temperature
    negatives = masked_logsumexp(pool, batch.is_negative)
    terms = F.softplus(negatives[:, None] - distractor)
    mean = masked_mean if pooled else _mean_over_slots
    return mean(terms, batch.distractor_valid)


def _discrimination(batch: Cosines, temperature: float | Tensor) -> Tensor:
    is_candidate = batch.is_negative | batch.is_positive
    logits = torch.cat([batch.pool, batch.distractor], 1) / temperature
    counted = torch.cat([is_candidate, batch.distractor_valid], 1)
    denominator = masked_logsumexp(logits, counted)

    # each anchor's own positives (B, P)
    pool = batch.pool / temperature
    count = len(pool)
    row = torch.arange(count, device=pool.device)
    target = pool.view(count, count, -1)[row, row]
    valid = batch.is_positive.view(count, count, -1)[row, row]
    denominator = denominator.masked_fill(~valid.any(1), 0)
    return _mean_over_slots(denominator[:, None] - target, valid)


def _cohesion(tuples: Tuples) -> Tensor:
    valid = tuples.positive_valid
    unit = F.normalize(full(tuples.positive), dim=-1)
    unit = unit.masked_fill(~valid[:, :, None], 0)
    # unit vectors: the mean of cos(g_p, prototype) is the length of their sum over their number
    count = valid.sum(1)
    length = torch.linalg.vector_norm(unit.sum(1), dim=1)
    spread: Tensor = 1 - length / count.clamp_min(1)
    return spread.masked_fill(count < 2, 0).mean()


def _mean_over_slots(terms: Tensor, valid: Tensor) -> Tensor:
    """Mean over the samples of each slot (column), then over the slots that have one."""
    slot_means = masked_mean(terms, valid, 0)
    return masked_mean(slot_means, valid.any(0))
