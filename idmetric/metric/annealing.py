"""Dual potentials of entropic optimal transport, found by annealing: the loop of `distance.sinkhorn`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from idmetric.metric.cosine import product
from idmetric.metric.plan import TransportPlan, apart

_VIEWS = 2**22  # multiplications of a product: from there on CPUs are quicker with one per pair than with copies
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Cloud(NamedTuple):
    tokens: Tensor  # (n, P, D), zeros where the weight is zero
    weights: Tensor  # (n, P), rows sum to 1
    halves: Tensor  # (n, P), detached: |x|²/2
    potential: Tensor | None  # (n, P), what debiasing subtracts, when it is at hand


class Chunk(NamedTuple):
    """Pairs (rows[k], cols[k]) solved together, and their temperatures."""

    rows: Tensor
    cols: Tensor
    schedule: list[float]
    threads: int  # how many such chunks may be solved at a time


def no_autocast(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


def wants_graph(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def halves(tokens: Tensor) -> Tensor:
    """|x|²/2 of tokens (n, P, D), one image at a time: their squares take as much memory as they do."""
    if not len(tokens):
        return tokens.new_zeros(tokens.shape[:2])
    squares = [image.square().sum(1) for image in tokens.detach()]
    return torch.stack(squares) / 2


@torch.no_grad()
def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """Minus the cost, -|x_i - y_j|²/2: (K, P, D), (K, Q, D) -> (K, P, Q)."""
    halves_x = x.square().sum(2, keepdim=True) / 2
    halves_y = y.square().sum(2).unsqueeze(1) / 2
    return product(x, y.mT).sub_(halves_x).sub_(halves_y)


def by_views(x: Tensor, y: Tensor) -> bool:
    """Whether products of pairs of images are taken one by one, without a copy of the tokens."""
    return x.is_cpu and x.shape[1] * y.shape[1] * x.shape[2] >= _VIEWS


def _pair_kernels(a: Cloud, b: Cloud, chunk: Chunk) -> Tensor:
    """`_kernel` of a chunk's pairs."""
    x = a.tokens
    y = b.tokens
    rows = chunk.rows
    cols = chunk.cols
    if by_views(x, y):
        kernel = x.new_empty(len(rows), x.shape[1], y.shape[1])
        for pair_kernel, i, j in zip(kernel, rows.tolist(), cols.tolist(), strict=True):
            pair_kernel.copy_(product(x[i], y[j].T))
    else:
        kernel = product(x[rows], y[cols].mT)
    kernel -= a.halves[rows].unsqueeze(2)
    kernel -= b.halves[cols].unsqueeze(1)
    return kernel


def cross_potentials(a: Cloud, b: Cloud, chunks: list[Chunk]) -> tuple[Tensor, Tensor]:
    """Potentials (K, P) and (K, Q) of OT between the pairs, with the gradient of the last update."""

    def anneal(chunk: Chunk) -> tuple[Tensor, Tensor]:
        kernel = _pair_kernels(a, b, chunk)
        weights = [a.weights[chunk.rows], b.weights[chunk.cols]]
        return _solve(kernel, torch.cat(weights, 1), chunk.schedule)

    # f follows from the potentials of b's tokens, g from those of a's
    potentials, h = _joined(anneal, chunks)
    tokens_a = a.tokens.shape[1]
    f = potentials[:, :tokens_a]
    g = potentials[:, tokens_a:]
    h_g = h[:, :tokens_a]
    h_f = h[:, tokens_a:]
    f = _attach(a.tokens, b.tokens, f, h_f, chunks)
    g = _attach(b.tokens, a.tokens, g, h_g, flipped(chunks))
    return f, g


def self_potentials(x: Cloud, chunks: list[Chunk]) -> Tensor:
    """Potentials (K, P) of OT between the images `rows` and themselves, with the gradient of the last update."""
    chunks = [chunk._replace(cols=chunk.rows) for chunk in chunks]

    def anneal(chunk: Chunk) -> tuple[Tensor, Tensor]:  # both potentials are one
        kernel = _pair_kernels(x, x, chunk)
        weights = x.weights[chunk.rows]
        return _solve(kernel, weights, chunk.schedule)

    f, h = _joined(anneal, chunks)
    return _attach(x.tokens, x.tokens, f, h, chunks)


