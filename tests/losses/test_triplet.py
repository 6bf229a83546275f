from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.losses.contrastive import contrastive, hardest_negatives
from idmetric.losses.info_nce import info_nce
from idmetric.losses.softmax_margin import softmax_margin
from idmetric.losses.triplet import binary_cross_entropy, hinge
from tests.reference import losses_loop as loop


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


VALID = torch.tensor([[True, True, False], [True, False, False], [False, False, False], [True, True, True]])


def test_hinge_is_its_equation() -> None:
    p, n = random(4).tanh(), random(4, 3, seed=1).tanh()
    rows = [
        loop.mean([max(0.0, 0.1 - p[i].item() + n[i, j].item()) for j in range(3) if VALID[i, j]]) for i in range(4)
    ]
    assert hinge(p, n, valid=VALID).item() == pytest.approx(loop.mean(rows), rel=1e-12)
    assert hinge(torch.tensor([0.5]), torch.tensor([[0.4]])).item() == pytest.approx(0, abs=1e-7)
    assert hinge(torch.tensor([0.5]), torch.tensor([[0.5]])).item() == pytest.approx(0.1)


def test_hinge_agrees_with_pytorch_and_pytorch_metric_learning() -> None:
    p, n = random(6).tanh(), random(6, 1, seed=1).tanh()
    theirs = F.margin_ranking_loss(p, n[:, 0], torch.ones(6), margin=0.1)
    assert hinge(p, n).item() == pytest.approx(theirs.item(), rel=1e-12)
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    reducers = pytest.importorskip("pytorch_metric_learning.reducers")
    x = F.normalize(random(9, 5), dim=1)
    triplets = (torch.arange(3), torch.arange(3, 6), torch.arange(6, 9))
    fn = losses.TripletMarginLoss(0.1, distance=distances.CosineSimilarity(), reducer=reducers.MeanReducer())
    ours = hinge((x[:3] * x[3:6]).sum(1), (x[:3] * x[6:]).sum(1, keepdim=True))
    assert ours.item() == pytest.approx(fn(x, torch.arange(9), triplets).item(), rel=1e-6)


def test_binary_cross_entropy_is_pytorchs_on_pairs() -> None:
    p, n = random(5).tanh(), random(5, 1, seed=1).tanh()
    logits = (torch.cat([p[:, None], n], 1) - 0.3) / 0.2
    target = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(5, 2)
    theirs = F.binary_cross_entropy_with_logits(logits, target)
    assert binary_cross_entropy(p, n, temperature=0.2, threshold=0.3).item() == pytest.approx(theirs.item(), rel=1e-12)


def test_binary_cross_entropy_weighs_a_positive_as_much_as_all_its_negatives() -> None:
    p, n = random(4).tanh(), random(4, 3, seed=1).tanh()
    terms = []
    for i in range(4):
        negatives = [-math.log(1 - loop.sigmoid(n[i, j].item() / 0.07)) for j in range(3) if VALID[i, j]]
        terms.append((-math.log(loop.sigmoid(p[i].item() / 0.07)) + loop.mean(negatives)) / 2)
    assert binary_cross_entropy(p, n, valid=VALID).item() == pytest.approx(loop.mean(terms), rel=1e-9)


def test_binary_cross_entropy_is_not_infonce_with_one_negative() -> None:
    p, n = random(5).tanh(), random(5, 1, seed=1).tanh()
    moved = binary_cross_entropy(p + 0.2, n + 0.2), binary_cross_entropy(p, n)
    assert moved[0].item() != pytest.approx(moved[1].item(), rel=1e-3)  # the level of similarity matters
    assert info_nce(p + 0.2, n + 0.2).item() == pytest.approx(info_nce(p, n).item(), rel=1e-10)


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
    same = torch.full((4,), 0.3)
    assert binary_cross_entropy(same, same[:, None].expand(4, 5), threshold=0.3).item() == pytest.approx(math.log(2))
    assert hinge(same, same[:, None].expand(4, 5), margin=0.1).item() == pytest.approx(0.1)
    ones = torch.ones(4, 6)
    assert softmax_margin(ones, torch.ones(9, 6), torch.arange(4)).item() == pytest.approx(math.log(9))


def test_bad_arguments_are_told() -> None:
    for loss in (hinge, binary_cross_entropy, contrastive):
        with pytest.raises(ValueError, match="need shapes"):
            loss(torch.zeros(2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="temperature"):
        binary_cross_entropy(torch.zeros(2), torch.zeros(2, 1), temperature=0)
    with pytest.raises(ValueError, match="need shapes"):
        softmax_margin(torch.zeros(2, 3), torch.zeros(4, 5), torch.zeros(2, dtype=torch.long))
