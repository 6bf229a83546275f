"""Extreme sets, chunks and threads of the solver of optimal transport, against the slow loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idmetric.metric import annealing
from idmetric.metric import sinkhorn as solver
from idmetric.metric.sinkhorn import sinkhorn_distance, sinkhorn_matrix
from tests.metric.distance.test_sinkhorn import RELEASE, gradients, spy, tokens
from tests.reference import sinkhorn_loop


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
        "small costs": (0.01 * a, 0.01 * b, {"diameter": None}),
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


def test_a_pair_is_solved_in_the_same_way_in_any_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tokens(5, 12, 8), tokens(5, 12, 8, seed=1)
    a[1] *= 40  # its sums underflow at the first step
    a[3, 0] = torch.nan
    alone = torch.cat([sinkhorn_distance(x[None], y[None], debias=False) for x, y in zip(a, b, strict=True)])
    apart = spy(monkeypatch, "apart", annealing)
    batch = sinkhorn_distance(a, b, debias=False)
    torch.testing.assert_close(batch, alone, rtol=1e-13, atol=0, equal_nan=True)
    assert alone.isnan().tolist() == [False, False, False, True, False]
    assert {len(kernel) for kernel, *_ in apart} == {2}  # the two, again, and none of the other three
    apart.clear()
    sinkhorn_distance(a[[0, 2, 4]], b[[0, 2, 4]])
    assert not apart


# Threads


@pytest.fixture
def three_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("diameter", [2.0, None])
def test_chunks_on_threads_change_nothing(mode: Any, diameter: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tokens(4, 9, 6), tokens(3, 7, 6, seed=1)
    expected = gradients(lambda x, y: sinkhorn_matrix(x, y, diameter=diameter), a, b)
    monkeypatch.setattr(solver, "_THREADED", 1)
    monkeypatch.setattr(solver, "_CACHED", 1)  # chunks of one pair
    counts: list[int] = []
    solve = annealing._solve
    monkeypatch.setattr(annealing, "_solve", lambda *args: (counts.append(torch.get_num_threads()), solve(*args))[1])
    with mode():
        if mode is torch.enable_grad:
            torch.testing.assert_close(gradients(lambda x, y: sinkhorn_matrix(x, y, diameter=diameter), a, b), expected)
        else:
            torch.testing.assert_close(sinkhorn_matrix(a, b, diameter=diameter), expected[0])
        assert set(counts) == {1}
        counts.clear()
        monkeypatch.setattr(solver, "MAX_ELEMENTS", 2 * 84 - 1)  # fewer than of two pairs
        sinkhorn_matrix(a, b, diameter=diameter)
    assert set(counts) == {3}
