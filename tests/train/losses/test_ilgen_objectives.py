from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.train.losses.ilgen_objectives import contrastive, hardest_negatives, softmax_margin
from tests.reference import losses_loop as loop


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_contrastive_is_its_equation_on_euclidean_distances() -> None:
    a, p, n = (F.normalize(random(4, 5, seed=s), dim=-1) for s in range(3))
    n = n + 2 * a  # near ones, within the margin
    n = F.normalize(n, dim=-1)
    terms = [
        (p[i] - a[i]).norm().item() ** 2 / 2 + max(0.0, 1 - (n[i] - a[i]).norm().item()) ** 2 / 2 for i in range(4)
    ]
    near, far = (a * p).sum(1), (a * n).sum(1, keepdim=True)
    assert contrastive(near, far).item() == pytest.approx(loop.mean(terms), rel=1e-9)
    assert contrastive(near, torch.zeros(4, 1)).item() == pytest.approx((1 - near).mean().item())  # sqrt(2) > margin
    assert contrastive(torch.ones(2), torch.ones(2, 1)).item() == pytest.approx(0.5, rel=1e-5)


def test_coinciding_descriptors_have_a_finite_gradient() -> None:
    x = random(1, 4).requires_grad_()
    unit = F.normalize(x, dim=1)
    similarity = (unit @ unit.T).float()
    (grad,) = torch.autograd.grad(contrastive(similarity[0], similarity), x)
    assert grad.isfinite().all()


def test_the_hardest_negative_is_the_most_similar_of_another_class() -> None:
    a, c = random(5, 4), random(9, 4, seed=1)
    la, lc = torch.tensor([0, 1, 2, 0, 5]), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
    expected = []
    for i in range(5):
        others = [j for j in range(9) if lc[j] != la[i]]
        expected.append(max(others, key=lambda j: loop.cos(a[i].numpy(), c[j].numpy())))
    assert hardest_negatives(a, c, la, lc).tolist() == expected
    assert hardest_negatives(a[:0], c, la[:0], lc).tolist() == []
    with pytest.raises(ValueError, match="another class"):
        hardest_negatives(a, c[:1], la, lc[:1])


def test_softmax_margin_is_pytorchs_cross_entropy_of_scaled_cosines() -> None:
    x, w, label = random(6, 4), random(3, 4, seed=1), torch.tensor([0, 2, 1, 1, 0, 2])
    logits = F.normalize(x, dim=1) @ F.normalize(w, dim=1).T
    assert softmax_margin(x, w, label).item() == pytest.approx(F.cross_entropy(16 * logits, label).item(), rel=1e-12)
    logits = logits - 0.2 * F.one_hot(label, 3).double()
    got = softmax_margin(x, w, label, scale=30, margin=0.2)
    assert got.item() == pytest.approx(F.cross_entropy(30 * logits, label).item(), rel=1e-12)


def test_softmax_margin_agrees_with_pytorch_metric_learning() -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x, label = random(6, 4), torch.tensor([0, 2, 1, 1, 0, 2])
    fn = losses.CosFaceLoss(num_classes=3, embedding_size=4, margin=0.2, scale=16).double()
    ours = softmax_margin(x, fn.W.T, label, margin=0.2)
    assert ours.item() == pytest.approx(fn(x, label).item(), rel=1e-6)


def test_known_values_where_all_is_equal() -> None:
    ones = torch.ones(4, 6)
    assert softmax_margin(ones, torch.ones(9, 6), torch.arange(4)).item() == pytest.approx(math.log(9))


def test_bad_arguments_are_told() -> None:
    with pytest.raises(ValueError, match=r"need \(B,\)"):
        contrastive(torch.zeros(2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"need \(B, D\)"):
        softmax_margin(torch.zeros(2, 3), torch.zeros(4, 5), torch.zeros(2, dtype=torch.long))
