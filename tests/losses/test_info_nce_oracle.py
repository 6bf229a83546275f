from __future__ import annotations

import math

import pytest
import torch

from idmetric.losses.info_nce import info_nce


def slow(positive: list[float], negative: list[list[float]], tau: float) -> float:
    """ID-Sim Eq. 2, a term at a time."""
    total = 0.0
    for p, row in zip(positive, negative, strict=True):
        top = math.exp(p / tau)
        total += -math.log(top / (top + sum(math.exp(n / tau) for n in row)))
    return total / len(positive)


def test_is_the_equation() -> None:
    g = torch.Generator().manual_seed(0)
    p, n = (torch.rand(s, generator=g, dtype=torch.float64) * 2 - 1 for s in ((5,), (5, 7)))
    assert info_nce(p, n, temperature=0.2).item() == pytest.approx(slow(p.tolist(), n.tolist(), 0.2), rel=1e-12)


def test_masked_negatives_do_not_count() -> None:
    p, n = torch.zeros(2), torch.tensor([[0.5, 9.0], [0.1, 0.2]])
    valid = torch.tensor([[True, False], [False, False]])
    expected = (slow([0.0], [[0.5]], 1.0) + 0) / 2
    assert info_nce(p, n, temperature=1.0, valid=valid).item() == pytest.approx(expected)


def test_gradient_matches_finite_differences() -> None:
    p = torch.rand(3, dtype=torch.float64, requires_grad=True)
    n = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: info_nce(a, b, temperature=0.3), (p, n))


def test_limits() -> None:
    equal = info_nce(torch.ones(4), torch.ones(4, 3), temperature=0.07)
    assert equal.item() == pytest.approx(math.log(4))
    assert info_nce(torch.ones(4), -torch.ones(4, 3), temperature=0.07).item() < 1e-6
    half = info_nce(torch.full((2,), 60000.0).half(), torch.zeros(2, 2).half(), temperature=0.01)
    assert half.dtype == torch.float32
    assert half.isfinite()


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="shapes"):
        info_nce(torch.zeros(2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="temperature"):
        info_nce(torch.zeros(2), torch.zeros(2, 2), temperature=0)
