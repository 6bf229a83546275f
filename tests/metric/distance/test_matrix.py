from __future__ import annotations

import pytest
import torch
from torch import Tensor

from idmetric.metric.cosine import cosine_distance
from idmetric.metric.distance import DISTANCES, distance, distance_matrix
from idmetric.metric.embedding import Embedding
from tests.reference.sinkhorn_loop import sinkhorn


def make(count: int, seed: int, weights: bool = False, dtype: torch.dtype = torch.float64) -> Embedding:
    g = torch.Generator().manual_seed(seed)
    patches = torch.randn(count, 12, 8, generator=g, dtype=torch.float64) + 1
    w = torch.rand(count, 12, generator=g, dtype=torch.float64) if weights else None
    return Embedding(torch.randn(count, 8, generator=g, dtype=torch.float64), patches, (3, 4), w).to(dtype=dtype)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def slow_cos(a: Tensor, b: Tensor) -> Tensor:
    return 1 - (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def slow(a: Embedding, b: Embedding, name: str) -> Tensor:
    """Every distance, a pair at a time, from its definition."""
    assert a.patches is not None
    assert b.patches is not None
    rows = []
    for i in range(len(a)):
        x, y = unit(a.patches[i]), unit(b.patches[i])
        u = torch.ones(12, dtype=x.dtype) if a.weights is None else a.weights[i]
        v = torch.ones(12, dtype=x.dtype) if b.weights is None else b.weights[i]
        u, v = u / u.sum(), v / v.sum()
        whole = slow_cos(a.cls[i], b.cls[i])
        pooled = slow_cos((u[:, None] * x).sum(0), (v[:, None] * y).sum(0))
        biased = name == "patch_biased"
        arrays = [t.numpy() for t in (x, y, u, v)]
        scaling, diameter = (0.05, None) if biased else (0.5, 2.0)
        value, _, _ = sinkhorn(*arrays, blur=0.05, scaling=scaling, diameter=diameter, debias=not biased)
        patch = torch.tensor(value, dtype=x.dtype)
        rows.append({
            "cls": whole, "patch": patch, "joint": whole + 0.3 * patch, "patch_pooled": pooled,
            "joint_pooled": whole + pooled, "patch_biased": patch,
        }[name])  # fmt: skip
    return torch.stack(rows)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", DISTANCES)
def test_each_distance_is_its_definition(name: str, weights: bool) -> None:
    a, b = make(3, 1, weights), make(3, 2, weights)
    expected = slow(a, b, name)
    torch.testing.assert_close(distance(a, b, name, joint_weight=0.3), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", DISTANCES)
def test_one_against_many_and_the_matrix_agree_with_pairs(name: str) -> None:
    a, b = make(3, 1, True), make(4, 2)
    pairs = torch.stack([torch.cat([distance(x, y, name) for y in b]) for x in a])
    torch.testing.assert_close(distance_matrix(a, b, name), pairs, rtol=1e-9, atol=1e-12)
    weighed = torch.stack([torch.cat([distance(x, y, name, joint_weight=0.3) for y in b]) for x in a])
    torch.testing.assert_close(distance_matrix(a, b, name, joint_weight=0.3), weighed, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(distance(a[1], b, name), pairs[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(distance(b, a[1], name), pairs[1], rtol=1e-6, atol=1e-9)
    own = torch.stack([torch.cat([distance(x, y, name) for y in a]) for x in a])
    torch.testing.assert_close(distance_matrix(a, name=name), own, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_a_weight_of_the_patch_term_that_is_no_weight_is_refused(weight: float) -> None:
    a, b = make(2, 1), make(2, 2)
    for measure in (distance, distance_matrix):
        with pytest.raises(ValueError, match="joint_weight must be a finite number of at least 0"):
            measure(a, b, "joint", joint_weight=weight)


@pytest.mark.parametrize("name", [n for n in DISTANCES if n != "patch_biased"])
def test_an_image_is_at_zero_from_itself(name: str) -> None:
    a = make(3, 1, dtype=torch.float32)
    assert distance(a, a, name).abs().max() <= 1e-6
    assert distance_matrix(a, name=name).diagonal().abs().max() <= 1e-6
    assert (distance(a, make(3, 2, dtype=torch.float32), name) > 0.01).all()


def test_cosine_of_opposite_and_orthogonal_vectors() -> None:
    a = torch.tensor([[1.0, 0], [1, 0], [3, 0]])
    b = torch.tensor([[-2.0, 0], [0, 5], [1, 0]])
    assert cosine_distance(a, b).tolist() == pytest.approx([2, 1, 0])


@pytest.mark.parametrize("name", ["cls", "patch_pooled"])
def test_a_feature_of_zeros_is_at_one_from_all_and_from_itself(name: str) -> None:
    a = make(4, 1, dtype=torch.float32)
    assert a.patches is not None
    blank = Embedding(torch.stack([a.cls[0], 0 * a.cls[1], a.cls[2], 1e-30 * a.cls[3]]),
                      torch.stack([a.patches[0], 0 * a.patches[1], *a.patches[2:]]), a.grid)  # fmt: skip
    matrix = distance_matrix(blank, name=name)
    by_pairs = torch.stack([torch.cat([distance(x, y, name) for y in blank]) for x in blank])
    torch.testing.assert_close(matrix, by_pairs, rtol=0, atol=1e-6)
    assert matrix[1].tolist() == [1, 1, 1, 1]
    assert matrix[:, 1].tolist() == [1, 1, 1, 1]
    assert distance(blank, blank, name)[[0, 2]].tolist() == [0, 0]  # the others are exact still


@pytest.mark.parametrize("name", DISTANCES)
def test_half_precision_is_computed_in_single(name: str) -> None:
    a, b = make(2, 1, dtype=torch.bfloat16), make(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = distance(a, b, name)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, distance(a.to(dtype=torch.float32), b.to(dtype=torch.float32), name))


def test_what_cannot_be_compared() -> None:
    a = make(3, 1)
    with pytest.raises(ValueError, match="unknown distance 'lpips'; choose one of cls, patch"):
        distance(a, a, "lpips")
    with pytest.raises(ValueError, match="3 images with 2"):
        distance(a, make(2, 1))
    with pytest.raises(ValueError, match="embed with patches=True"):
        distance(Embedding(a.cls), Embedding(a.cls), "patch")
    with pytest.raises(ValueError, match="different models"):
        distance(Embedding(a.cls, model="x"), Embedding(a.cls, model="y"))
