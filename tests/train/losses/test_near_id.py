from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from idmetric.train.losses.near_id import Terms, Tuples, near_id, near_id_terms
from idmetric.train.losses.near_id_objectives import (
    circle,
    circle_ranked,
    oracle_info_nce,
    oracle_ranking,
    sigmoid_ranked,
    symmetric_info_nce,
)
from tests.reference import losses_loop as loop

TAU = 0.07


def random_tuples(seed: int = 0, *, rows: int = 5, views: int = 2, near: int = 3, masked: bool = True) -> Tuples:
    g = torch.Generator().manual_seed(seed)
    shapes = ((rows, 8), (rows, views, 8), (rows, near, 8))
    a, p, r = (torch.randn(s, generator=g, dtype=torch.float64) for s in shapes)
    p, r = 0.4 * a[:, None] + p, 0.2 * a[:, None] + r
    if not masked:
        return Tuples(a, p, r)
    valid_p, valid_r = torch.ones(rows, views, dtype=torch.bool), torch.ones(rows, near, dtype=torch.bool)
    valid_p[0, 1] = valid_p[3, 0] = valid_r[1, 0] = False
    valid_r[2] = False
    return Tuples(a, p, r, valid_p, valid_r)


def lists(t: Tuples) -> tuple[list[np.ndarray], list[list[np.ndarray | None]], list[list[np.ndarray | None]]]:
    def views(x: Tensor, valid: Tensor) -> list[list[np.ndarray | None]]:
        return [
            [v if ok else None for v, ok in zip(row, m, strict=True)] for row, m in zip(x.numpy(), valid, strict=True)
        ]

    return list(t.anchor.numpy()), views(t.positive, t.positive_valid), views(t.distractor, t.distractor_valid)


@pytest.mark.parametrize("masked", [False, True])
def test_every_term_is_its_equation(masked: bool) -> None:
    t = random_tuples(masked=masked)
    a, p, r = lists(t)
    expected = Terms(loop.discrimination(a, p, r, TAU), loop.ranking(a, p, r, TAU), loop.cohesion(p))  # type: ignore[arg-type]
    for got, want in zip(near_id_terms(t), expected, strict=True):
        assert got.item() == pytest.approx(want, rel=1e-10)
    total = expected.discrimination + 0.5 * expected.ranking
    assert near_id(t).item() == pytest.approx(float(total), rel=1e-10)
    assert near_id(t, beta=0.1).item() == pytest.approx(float(total + 0.1 * expected.cohesion), rel=1e-10)


def test_cohesion_is_its_equation_where_one_of_three_views_is_missing() -> None:
    t = random_tuples(views=3)
    _, p, _ = lists(t)
    assert sorted(sum(view is not None for view in row) for row in p) == [2, 2, 3, 3, 3]
    assert near_id_terms(t).cohesion.item() == pytest.approx(loop.cohesion(p), rel=1e-10)


def test_missing_slots_may_hold_nan_and_get_no_gradient() -> None:
    t = random_tuples()
    p = t.positive.masked_fill(~t.positive_valid[:, :, None], math.nan).requires_grad_()
    r = t.distractor.masked_fill(~t.distractor_valid[:, :, None], math.nan).requires_grad_()
    loss = near_id(replace(t, positive=p, distractor=r), beta=0.1)
    assert loss.item() == near_id(t, beta=0.1).item()
    loss.backward()
    for x, valid in ((p, t.positive_valid), (r, t.distractor_valid)):
        assert x.grad is not None
        assert (x.grad[~valid] == 0).all()
        assert (x.grad[valid].abs().sum(-1) > 0).all()


def test_one_identity_alone_has_no_ranking_and_no_distractor_is_zero() -> None:
    single = near_id_terms(random_tuples(rows=1, masked=False))
    assert single.ranking.item() == 0
    assert single.discrimination.item() > 0
    none = random_tuples(near=0, masked=False)
    a, p, r = lists(none)
    assert near_id(none).item() == pytest.approx(loop.discrimination(a, p, r, TAU))
    invalid = replace(random_tuples(), distractor_valid=torch.zeros(5, 3, dtype=torch.bool))
    assert near_id_terms(invalid).ranking.item() == 0


def test_the_wanted_order_costs_almost_nothing_and_collapse_its_chance_level() -> None:
    axes = torch.eye(9, dtype=torch.float64)
    anchor = axes[:3]
    distractor = (0.6 * anchor + 0.8 * axes[3:6])[:, None]
    ordered = near_id_terms(Tuples(anchor, anchor[:, None], distractor))
    assert ordered.discrimination.item() < 0.01
    assert ordered.ranking.item() < 0.01
    same = Tuples(torch.ones(3, 4), torch.ones(3, 2, 4), torch.ones(3, 3, 4))
    equal = near_id_terms(same)
    assert equal.discrimination.item() == pytest.approx(math.log(6 + 3))
    assert equal.ranking.item() == pytest.approx(math.log(1 + 4))
    assert equal.cohesion.item() == pytest.approx(0, abs=1e-6)


