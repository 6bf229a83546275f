from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.train.losses.recall_at_k import batch_recall_at_k, recall_at_k
from tests.reference import losses_loop as loop


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clusters(classes: int, images: int, spread: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    center = random(classes, 8, seed=seed)
    noise = random(classes * images, 8, seed=seed + 1)
    label = torch.arange(classes).repeat_interleave(images)
    return center[label] + spread * noise, label


def test_is_the_equation_for_unequal_classes_in_any_order() -> None:
    x = random(11, 6)
    label = torch.tensor([0, 1, 0, 2, 1, 0, 3, 1, 1, 2, 1])  # sizes 3, 5, 2, 1
    rows = list(x.numpy())
    for query in (None, torch.tensor([2, 6, 4, 9])):
        queries = list(range(11)) if query is None else query.tolist()
        expected = loop.recall_at_k(rows, label.tolist(), queries, (1, 2, 4, 8))
        got = batch_recall_at_k(x, label, query=query)
        assert got.item() == pytest.approx(expected, rel=1e-9)
    # long temperatures, so that the sum over the five images of class 1 exceeds k = 1
    soft = loop.recall_at_k(rows, label.tolist(), list(range(11)), (1, 3), t_rank=0.2, t_recall=5.0)
    got = batch_recall_at_k(x, label, ks=[1, 3], rank_temperature=0.2, recall_temperature=5.0)
    assert got.item() == pytest.approx(soft, rel=1e-9)


def perfect() -> tuple[Tensor, Tensor]:
    """Four images per class on an arc, so that each query's positives are clearly ordered; classes at right angles."""
    angles = torch.tensor([0.0, 0.4, 0.7, 0.95], dtype=torch.float64)
    arc = torch.stack([angles.cos(), angles.sin()], 1)
    x = torch.zeros(5, 4, 10, dtype=torch.float64)
    for c in range(5):
        x[c, :, 2 * c : 2 * c + 2] = arc
    return x.flatten(0, 1), torch.arange(5).repeat_interleave(4)


def test_a_perfect_ranking_costs_the_papers_floor() -> None:
    x, label = perfect()
    first = torch.arange(0, 20, 4)  # one query per class
    assert batch_recall_at_k(x, label, query=first).item() == pytest.approx(0.128, abs=5e-4)


def test_sharper_sigmoids_give_the_counted_recall() -> None:
    x, label = clusters(6, 4, 1.0)
    s = F.normalize(x, dim=1) @ F.normalize(x, dim=1).T
    s.fill_diagonal_(-2)
    losses = []
    for q in range(24):
        order = s[q].argsort(descending=True)[:23]
        losses += [1 - (label[order[:k]] == label[q]).sum().item() / min(k, 3) for k in (1, 2, 4, 8)]
    # ranks are whole numbers then, so k must lie between two of them: sigma(0) = 1/2
    same = label[:, None] == label
    off = ~torch.eye(24, dtype=torch.bool)
    sharp = [
        recall_at_k(s, same & off, off, ks=[k], rank_temperature=1e-7, recall_temperature=1e-4).item()
        for k in (1, 2, 4, 8)
    ]
    half = []  # the hit at rank k itself counts half
    for q in range(24):
        order = s[q].argsort(descending=True)[:23]
        half += [0.5 * (label[order[k - 1]] == label[q]).item() / min(k, 3) for k in (1, 2, 4, 8)]
    assert loop.mean(sharp) == pytest.approx(loop.mean(losses) + loop.mean(half), abs=1e-6)


def test_one_step_of_its_gradient_makes_the_ranking_better() -> None:
    x, label = clusters(6, 4, 1.2)
    x.requires_grad_()
    before = batch_recall_at_k(x, label)
    (grad,) = torch.autograd.grad(before, x)
    assert batch_recall_at_k(x - 0.05 * grad / grad.norm(), label) < before


def test_limits() -> None:
    x, label = clusters(3, 4, 0.5)
    assert batch_recall_at_k(x, torch.arange(12)).item() == 0  # no positives
    x.requires_grad_()
    alone = batch_recall_at_k(x, torch.zeros(12))  # one identity: every ranking is perfect
    assert 0 < alone.item() < 0.5
    (grad,) = torch.autograd.grad(batch_recall_at_k(x, torch.arange(12)), x)
    assert (grad == 0).all()
    equal = batch_recall_at_k(torch.ones(12, 4, dtype=torch.float64), label)
    # all ranks are 1 + 10 / 2 = 6
    expected = loop.mean([1 - min(k, 3 * loop.sigmoid(k - 6)) / min(k, 3) for k in (1, 2, 4, 8)])
    assert equal.item() == pytest.approx(expected, rel=1e-9)


def test_bad_arguments_are_told() -> None:
    s, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="ks"):
        recall_at_k(s, mask, mask, ks=[0])
    with pytest.raises(ValueError, match="3 arrays of one shape"):
        recall_at_k(s, mask[:1], mask)
    with pytest.raises(ValueError, match="temperature"):
        recall_at_k(s, mask, mask, rank_temperature=0)
    with pytest.raises(ValueError, match=r"\(N, D\)"):
        batch_recall_at_k(s, torch.zeros(3))
