"""Sinkhorn distance: against geomloss, against a slow loop, then what must hold of any such distance."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from idmetric.metric import sinkhorn as module
from idmetric.metric.sinkhorn import Annealing, sinkhorn
from tests.reference import sinkhorn_loop

RELEASE: dict[str, Any] = {"scaling": 0.05, "diameter": None, "debias": False}  # ID-Sim's released settings


def sinkhorn_distance(
    a: Tensor, b: Tensor, weights_a: Tensor | None = None, weights_b: Tensor | None = None, **settings: Any
) -> Tensor:
    return sinkhorn(a, b, weights_a, weights_b, annealing=Annealing(**settings))


def sinkhorn_matrix(
    a: Tensor, b: Tensor, weights_a: Tensor | None = None, weights_b: Tensor | None = None, **settings: Any
) -> Tensor:
    return sinkhorn(a, b, weights_a, weights_b, matrix=True, annealing=Annealing(**settings))


def tokens(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Unit tokens that share a direction, so that distances spread as those of one image's patches do."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return normalize(noise + torch.linspace(-2, 2, shape[-1], dtype=torch.float64), dim=-1).to(dtype)


def random_weights(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.1).to(dtype)


def gradients(score: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Value and gradients of the sum, in fresh leaves."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = score(*leaves)
    factors = torch.arange(1, value.numel() + 1).view_as(value)
    return value.detach(), *torch.autograd.grad((value * factors).sum(), leaves)


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture
def geomloss() -> Iterator[Callable[..., Any]]:
    library = pytest.importorskip("geomloss")

    def build(**options: Any) -> Any:
        settings = {"p": 2, "blur": 0.05, "diameter": 2.0, "backend": "tensorized"} | options
        return library.SamplesLoss("sinkhorn", **settings)

    yield build
    torch.set_grad_enabled(True)  # geomloss switches autograd globally


# Against geomloss


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("scaling", [0.5, 0.05, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_geomloss(geomloss: Any, dtype: torch.dtype, scaling: float, debias: bool) -> None:
    a, b = tokens(3, 30, 16), tokens(3, 23, 16, seed=1)
    # geomloss in float64: its float32 gradients are no nearer to that than ours
    expected = gradients(geomloss(scaling=scaling, debias=debias), a, b)
    got = gradients(lambda x, y: sinkhorn_distance(x, y, scaling=scaling, debias=debias), a.to(dtype), b.to(dtype))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == dtype
        assert theirs.norm() > 1e-3  # not a comparison of zeros
        assert relative(mine, theirs) < tolerance


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_geomloss_with_weights(geomloss: Any, dtype: torch.dtype, debias: bool) -> None:
    a, b = tokens(2, 20, 8, dtype=dtype), tokens(2, 15, 8, seed=1, dtype=dtype)
    u, v = random_weights(2, 20, dtype=dtype), random_weights(2, 15, seed=1, dtype=dtype)
    loss = geomloss(scaling=0.5, debias=debias)

    def theirs(a: Tensor, b: Tensor, u: Tensor, v: Tensor) -> Any:
        return loss(u / u.sum(1, keepdim=True), a, v / v.sum(1, keepdim=True), b)

    def mine(a: Tensor, b: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return sinkhorn_distance(a, b, weights_a=u, weights_b=v, debias=debias)

    for got, expected in zip(gradients(mine, a, b, u, v), gradients(theirs, a, b, u, v), strict=True):
        assert relative(got, expected) < (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("noise", [0.3, 0.03, 0.003])
def test_float32_keeps_its_digits_between_similar_sets(geomloss: Any, noise: float) -> None:
    a = tokens(4, 40, 64)
    b = normalize(a + noise * torch.randn(a.shape, generator=torch.Generator().manual_seed(3), dtype=a.dtype), dim=-1)
    exact = geomloss(scaling=0.5)(a, b)
    assert (sinkhorn_distance(a.float(), b.float()) - exact).abs().max() < 1e-7


def test_diameter_none_is_geomloss_on_a_batch_of_one(geomloss: Any) -> None:
    a, b = tokens(3, 12, 6) * torch.tensor([0.02, 1.0, 30.0]).view(3, 1, 1), tokens(3, 9, 6, seed=1)
    loss = geomloss(scaling=0.5, diameter=None, debias=False)
    alone = torch.cat([loss(a[i : i + 1], b[i : i + 1]) for i in range(3)])
    got = sinkhorn_distance(a, b, diameter=None, debias=False)
    torch.testing.assert_close(got, alone, rtol=1e-10, atol=1e-12)
    assert (loss(a, b) / got - 1).abs().max() > 1e-5  # the trap that it avoids
    with pytest.raises(ValueError, match="diameter"):
        sinkhorn_distance(a, b, diameter=None)


def test_schedule_is_geomloss(geomloss: Any) -> None:
    theirs = pytest.importorskip("geomloss._legacy.sinkhorn_divergence").epsilon_schedule
    for diameter in (0.01, 0.05, 0.1, 0.4, 0.8, 1.6, 2.0, 3.7, 400.0):
        for scaling in (0.05, 0.1, 0.5, 0.7, 0.9, 0.99):
            got = Annealing(0.05, scaling).schedule(diameter)
            assert got == pytest.approx(theirs(2, diameter, 0.05, scaling), rel=1e-12)


# Against the slow loop


@pytest.mark.parametrize(("debias", "diameter"), [(True, 2.0), (False, 2.0), (False, None)])
@pytest.mark.parametrize("scaling", [0.5, 0.05])
def test_equals_the_slow_loop(scaling: float, debias: bool, diameter: float | None) -> None:
    a, b = tokens(2, 7, 4), tokens(2, 5, 4, seed=1)
    u, v = random_weights(2, 7), random_weights(2, 5, seed=1)
    u[0, 2] = v[1, 4] = 0
    options: dict[str, Any] = {"scaling": scaling, "debias": debias, "diameter": diameter}
    value, grad_a, grad_b = gradients(lambda x, y: sinkhorn_distance(x, y, weights_a=u, weights_b=v, **options), a, b)
    for k in range(2):
        arrays = [t[k].numpy() for t in (a, b, u, v)]
        expected, expected_a, expected_b = sinkhorn_loop.sinkhorn(*arrays, **options)
        assert float(value[k]) == pytest.approx(expected, rel=1e-10)
        np.testing.assert_allclose(grad_a[k] / (k + 1), expected_a, atol=1e-12)
        np.testing.assert_allclose(grad_b[k] / (k + 1), expected_b, atol=1e-12)


def test_gradient_is_the_derivative_once_converged() -> None:
    a, b = tokens(1, 8, 4), tokens(1, 6, 4, seed=1)
    options: dict[str, Any] = {"scaling": 0.999, "blur": 0.2}
    _, grad, _ = gradients(lambda x, y: sinkhorn_distance(x, y, **options), a, b)
    for seed in range(3):
        step = 1e-4 * torch.randn(a.shape, generator=torch.Generator().manual_seed(seed), dtype=a.dtype)
        ends = [float(sinkhorn_distance(x, b, **options)) for x in (a + step, a - step)]
        assert (ends[0] - ends[1]) / 2 == pytest.approx(float((grad * step).sum()), rel=0.02)


# Known answers


@pytest.mark.parametrize("debias", [True, False])
def test_diracs(debias: bool) -> None:
    a, b = tokens(5, 1, 6), tokens(5, 1, 6, seed=1)
    expected = (a - b).square().sum((1, 2)) / 2
    for diameter in (2.0,) if debias else (2.0, None):
        got = sinkhorn_distance(a, b, debias=debias, diameter=diameter)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)
    _, grad_a, grad_b = gradients(lambda x, y: sinkhorn_distance(x, y, debias=debias), a[:1], b[:1])
    torch.testing.assert_close(grad_a, a[:1] - b[:1])
    torch.testing.assert_close(grad_b, b[:1] - a[:1])


@pytest.mark.parametrize("scaling", [0.5, 0.05])
def test_equal_sets_are_at_distance_zero(scaling: float) -> None:
    a = tokens(3, 50, 32, dtype=torch.float32)
    shuffled = a[:, torch.randperm(50, generator=torch.Generator().manual_seed(0))]
    for other in (a, a.clone(), shuffled):
        value, grad_a, grad_b = gradients(lambda x, y: sinkhorn_distance(x, y, scaling=scaling), a, other)
        assert value.abs().max() <= 1e-7
        assert max(float(grad_a.abs().max()), float(grad_b.abs().max())) < 1e-6
    assert (sinkhorn_distance(a, a, debias=False) > 1e-3).all()


# Weights and masks


@pytest.mark.parametrize(("debias", "diameter"), [(True, 2.0), (False, 2.0), (False, None)])
def test_masked_tokens_are_gone(debias: bool, diameter: float | None) -> None:
    a, b = tokens(2, 10, 6), tokens(2, 8, 6, seed=1)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[:, [0, 4, 9]] = False
    options: dict[str, Any] = {"debias": debias, "diameter": diameter}
    kept = gradients(lambda x, y: sinkhorn_distance(x, y, **options), a[:, mask[0]], b)
    for filler in (0.0, 1e30, -7.5, float("nan"), float("inf")):
        padded = a.masked_fill(~mask.unsqueeze(-1), filler)
        value, grad_a, grad_b = gradients(lambda x, y: sinkhorn_distance(x, y, weights_a=mask, **options), padded, b)
        torch.testing.assert_close(value, kept[0])
        torch.testing.assert_close(grad_a[:, mask[0]], kept[1])
        assert (grad_a[~mask] == 0).all()
        torch.testing.assert_close(grad_b, kept[2])


def test_weights_are_relative_and_their_gradient_is_finite() -> None:
    a, b, u = tokens(2, 6, 4), tokens(2, 5, 4, seed=1), random_weights(2, 6)
    u[0, 1] = 0
    value, grad_u = gradients(lambda w: sinkhorn_distance(a, b, weights_a=w), u)
    torch.testing.assert_close(sinkhorn_distance(a, b, weights_a=9 * u), value)
    assert grad_u.isfinite().all()
    torch.testing.assert_close((grad_u * u).sum(1), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    twice = torch.cat([a, a[:, :1]], 1)  # a token given twice is a token of double weight
    heavy = torch.tensor([2.0, 1, 1, 1, 1, 1]).expand(2, 6)
    torch.testing.assert_close(sinkhorn_distance(twice, b), sinkhorn_distance(a, b, weights_a=heavy))


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0], [float("inf"), 1.0, 1.0]])
def test_bad_weights_name_their_row(row: list[float]) -> None:
    a, weights = tokens(3, 3, 4), torch.ones(3, 3)
    weights[1] = torch.tensor(row)
    with pytest.raises(ValueError, match="weights row 1"):
        sinkhorn_distance(a, a, weights_b=weights)


# Extremes


def extremes() -> dict[str, tuple[Tensor, Tensor, dict[str, Any]]]:
    a, b = tokens(1, 12, 8), tokens(1, 9, 8, seed=1)
    eye = torch.eye(8, dtype=torch.float64)[None]
    return {
        "plain": (a, b, {}),
        "scaling 0.7": (a, b, {"scaling": 0.7}),
        "the release's": (a, b, RELEASE | {"diameter": None}),
        "equal sets": (a, a.clone(), {"debias": False}),
        "opposite sets": (a, -a, {}),
        "orthogonal tokens": (eye[:, :4], eye[:, 4:], {}),
        "all costs equal": (eye, eye.flip(1), {"blur": 0.02}),
        "a small blur": (a, b, {"blur": 0.003}),
        "a large blur": (a, b, {"blur": 5.0}),
        "costs of 500": (30 * a, -30 * b, {}),
        "costs of 5e7": (1e4 * a, -1e4 * b, {}),
        "one far token": (torch.cat([a, 50 * a[:, :1]], 1), b, {}),
        "small costs": (0.01 * a, 0.01 * b, {"diameter": None, "debias": False}),
        "one token against many": (a[:, :1], b, {}),
        "one token each": (a[:, :1], b[:, :1], {}),
        "a wide range of weights": (a, b, {"weights_a": 10.0 ** -torch.arange(12.0).double()[None]}),
        "tiny weights": (a, b, {"weights_b": torch.tensor([[1.0, *[1e-30] * 8]], dtype=torch.float64)}),
        "masks": (a, b, {"weights_a": (torch.arange(12) % 3 > 0)[None], "weights_b": (torch.arange(9) > 6)[None]}),
    }


@pytest.mark.parametrize("name", extremes())
def test_extreme_sets_equal_the_slow_loop(name: str) -> None:
    a, b, options = extremes()[name]
    value, grad_a, grad_b = gradients(lambda x, y: sinkhorn_distance(x, y, **options), a, b)
    arrays = [None if w is None else w[0].double().numpy() for w in map(options.get, ("weights_a", "weights_b"))]
    rest = {k: v for k, v in options.items() if not k.startswith("weights")}
    expected, expected_a, expected_b = sinkhorn_loop.sinkhorn(a[0].numpy(), b[0].numpy(), *arrays, **rest)
    assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-11)
    size = max(1.0, float(a.norm(dim=2).max()))
    for mine, theirs in ((grad_a, expected_a), (grad_b, expected_b)):  # rounding of the costs is divided by eps
        np.testing.assert_allclose(mine[0], theirs, rtol=0, atol=1e-12 * size**3)

    single = sinkhorn_distance(a.float(), b.float(), **options)
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(expected, rel=1e-5, abs=3e-7 * max(size, options.get("blur", 1.0)) ** 2)


# All pairs


@pytest.mark.parametrize("options", [{}, RELEASE])
@pytest.mark.parametrize("weighted", [True, False])
def test_matrix_is_every_pair(weighted: bool, options: dict[str, Any]) -> None:
    a, b = tokens(3, 9, 6), tokens(4, 7, 6, seed=1)
    u, v = (random_weights(3, 9), random_weights(4, 7, seed=1)) if weighted else (None, None)

    def pairs(a: Tensor, b: Tensor) -> Tensor:
        rows = []
        for i in range(3):
            weights: dict[str, Any] = {"weights_a": None if u is None else u[i].expand(4, -1), "weights_b": v}
            rows.append(sinkhorn_distance(a[i].expand(4, -1, -1), b, **weights, **options))
        return torch.stack(rows)

    def matrix(a: Tensor, b: Tensor) -> Tensor:
        return sinkhorn_matrix(a, b, weights_a=u, weights_b=v, **options)

    for got, expected in zip(gradients(matrix, a, b), gradients(pairs, a, b), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13)


# Chunks and batches


def spy(monkeypatch: pytest.MonkeyPatch, name: str, owner: Any = module) -> list[tuple[Any, ...]]:
    """Arguments of every call of a function."""
    calls: list[tuple[Any, ...]] = []
    original = getattr(owner, name)

    def recorded(*args: Any) -> Any:
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(owner, name, recorded)
    return calls


@pytest.mark.parametrize("max_elements", [1, 2 * 9 * 16, 10**9])
@pytest.mark.parametrize("function", [sinkhorn_distance, sinkhorn_matrix])
def test_chunks_bound_memory_and_change_nothing(
    function: Callable[..., Tensor], max_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tokens(5, 9, 6, dtype=torch.float32), tokens(5, 9, 6, seed=1, dtype=torch.float32)
    whole = gradients(function, a, b)
    kernels = spy(monkeypatch, "_kernel")
    monkeypatch.setattr(module, "MAX_ELEMENTS", max_elements)
    chunked = gradients(function, a, b)
    most = max(len(x) for x, _ in kernels)  # forward, self terms and backward alike
    # A pair takes max(9 * 9 cost entries, (9 + 9) * 6 token entries) = 108 elements.
    assert most == min(max(1, max_elements // 108), 5 if function is sinkhorn_distance else 25)
    torch.testing.assert_close(chunked[0], whole[0], rtol=0, atol=1e-6)
    for got, expected in zip(chunked[1:], whole[1:], strict=True):
        assert relative(got, expected) < 2e-5  # rounding of the costs reaches the plan divided by eps
    potentials = spy(monkeypatch, "_potentials")
    with torch.no_grad():
        torch.testing.assert_close(function(a, b), whole[0], rtol=0, atol=1e-6)
    assert all(len(rows) <= most for *_, rows, _, _ in potentials[2:])  # potentials do not pile up either


@pytest.mark.parametrize("diameter", [2.0, None])
def test_scores_do_not_depend_on_batch_mates(diameter: float | None) -> None:
    a, b = tokens(6, 20, 32, dtype=torch.float32), tokens(6, 20, 32, seed=1, dtype=torch.float32)
    a[3] *= 1.5
    options: dict[str, Any] = {"diameter": diameter, "debias": diameter is not None}
    batch = sinkhorn_distance(a, b, **options)
    alone = torch.cat([sinkhorn_distance(a[i : i + 1], b[i : i + 1], **options) for i in range(6)])
    torch.testing.assert_close(batch, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{}, RELEASE])
def test_empty_batches(options: dict[str, Any]) -> None:
    nothing, some = tokens(0, 5, 4), tokens(3, 6, 4)
    assert sinkhorn_distance(nothing, nothing, **options).shape == (0,)
    assert sinkhorn_distance(nothing, some[:1], **options).shape == (0,)
    assert sinkhorn_matrix(nothing, some, **options).shape == (0, 3)
    assert sinkhorn_matrix(some, nothing, **options).shape == (3, 0)
    assert sinkhorn_matrix(nothing, nothing, **options).shape == (0, 0)
    _, grad = gradients(lambda x: sinkhorn_matrix(x, some, **options), nothing)
    assert grad.shape == nothing.shape


# Precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    a, b = tokens(2, 9, 8, dtype=dtype), tokens(2, 7, 8, seed=1, dtype=dtype)
    value, grad, _ = gradients(sinkhorn_distance, a, b)
    expected, expected_grad, _ = gradients(sinkhorn_distance, a.float(), b.float())
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=0, atol=0)
    torch.testing.assert_close(grad, expected_grad.to(dtype), rtol=0, atol=0)
    assert sinkhorn_matrix(a, b.double()).dtype == torch.float64


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_reduced_products_do_not_reach_the_costs(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tokens(2, 40, 64, dtype=torch.float32), tokens(2, 40, 64, seed=1, dtype=torch.float32)
    exact = gradients(sinkhorn_distance, a.double(), b.double())
    before = torch.get_float32_matmul_precision()
    products = spy(monkeypatch, "matmul", torch)  # not every machine has reduced products to go wrong
    single = spy(monkeypatch, "bmm", torch)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_float32_matmul_precision(precision)
        got = gradients(sinkhorn_distance, a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(products) == 3 + 4 * 2  # three costs; backward, a cost and a plan for each potential
    assert single == []
    assert all(factor.dtype == torch.float64 for pair in products for factor in pair)
    assert got[0].dtype == torch.float32
    for mine, expected in zip(got, exact, strict=True):
        assert relative(mine, expected) < 1e-5


# Autograd


def test_second_derivative_is_refused() -> None:
    a, b = tokens(1, 5, 4).requires_grad_(), tokens(1, 5, 4, seed=1)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(sinkhorn_distance(a, b).sum(), a, create_graph=True)


# Input checks


def test_weights_need_one_for_each_token() -> None:
    a = tokens(2, 5, 4)
    with pytest.raises(ValueError, match="weights of shape"):
        sinkhorn_distance(a, a, weights_a=torch.ones(2, 4))


@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 5, 3), (2, 0, 4), (5, 4)])
def test_bad_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="got"):
        sinkhorn_distance(tokens(2, 5, 4), torch.ones(shape))


@pytest.mark.parametrize("diameter", [2.0, None])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tokens_that_are_not_finite_give_nan(value: float, diameter: float | None) -> None:
    a, b = tokens(2, 5, 4), tokens(2, 5, 4, seed=1)
    a[1, 2, 3] = value
    score = sinkhorn_distance(a, b, diameter=diameter, debias=diameter is not None)
    assert score.isnan().tolist() == [False, True]
