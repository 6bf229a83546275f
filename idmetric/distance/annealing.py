"""Dual potentials of entropic optimal transport, found by annealing: the loop of `idmetric.distance.sinkhorn`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idmetric.distance.cosine import product

_LOG2E = math.log2(math.e)


class Cloud(NamedTuple):
    tokens: Tensor  # (n, P, D), zeros where the weight is zero
    weights: Tensor  # (n, P), rows sum to 1
    log_weights: Tensor  # (n, P), detached, -inf where the weight is zero
    potential: Tensor | None  # (n, P), what debiasing subtracts, when it is at hand


class Chunk(NamedTuple):
    """Pairs (rows[k], cols[k]) solved together, and their temperatures."""

    rows: Tensor
    cols: Tensor
    schedule: list[float]


def no_autocast(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


def wants_graph(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


@torch.no_grad()
def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """Minus the cost, -|x_i - y_j|²/2: (K, P, D), (K, Q, D) -> (K, P, Q)."""
    kernel = product(x, y.mT)
    kernel -= x.square().sum(2).unsqueeze(2) / 2
    kernel -= y.square().sum(2).unsqueeze(1) / 2
    return kernel


def _softmin(kernel: Tensor, h: Tensor, eps: float, dim: int, buffer: Tensor) -> Tensor:
    """-eps * log sum exp(h + kernel / eps) over `dim`; `h` lives on that dimension."""
    torch.add(h.unsqueeze(3 - dim), kernel, alpha=1 / eps, out=buffer)
    peak = buffer.amax(dim, keepdim=True)
    # Next to the peak's 1, exp(-80) counts for nothing; less than exp(-87) would take CPUs twenty times as long.
    # Powers of two take them a quarter of the time of those of e.
    total = buffer.sub_(peak).clamp_min_(-80).mul_(_LOG2E).exp2_().sum(dim)
    return total.log_().add_(peak.squeeze(dim)).mul_(-eps)


def cross_potentials(a: Cloud, b: Cloud, chunks: list[Chunk]) -> tuple[Tensor, Tensor]:
    """Potentials (K, P) and (K, Q) of OT between the pairs, with the gradient of the last update."""
    with torch.no_grad():
        parts = [_anneal(a, b, chunk) for chunk in chunks]
        f, g, h_f, h_g = (torch.cat(column) for column in zip(*parts, strict=True))
    f = _attach(a.tokens, b.tokens, f, h_f, chunks)
    return f, _attach(b.tokens, a.tokens, g, h_g, flipped(chunks))


def flipped(chunks: list[Chunk]) -> list[Chunk]:
    return [Chunk(chunk.cols, chunk.rows, chunk.schedule) for chunk in chunks]


def self_potentials(x: Cloud, chunks: list[Chunk]) -> Tensor:
    """Potentials (K, P) of OT between the images `rows` and themselves, with the gradient of the last update."""
    chunks = [Chunk(chunk.rows, chunk.rows, chunk.schedule) for chunk in chunks]
    with torch.no_grad():
        parts = [_anneal_self(x, chunk) for chunk in chunks]
        f, h = (torch.cat(column) for column in zip(*parts, strict=True))
    return _attach(x.tokens, x.tokens, f, h, chunks)


def _anneal(a: Cloud, b: Cloud, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Potentials of a chunk of pairs after the last update, and what that update started from."""
    log_a, log_b = a.log_weights[chunk.rows], b.log_weights[chunk.cols]
    kernel = _kernel(a.tokens[chunk.rows], b.tokens[chunk.cols])
    buffer = torch.empty_like(kernel)
    eps = chunk.schedule[0]
    f, g = _softmin(kernel, log_b, eps, 2, buffer), _softmin(kernel, log_a, eps, 1, buffer)
    for eps in chunk.schedule:
        new_f = _softmin(kernel, log_b + g / eps, eps, 2, buffer)
        new_g = _softmin(kernel, log_a + f / eps, eps, 1, buffer)
        f, g = (f + new_f) / 2, (g + new_g) / 2
    h_f, h_g = log_b + g / eps, log_a + f / eps
    return _softmin(kernel, h_f, eps, 2, buffer), _softmin(kernel, h_g, eps, 1, buffer), h_f, h_g


def _anneal_self(x: Cloud, chunk: Chunk) -> tuple[Tensor, Tensor]:
    """`_anneal` of images against themselves, where both potentials are one."""
    log_x = x.log_weights[chunk.rows]
    tokens = x.tokens[chunk.rows]
    kernel = _kernel(tokens, tokens)
    buffer = torch.empty_like(kernel)
    f = _softmin(kernel, log_x, chunk.schedule[0], 2, buffer)
    for eps in chunk.schedule:
        f = (f + _softmin(kernel, log_x + f / eps, eps, 2, buffer)) / 2
    h = log_x + f / chunk.schedule[-1]
    return _softmin(kernel, h, chunk.schedule[-1], 2, buffer), h


def _attach(x: Tensor, y: Tensor, f: Tensor, h: Tensor, chunks: list[Chunk]) -> Tensor:
    if not wants_graph(x):
        return f
    attached: Tensor = _LastUpdate.apply(x, y, f, h, chunks)
    return attached


class _LastUpdate(torch.autograd.Function):
    """Gradient in x of f = softmin(C(x, y), h), y and h held: df_i = x_i - sum_j T_ij y_j with T the row softmax.

    T is made again from h chunk by chunk, so no cost matrix outlives the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, f: Tensor, h: Tensor, chunks: list[Chunk]) -> Tensor:
        ctx.save_for_backward(x, y, h)
        ctx.chunks = chunks
        return f.clone()

    @staticmethod
    def backward(ctx: Any, grad_f: Tensor) -> tuple[Tensor, None, None, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the Sinkhorn distance has no second derivative: call it without create_graph")
        x, y, h = ctx.saved_tensors
        grad_x, start = torch.zeros_like(x), 0
        with no_autocast(x):
            for rows, cols, schedule in ctx.chunks:
                pairs, start = slice(start, start + len(rows)), start + len(rows)
                sources, targets, eps = x[rows], y[cols], schedule[-1]
                plan = _kernel(sources, targets).div_(eps).add_(h[pairs].unsqueeze(1)).softmax(2)
                slope = sources - product(plan, targets)
                grad_x.index_add_(0, rows, slope.mul_(grad_f[pairs].unsqueeze(2)))
        return grad_x, None, None, None, None