def test_rows_of_one_identity_are_not_each_others_negatives() -> None:
    t = random_tuples(masked=False)
    a, p, r = lists(t)
    identity = torch.tensor([0, 1, 0, 2, 3])
    without = [0, 1, 3, 4]  # what row 0 sees: everything but row 2
    only = near_id_terms(replace(t, identity=identity))
    plain = near_id_terms(t)
    assert only.discrimination.item() < plain.discrimination.item()
    rows = []
    for i in range(5):
        seen = without if i == 0 else [1, 2, 3, 4] if i == 2 else range(5)
        rest = [loop.cos(a[i], g) / TAU for j in seen if j != i for g in p[j]]  # type: ignore[arg-type]
        near = [loop.cos(a[i], x) / TAU for x in r[i]]  # type: ignore[arg-type]
        rows.append(loop.mean([loop.softplus(loop.log_sum_exp(rest) - n) for n in near]))
    assert only.ranking.item() == pytest.approx(loop.mean(rows), rel=1e-10)


def first_valid(views: list[list[np.ndarray | None]]) -> list[np.ndarray]:
    return [next(v for v in row if v is not None) for row in views]


def test_symmetric_info_nce_is_pytorchs_cross_entropy_and_skips_anchors_without_a_positive() -> None:
    t = random_tuples(masked=False, views=1)
    unit = torch.nn.functional.normalize
    logits = unit(t.anchor, dim=-1) @ unit(t.positive[:, 0], dim=-1).T / TAU
    target = torch.arange(5)
    expected = (
        torch.nn.functional.cross_entropy(logits, target) + torch.nn.functional.cross_entropy(logits.T, target)
    ) / 2
    assert symmetric_info_nce(t).item() == pytest.approx(expected.item(), rel=1e-10)
    valid = torch.ones(5, 1, dtype=torch.bool)
    valid[2] = False
    rest = [0, 1, 3, 4]
    fewer = Tuples(t.anchor[rest], t.positive[rest], t.distractor[rest])
    skipped = symmetric_info_nce(replace(t, positive_valid=valid), distractors=True)
    assert skipped.item() == pytest.approx(symmetric_info_nce(fewer, distractors=True).item(), rel=1e-12)


def test_oracle_ranking_is_ranknet_on_ordered_pairs() -> None:
    t = random_tuples()
    a, p, r = lists(t)
    g = torch.Generator().manual_seed(3)
    oracle = torch.rand(5, 3, generator=g, dtype=torch.float64)
    oracle[4, 1] = oracle[4, 0]
    near = np.array([[0 if x is None else loop.cos(a[i], x) for x in row] for i, row in enumerate(r)])
    rank = loop.oracle_ranking(near, oracle.numpy(), t.distractor_valid.numpy(), TAU, 0.05)
    got = oracle_ranking(torch.from_numpy(near), oracle, t.distractor_valid)
    assert got.item() == pytest.approx(rank, rel=1e-10)
    base = loop.symmetric(a, first_valid(p), r, TAU)
    assert oracle_info_nce(t, oracle, distractors=True).item() == pytest.approx(base + 0.5 * rank, rel=1e-10)
    unknown = oracle.clone()
    unknown[0] = math.nan
    for known in (unknown[:1], torch.ones(2, 3)):
        assert oracle_ranking(torch.zeros_like(known), known, torch.ones_like(known) > 0).item() == 0


def test_sigmoid_ranked_is_pairwise_cross_entropy_plus_the_ranking_term() -> None:
    t = random_tuples()
    a, p, r = lists(t)
    ranks = []
    for i, row in enumerate(r):
        rest = [loop.cos(a[i], g) / TAU for j in range(5) if j != i for g in p[j] if g is not None]
        ranks += [
            -math.log(loop.sigmoid(loop.cos(a[i], x) / TAU - loop.log_sum_exp(rest))) for x in row if x is not None
        ]
    expected = loop.sigmoid_pairs(a, p, r, TAU, -10.0) + 0.5 * loop.mean(ranks)
    assert sigmoid_ranked(t).item() == pytest.approx(expected, rel=1e-9)
    summed = loop.sigmoid_pairs(a, p, r, TAU, -10.0, per_anchor=True) + 0.25 * loop.mean(ranks)
    assert sigmoid_ranked(t, alpha=0.25, per_anchor=True).item() == pytest.approx(summed, rel=1e-9)
    assert summed > 2 * expected


