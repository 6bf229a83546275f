from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.train.losses.info_nce import (
    LearnableTemperature,
    info_nce,
    info_nce_pairs,
    label_info_nce,
    query_target_info_nce,
)
from tests.reference import losses_loop as loop


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(positive: list[float], negative: list[list[float]], tau: float) -> float:
    """ID-Sim Eq. 2, a term at a time."""
    pairs = zip(positive, negative, strict=True)
    return loop.mean([loop.one_of(p / tau, [n / tau for n in row]) for p, row in pairs])


def test_info_nce_is_the_equation() -> None:
    g = torch.Generator().manual_seed(0)
    p, n = (torch.rand(s, generator=g, dtype=torch.float64) * 2 - 1 for s in ((5,), (5, 7)))
    assert info_nce(p, n, temperature=0.2).item() == pytest.approx(slow(p.tolist(), n.tolist(), 0.2), rel=1e-12)


def test_masked_negatives_do_not_count() -> None:
    p, n = torch.zeros(2), torch.tensor([[0.5, 9.0], [0.1, 0.2]])
    valid = torch.tensor([[True, False], [False, False]])
    expected = (slow([0.0], [[0.5]], 1.0) + 0) / 2
    assert info_nce(p, n, temperature=1.0, valid=valid).item() == pytest.approx(expected)


def test_limits_of_info_nce() -> None:
    equal = info_nce(torch.ones(4), torch.ones(4, 3), temperature=0.07)
    assert equal.item() == pytest.approx(math.log(4))
    assert info_nce(torch.ones(4), -torch.ones(4, 3), temperature=0.07).item() < 1e-6
    half = info_nce(torch.full((2,), 60000.0).half(), torch.zeros(2, 2).half(), temperature=0.01)
    assert half.dtype == torch.float32
    assert half.isfinite()


def test_a_margin_is_taken_from_the_positive() -> None:
    p, n = random(4), random(4, 3)
    assert info_nce(p, n, margin=0.1).item() == pytest.approx(info_nce(p - 0.1, n).item(), rel=1e-12)
    assert info_nce(p, n, margin=0.1) > info_nce(p, n)


# VisME


def slow_query_target(q: Tensor, t: Tensor, n: Tensor, left_out: set[tuple[int, int]], tau: float) -> float:
    candidates = [*t.numpy(), *n.numpy()]
    terms = []
    for i, x in enumerate(q.numpy()):
        others = [loop.cos(x, c) / tau for j, c in enumerate(candidates) if j != i and (i, j) not in left_out]
        terms.append(loop.one_of(loop.cos(x, candidates[i]) / tau, others))
    return loop.mean(terms)


def test_each_query_competes_with_all_targets_and_all_hard_negatives() -> None:
    q, t, n = random(4, 5), random(4, 5, seed=1), random(6, 5, seed=2)
    plain = query_target_info_nce(q, t, n)
    assert plain.item() == pytest.approx(slow_query_target(q, t, n, set(), 0.02), rel=1e-10)
    valid = torch.tensor([True, True, False, True, True, False])
    hidden = {(i, 4 + j) for i in range(4) for j in (2, 5)}
    padded = query_target_info_nce(q, t, n, negative_valid=valid)
    assert padded.item() == pytest.approx(slow_query_target(q, t, n, hidden, 0.02), rel=1e-10)
    nobody = query_target_info_nce(q, t, n, negative_valid=torch.zeros(6, dtype=torch.bool))
    assert nobody.item() == pytest.approx(query_target_info_nce(q, t).item(), rel=1e-12)


def test_candidates_of_the_querys_identity_are_left_out() -> None:
    q, t, n = random(4, 5), random(4, 5, seed=1), random(3, 5, seed=2)
    identity, of_negative = torch.tensor([7, 3, 7, 1]), torch.tensor([3, 9, 7])
    hidden = {(0, 2), (2, 0), (1, 4), (0, 6), (2, 6)}
    got = query_target_info_nce(q, t, n, identity=identity, negative_identity=of_negative)
    assert got.item() == pytest.approx(slow_query_target(q, t, n, hidden, 0.02), rel=1e-10)


