"""The losses of NearID's Table 3 by name, with the settings of the recipe."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idmetric.losses.arrays import cosines
from idmetric.losses.near_id import Tuples, near_id_terms
from idmetric.losses.near_id_objectives import circle_ranked, oracle_info_nce, sigmoid_ranked, symmetric_info_nce


def values_of(config: Any, tuples: Tuples, oracle: Tensor, tau: float | Tensor) -> dict[str, Tensor]:
    """The loss of a batch, its terms if they have names, and the share of anchors in order.

    Args:
        config: of the recipe. tuples: the whole batch. oracle: scores (B, K) of distractors, NaN where unknown.
        tau: temperature.

    Returns:
        "loss"; for the NearID loss "discrimination", "ranking" and "cohesion"; with distractors, `ordered`.
    """
    released, alpha = config.released_loss, config.alpha
    distractors = config.objective.endswith("-distractors")
    more: dict[str, Tensor] = {}
    if config.objective == "nearid":
        terms = near_id_terms(tuples, temperature=tau, released=released)
        loss = terms.discrimination + alpha * terms.ranking + config.beta * terms.cohesion
        more = {name: value.detach() for name, value in terms._asdict().items()}
    elif config.objective.startswith("info-nce"):
        loss = symmetric_info_nce(tuples, temperature=tau, distractors=distractors, released=released)
    elif config.objective.startswith("oracle"):
        rank = 1.0 if released else config.temperature
        loss = oracle_info_nce(
            tuples, oracle, temperature=tau, distractors=distractors, alpha=alpha, rank_temperature=rank,
            released=released,
        )  # fmt: skip
    elif config.objective == "siglip":
        loss = sigmoid_ranked(
            tuples, temperature=tau, bias=config.sigmoid_bias, alpha=alpha, per_anchor=config.sigmoid_per_anchor
        )
    else:
        loss = circle_ranked(tuples, alpha=alpha, rank_temperature=config.temperature, released=released)
    if tuples.distractor.shape[1]:
        more["ordered"] = ordered(tuples)
    return {"loss": loss, **more}


def ordered(tuples: Tuples) -> Tensor:
    """Share of anchors nearer to all their positives than to all their distractors, among anchors with both."""
    assert tuples.positive_valid is not None
    assert tuples.distractor_valid is not None
    with torch.no_grad():
        anchor = tuples.anchor[:, None]
        near = cosines(anchor, tuples.positive)[:, 0].masked_fill(~tuples.positive_valid, torch.inf)
        far = cosines(anchor, tuples.distractor)[:, 0].masked_fill(~tuples.distractor_valid, -torch.inf)
        both = tuples.positive_valid.any(1) & tuples.distractor_valid.any(1)
        return ((near.amin(1) > far.amax(1)) & both).sum() / both.sum().clamp_min(1)