def test_a_mean_over_pairs_leaves_a_share_of_the_batch_to_positives() -> None:
    """SigLIP + rank: positives have a gradient from the first term alone."""
    for count in (8, 32):
        pull = {}
        for per_anchor in (False, True):
            g = torch.Generator().manual_seed(0)
            x = torch.randn(count, 4, 16, generator=g, dtype=torch.float64)
            positive = x[:, 1:2].clone().requires_grad_()
            batch = Tuples(x[:, 0], positive, x[:, 2:], None, None)
            own = torch.eye(count, dtype=torch.bool)
            logits = torch.nn.functional.cosine_similarity(x[:, None, 0], positive[None, :, 0], dim=-1) / TAU - 10
            sigmoid_ranked(batch, alpha=0.0, per_anchor=per_anchor).backward()
            found = positive.grad.clone()
            positive.grad = None
            terms = torch.nn.functional.softplus(torch.where(own, -logits, logits))
            (terms.sum() / count if per_anchor else terms.mean()).backward()
            torch.testing.assert_close(found, positive.grad)
            pull[per_anchor] = found.norm()
        assert pull[True] / pull[False] == pytest.approx(count)


def circle_part(t: Tuples) -> float:
    a, p, r = lists(t)
    return loop.mean([
        loop.circle([loop.cos(a[i], g) for g in p[i] if g is not None],
                    [loop.cos(a[i], g) for j in range(5) if j != i for g in p[j] if g is not None]
                    + [loop.cos(a[i], x) for x in r[i] if x is not None], 0.25, 64.0)
        for i in range(5)
    ])  # fmt: skip


def test_circle_ranked_is_the_circle_loss_plus_a_hinge() -> None:
    t = random_tuples()
    a, p, r = lists(t)
    hinge = loop.max_hinge(a, p, r, TAU, 0.25)
    assert hinge > 0
    assert circle_ranked(t).item() == pytest.approx(circle_part(t) + 0.5 * hinge, rel=1e-9)


def test_neither_missing_views_nor_rows_of_one_identity_are_the_circle_hinges_negatives() -> None:
    t = random_tuples(rows=4, masked=False)
    valid = torch.ones(4, 2, dtype=torch.bool)
    valid[3, 0] = False
    positive = t.positive.clone()
    positive[2, 0] = t.anchor[0]  # nothing is nearer to anchor 0, but it is of the same identity
    positive[1:3] = positive[1:3] - 3 * t.anchor[3]  # to anchor 3, every negative is farther than a vector of zeros
    positive[0] = positive[0] - 3 * t.anchor[3]
    t = replace(t, positive=positive, positive_valid=valid, identity=torch.tensor([0, 1, 0, 2]))
    terms = []
    for i in range(4):
        others = [j for j in range(4) if t.identity[j] != t.identity[i]]
        rest = [
            loop.cos(t.anchor[i].numpy(), positive[j, p].numpy()) / TAU for j in others for p in (0, 1) if valid[j, p]
        ]
        near = [loop.cos(t.anchor[i].numpy(), r.numpy()) / TAU for r in t.distractor[i]]
        terms += [max(0.0, max(rest) - n + 0.25) for n in near]
    assert max(rest) < 0
    found = circle_ranked(t, alpha=1).item() - circle_ranked(t, alpha=0).item()
    assert found == pytest.approx(loop.mean(terms), rel=1e-9)


def test_circle_agrees_with_pytorch_metric_learning() -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    g = torch.Generator().manual_seed(2)
    x = torch.randn(12, 6, generator=g, dtype=torch.float64)
    label = torch.arange(4).repeat_interleave(3)
    unit = torch.nn.functional.normalize(x, dim=-1)
    same = label[:, None] == label
    unit.requires_grad_(True)
    got = circle(unit @ unit.T, same & ~torch.eye(12, dtype=torch.bool), ~same, margin=0.3, scale=20.0)
    expected = losses.CircleLoss(m=0.3, gamma=20)(unit, label)
    assert got.item() == pytest.approx(expected.item(), rel=1e-6)
    # its weights follow the similarities but pass no gradient; along the sphere, as theirs normalizes once more
    mine, theirs = (torch.autograd.grad(value, unit)[0] for value in (got, expected))
    mine = mine - (mine * unit).sum(1, keepdim=True) * unit
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)


def test_circle_of_a_query_without_positives_or_negatives_is_zero() -> None:
    s = torch.tensor([[0.9, 0.1], [0.9, 0.1]], requires_grad=True)
    yes, no = torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool)
    for loss in (circle(s, yes, no), circle(s, no, yes), circle(s, no, no)):
        assert loss.item() == 0
        (grad,) = torch.autograd.grad(loss, s)
        assert (grad == 0).all()


def test_bad_shapes_are_told() -> None:
    t = random_tuples()
    with pytest.raises(ValueError, match="anchors"):
        near_id(replace(t, positive=t.anchor))
    with pytest.raises(ValueError, match="need a mask"):
        near_id(replace(t, positive_valid=torch.ones(5, 3, dtype=torch.bool)))
    with pytest.raises(ValueError, match="temperature"):
        near_id(t, temperature=0)
    with pytest.raises(ValueError, match="2 arrays of one shape"):
        oracle_ranking(torch.zeros(2, 3), torch.zeros(2, 2), torch.ones(2, 3) > 0)
