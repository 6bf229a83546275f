"""`--released-loss` with the pair objectives: anchors without a positive, as NearID's released code treats them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from idmetric.losses.near_id import Tuples
from idmetric.losses.near_id_objectives import symmetric_info_nce
from idmetric.train.nearid.config import Config
from idmetric.train.nearid.recipe import values_of

TAU = 0.07


def tuples(lost: list[int]) -> Tuples:
    """Five tuples of one positive and two distractors; those in `lost` have a blank picture's embedding as positive."""
    g = torch.Generator().manual_seed(0)
    a, p, r = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((5, 8), (5, 1, 8), (5, 2, 8)))
    p = p + 0.5 * a[:, None]
    p[lost] = torch.ones(8, dtype=torch.float64)
    valid, near = torch.ones(5, 1, dtype=torch.bool), torch.ones(5, 2, dtype=torch.bool)
    valid[lost] = near[3, 1] = False
    return Tuples(a, p, r, valid, near)


def released(t: Tuples, distractors: bool) -> float:
    """Both cross-entropies over all anchors and all positives, averaged over the anchors that have one."""
    assert t.positive_valid is not None
    assert t.distractor_valid is not None
    a, p, r = (np.asarray(x) for x in (t.anchor, t.positive[:, 0], t.distractor))

    def similarity(x: Any, y: Any) -> float:
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y) / TAU)

    total = []
    for one, other in ((a, p), (p, a)):
        terms = []
        for i in range(5):
            crowd = [similarity(one[i], other[j]) for j in range(5)]
            if distractors:
                crowd += [similarity(one[i], r[i, k]) for k in range(2) if t.distractor_valid[i, k]]
            if t.positive_valid[i, 0]:
                terms.append(math.log(sum(map(math.exp, crowd))) - crowd[i])
        total.append(sum(terms) / len(terms))
    return sum(total) / 2


@pytest.mark.parametrize("distractors", [False, True])
@pytest.mark.parametrize("lost", [[], [2], [0, 4]])
def test_an_anchor_without_a_positive_stays_among_the_negatives_of_the_others(
    lost: list[int], distractors: bool
) -> None:
    t = tuples(lost)
    expected = released(t, distractors)
    assert symmetric_info_nce(t, distractors=distractors, released=True).item() == pytest.approx(expected, rel=1e-10)
    plain = symmetric_info_nce(t, distractors=distractors).item()
    assert (abs(plain - expected) > 1e-4) == bool(lost)

    config = Config(objective="info-nce-distractors" if distractors else "info-nce", temperature=TAU)
    oracle = torch.full((5, 2), torch.nan, dtype=torch.float64)  # no ranked pair: the oracle's loss is this one
    for objective in (config.objective, config.objective.replace("info-nce", "oracle")):
        for flag, value in ((True, expected), (False, plain)):
            chosen = replace(config, objective=objective, released_loss=flag)
            assert values_of(chosen, t, oracle, TAU)["loss"].item() == pytest.approx(value, rel=1e-10), objective


def test_without_any_positive_the_released_loss_is_zero() -> None:
    assert symmetric_info_nce(tuples([0, 1, 2, 3, 4]), released=True).item() == 0