def _joined(anneal: Callable[[Chunk], tuple[Tensor, Tensor]], chunks: list[Chunk]) -> tuple[Tensor, Tensor]:
    """What annealing gives for the pairs of all chunks, in order."""
    solutions = over_threads(anneal, chunks, chunks[0].threads)
    potentials, h = zip(*solutions, strict=True)
    return torch.cat(potentials), torch.cat(h)


def flipped(chunks: list[Chunk]) -> list[Chunk]:
    return [chunk._replace(rows=chunk.cols, cols=chunk.rows) for chunk in chunks]


def _solve(kernel: Tensor, weights: Tensor, schedule: list[float]) -> tuple[Tensor, Tensor]:
    """Potentials, side by side, after the last update, and log(weight) + potential / eps before it."""
    weights = weights.unsqueeze(1)
    plan = TransportPlan(kernel, weights, schedule[0])
    solution = _steps(plan.update, weights, schedule)

    # pairs that lost digits are solved again, each softmin by itself
    if plan.logs and plan.unsafe().any():
        unsafe = plan.unsafe()
        unsafe_weights = weights[unsafe]
        buffer = plan.buffer[: len(unsafe_weights)]
        update = partial(apart, kernel[unsafe], unsafe_weights, buffer)
        solution[:, unsafe] = _steps(update, unsafe_weights, schedule)

    potentials, before = solution.squeeze(2)
    log_weights = weights.squeeze(1).log()
    last_eps = schedule[-1]
    return potentials, log_weights + before / last_eps


def _steps(update: Callable[[Tensor, float], Tensor], weights: Tensor, schedule: list[float]) -> Tensor:
    """Potentials after the last update, and before it."""
    z = torch.zeros_like(weights)
    z = update(z, schedule[0])
    for eps in schedule:
        updated = update(z, eps)
        z = torch.lerp(z, updated, 0.5)
    updated = update(z, schedule[-1])
    return torch.stack([updated, z])


def _attach(
    x: Tensor,
    y: Tensor,
    f: Tensor,
    h: Tensor,
    chunks: list[Chunk],
) -> Tensor:
    if not wants_graph(x):
        return f
    attached: Tensor = _LastUpdate.apply(x, y, f, h, chunks)
    return attached


class _LastUpdate(torch.autograd.Function):
    """Gradient in x of f = softmin(C(x, y), h), y and h held: df_i = x_i - sum_j T_ij y_j with T the row softmax.

    T is made again from h chunk by chunk, so no cost matrix outlives the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        f: Tensor,
        h: Tensor,
        chunks: list[Chunk],
    ) -> Tensor:
        ctx.save_for_backward(x, y, h)
        ctx.chunks = chunks
        return f.clone()

    @staticmethod
    def backward(ctx: Any, grad_f: Tensor) -> tuple[Tensor, None, None, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the Sinkhorn distance has no second derivative: call it without create_graph")
        x, y, h = ctx.saved_tensors
        grad_x = torch.zeros_like(x)
        end = 0
        with no_autocast(x):
            for chunk in ctx.chunks:
                start = end
                end = start + len(chunk.rows)
                eps = chunk.schedule[-1]

                # T, then x_i - sum_j T_ij y_j
                sources = x[chunk.rows]
                targets = y[chunk.cols]
                logits = _kernel(sources, targets).div_(eps)
                logits += h[start:end].unsqueeze(1)
                slope = sources - product(logits.softmax(2), targets)
                slope *= grad_f[start:end].unsqueeze(2)
                grad_x.index_add_(0, chunk.rows, slope)
        return grad_x, None, None, None, None


def over_threads(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    most: int,
) -> list[_Result]:
    """`[function(item) for item in items]` without a graph, on up to `most` of torch's threads.

    Each operation on a megabyte takes tens of microseconds, about as long as threads need to meet at its end, and far
    longer where other processes use the cores. Pieces that meet once, at the end, have no such wait.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(items), most)
    if workers < 2:
        with torch.no_grad():
            return [function(item) for item in items]

    def alone(item: _Item) -> _Result:
        with torch.no_grad():  # grad mode, like the number of threads, belongs to a thread
            return function(item)

    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(alone, items))
    finally:
        torch.set_num_threads(threads)  # what threads begun later take over