def test_one_direction_is_pytorchs_cross_entropy() -> None:
    q, t = random(5, 4), random(5, 4, seed=1)
    logits = F.normalize(q, dim=1) @ F.normalize(t, dim=1).T / 0.1
    expected = F.cross_entropy(logits, torch.arange(5)).item()
    assert query_target_info_nce(q, t, temperature=0.1).item() == pytest.approx(expected, rel=1e-10)


def test_one_query_alone_costs_nothing_but_keeps_its_graph() -> None:
    q = random(1, 4).requires_grad_()
    loss = query_target_info_nce(q, random(1, 4, seed=1), identity=torch.tensor([5]))
    assert loss.item() == 0
    loss.backward()
    assert q.grad is not None
    assert (q.grad == 0).all()


def test_the_temperature_is_learned_and_stays_positive_and_above_its_minimum() -> None:
    temperature = LearnableTemperature()
    assert temperature().item() == pytest.approx(0.02)
    q, t = random(8, 4), random(8, 4, seed=1)
    loss = query_target_info_nce(q, t, temperature=temperature())
    loss.backward()
    grad = temperature.log_temperature.grad
    assert grad is not None
    eps = 1e-3
    high, low = (query_target_info_nce(q, t, temperature=0.02 * math.exp(d)).item() for d in (eps, -eps))
    assert grad.item() == pytest.approx((high - low) / (2 * eps), rel=1e-3)
    with torch.no_grad():
        temperature.log_temperature.fill_(-20)
    assert temperature().item() == pytest.approx(0.01)
    assert temperature.log_temperature.item() == pytest.approx(math.log(0.01))


# ILGen


def test_every_image_is_a_query_and_each_positive_a_term() -> None:
    x, label = random(9, 5), torch.tensor([0, 1, 0, 2, 1, 0, 3, 1, 1])  # class 2 and 3 have no positive
    expected = loop.label_info_nce(list(x.numpy()), label.tolist(), 0.05)
    assert label_info_nce(x, label).item() == pytest.approx(expected, rel=1e-10)


def test_labels_agree_with_pytorch_metric_learning() -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x, label = random(12, 6), torch.arange(4).repeat_interleave(3)[torch.randperm(12)]
    theirs = losses.NTXentLoss(temperature=0.05)(x, label).item()
    assert label_info_nce(x, label).item() == pytest.approx(theirs, rel=1e-6)


def test_limits_of_labels() -> None:
    label = torch.arange(3).repeat_interleave(4)
    perfect = F.one_hot(label).double()
    assert label_info_nce(perfect, label).item() < 1e-7
    assert label_info_nce(torch.ones(12, 5), label).item() == pytest.approx(math.log(1 + 8), rel=1e-5)
    assert label_info_nce(random(4, 5), torch.zeros(4)).item() == 0  # one identity: nothing to be told apart from
    assert label_info_nce(random(4, 5), torch.arange(4)).item() == 0  # no positives


def test_pairs_that_are_neither_do_not_count() -> None:
    s = random(2, 4)
    positive = torch.tensor([[True, False, False, False], [False, False, False, False]])
    negative = torch.tensor([[False, True, False, False], [True, True, True, True]])
    got = info_nce_pairs(s, positive, negative, temperature=0.3)
    assert got.item() == pytest.approx(F.softplus((s[0, 1] - s[0, 0]) / 0.3).item(), rel=1e-12)


def test_bad_arguments_are_told() -> None:
    with pytest.raises(ValueError, match=r"need \(B,\)"):
        info_nce(torch.zeros(2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="queries and targets"):
        query_target_info_nce(random(2, 3), random(3, 3))
    with pytest.raises(ValueError, match="3 arrays of one shape"):
        info_nce_pairs(random(2, 3), torch.ones(2, 3), torch.ones(3, 2), temperature=1)
    with pytest.raises(ValueError, match="temperature"):
        label_info_nce(random(2, 3), torch.zeros(2), temperature=-1)
    with pytest.raises(ValueError, match=r"\(N, D\)"):
        label_info_nce(random(2, 3), torch.zeros(3))
