"""Sinkhorn distance of sets of tokens: the patch term of ID-Sim (Eq. 3), by the schedule of geomloss.

With the cost C_ij = |x_i - y_j|²/2, token weights u and v that sum to 1, and eps = blur²::

    OT(a, b) = max over f, g of  sum_i u_i f_i + sum_j v_j g_j - eps (sum_ij u_i v_j exp((f_i + g_j - C_ij) / eps) - 1)
    S(a, b)  = OT(a, b) - OT(a, a) / 2 - OT(b, b) / 2                  (debias)

Higher = more different. For tokens of unit length OT is in [0, 2].

**The schedule is fixed**, as in geomloss's `SamplesLoss("sinkhorn", p=2)`: eps falls from diameter² by scaling² a step
to blur², each step averages the potentials f and g with their update, and a full update ends it. Published numbers
belong to it: scaling 0.99 gave values 7 % higher than 0.5, and S of near-equal sets may be slightly negative.

**The gradient** is that of the last update alone (envelope theorem), so it has no derivative of its own.

References: ID-Sim, Eq. 3; Feydy et al. 2019, "Interpolating between Optimal Transport and MMD using Sinkhorn
Divergences".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idmetric.metric.cosine import product

MAX_ELEMENTS = 2**24  # costs, or numbers in tokens, that are held at a time, unless one pair has more
_CACHED = 2**15  # costs for each thread of a CPU, which its cache holds: larger chunks were half as quick
_FLOOR = -80.0  # exponents that count for nothing next to 0; below -87 some CPUs take twenty times as long


class Annealing(NamedTuple):
    """How eps falls: from diameter² by scaling² a step to blur²; by default as in ID-Sim.

    Without a diameter, that of each pair's bounding box is taken, and nothing can be debiased.
    """

    blur: float = 0.05
    scaling: float = 0.5
    diameter: float | None = 2.0
    debias: bool = True

    def schedule(self, diameter: float) -> list[float]:
        """The values of eps, of which the first and, if the steps end there, the last come twice."""
        log_start = 2 * math.log(diameter)
        log_ratio = 2 * math.log(self.scaling)
        log_end = 2 * math.log(self.blur)
        steps = math.ceil((log_end - log_start) / log_ratio)
        log_values = [log_start + step * log_ratio for step in range(steps)]
        falling = [math.exp(log_value) for log_value in log_values]
        return [diameter**2, *falling, self.blur**2]


IDSIM = Annealing()  # Eq. 3
RELEASE = Annealing(scaling=0.05, diameter=None, debias=False)  # the released code


def sinkhorn(
    a: Tensor,
    b: Tensor,
    weights_a: Tensor | None = None,
    weights_b: Tensor | None = None,
    *,
    matrix: bool = False,
    annealing: Annealing = IDSIM,
) -> Tensor:
    """Distances of sets of tokens, in float32 or better; a pair's value does not depend on the others.

    Args:
        a: (N, P, D). b: (M, Q, D), where M = N or one of them is 1, unless the matrix is wanted.
        weights_a, weights_b: (N, P) and (M, Q), relative, by default equal; a token of weight 0 may hold anything.
        matrix: compare each set of a with each of b.

    Returns:
        Shape (N,) or, as a matrix, (N, M), differentiable in tokens and weights.

    Raises:
        ValueError: for other shapes, or weights without a positive and finite sum, unless they are part of a graph.
    """
    if annealing.debias and annealing.diameter is None:
        raise ValueError("only values with one diameter can be debiased")
    count_a = len(a)
    count_b = len(b)
    if not matrix and count_a != count_b and 1 not in (count_a, count_b):
        raise ValueError(f"a and b need equal batches or one of 1, got {tuple(a.shape)} and {tuple(b.shape)}")
    inputs = (a, b, weights_a, weights_b)
    with torch.autocast(a.device.type, enabled=False):
        requires_grad = any(tensor is not None and tensor.requires_grad for tensor in inputs)
        has_graph = torch.is_grad_enabled() and requires_grad
        check = not has_graph
        x, u = _normalized(a, b, weights_a, check)
        y, v = _normalized(b, a, weights_b, check)

        images_a = torch.arange(count_a, device=a.device)
        images_b = torch.arange(count_b, device=a.device)
        if matrix:
            shape = torch.Size([count_a, count_b])
            rows = images_a[:, None].expand(shape).flatten()
            columns = images_b.expand(shape).flatten()
        else:
            shape = torch.Size([count_b if count_a == 1 else count_a])
            rows = images_a.expand(shape)
            columns = images_b.expand(shape)
        if annealing.debias:
            self_f, _ = _potentials(x, u, x, u, images_a, images_a, annealing)
            self_g, _ = _potentials(y, v, y, v, images_b, images_b, annealing)

        def transport(rows: Tensor, columns: Tensor) -> Tensor:
            f, g = _potentials(x, u, y, v, rows, columns, annealing)
            if annealing.debias:  # before the sums, whose difference would keep few digits
                f = f - self_f[rows]
                g = g - self_g[columns]
            of_rows = (u[rows] * f).sum(1)
            of_columns = (v[columns] * g).sum(1)
            return of_rows + of_columns

        size = _chunk_size(x, y)
        if has_graph:  # one node sums all gradients
            size = max(1, len(rows))
        row_chunks = torch.split(rows, size)
        column_chunks = torch.split(columns, size)
        distances = [transport(*chunk) for chunk in zip(row_chunks, column_chunks, strict=True)]
        return torch.cat(distances).view(shape)


def _normalized(x: Tensor, partner: Tensor, weights: Tensor | None, check: bool) -> tuple[Tensor, Tensor]:
    """Tokens (N, P, D) in a type of both sides, zero where the weight is, and weights (N, P) that sum to 1."""
    shape = tuple(x.shape)
    partner_shape = tuple(partner.shape)
    if x.ndim != 3 or not shape[1] or shape[2] != partner_shape[-1]:
        raise ValueError(f"need (images, tokens >= 1, same channels), got {shape} and {partner_shape}")
    dtype = torch.promote_types(x.dtype, partner.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    x = x.to(dtype)
    if weights is None:
        return x, x.new_full(x.shape[:2], 1 / x.shape[1])

    if weights.shape != x.shape[:2]:
        raise ValueError(f"weights of shape {tuple(weights.shape)} for tokens of shape {tuple(x.shape)}")
    weights = weights.to(x.dtype)
    total = weights.sum(1, keepdim=True)
    if check:  # which waits for the device
        is_good = (weights >= 0).all(1) & (total[:, 0] > 0) & total[:, 0].isfinite()
        if not is_good.all():
            row = int((~is_good).nonzero()[0])
            raise ValueError(f"weights row {row} must be finite and nonnegative with a positive sum")
    return x.masked_fill((weights == 0).unsqueeze(2), 0), weights / total  # as inf * 0 would be NaN


def _chunk_size(x: Tensor, y: Tensor) -> int:
    costs = x.shape[1] * y.shape[1]
    numbers = (x.shape[1] + y.shape[1]) * x.shape[2]
    most_costs = _CACHED * torch.get_num_threads() if x.is_cpu else MAX_ELEMENTS
    most_pairs = MAX_ELEMENTS // max(costs, numbers)
    return max(1, min(most_costs // costs, most_pairs))


def _potentials(
    x: Tensor, u: Tensor, y: Tensor, v: Tensor, rows: Tensor, columns: Tensor, annealing: Annealing
) -> tuple[Tensor, Tensor]:
    """Potentials (K, P) and (K, Q) of the pairs x[rows], y[columns], with the gradient of the last update."""
    size = 1 if annealing.diameter is None else _chunk_size(x, y)
    row_chunks = torch.split(rows, size)
    column_chunks = torch.split(columns, size)
    is_self = x is y and rows is columns
    solved = []
    with torch.no_grad():
        for some_rows, some_columns in zip(row_chunks, column_chunks, strict=True):
            kernel = _kernel(x[some_rows], y[some_columns])
            diameter = annealing.diameter
            if diameter is None:
                diameter = _diameter(x[some_rows], u[some_rows], y[some_columns], v[some_columns])
            log_u = u[some_rows].log()
            log_v = v[some_columns].log()
            schedule = annealing.schedule(diameter)
            solved.append(_solved(kernel, log_u, log_v, schedule, is_self))
    f, g, h_u, h_v = map(torch.cat, zip(*solved, strict=True))
    eps = annealing.blur**2
    f = _LastUpdate.apply(x, y, f, h_v, rows, columns, eps)
    g = _LastUpdate.apply(y, x, g, h_u, columns, rows, eps)
    return f, g


def _diameter(x: Tensor, u: Tensor, y: Tensor, v: Tensor) -> float:
    """Diagonal of a pair's bounding box, above 0; 1 where the values will be NaN anyway."""
    tokens = torch.cat([x[u > 0], y[v > 0]])
    if not len(tokens) or not tokens.isfinite().all():
        return 1.0
    low, high = torch.aminmax(tokens, dim=0)
    return max(float((high - low).norm()), 5e-5)


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """Minus the costs (K, P, Q) of tokens (K, P, D) and (K, Q, D)."""
    halves_x = x.square().sum(2, keepdim=True) / 2
    halves_y = y.square().sum(2).unsqueeze(1) / 2
    products = product(x, y.mT)
    return products.sub_(halves_x).sub_(halves_y)


def _solved(
    kernel: Tensor, log_u: Tensor, log_v: Tensor, schedule: Sequence[float], is_self: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The potentials after the last update, and log(weight) + potential / eps before it, of (K, P) and (K, Q)."""
    log_u = log_u.unsqueeze(2)
    log_v = log_v.unsqueeze(1)
    buffer = torch.empty_like(kernel)

    def softmin(h: Tensor, eps: float, dim: int) -> Tensor:
        torch.add(h, kernel, alpha=1 / eps, out=buffer)
        peak = buffer.amax(dim, keepdim=True)
        buffer.sub_(peak).clamp_min_(_FLOOR).exp_()
        sums = buffer.sum(dim, keepdim=True)
        return -eps * (sums.log() + peak)

    def update(f: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        new_f = softmin(log_v + g / eps, eps, 2)
        if is_self:
            return new_f, new_f.mT
        new_g = softmin(log_u + f / eps, eps, 1)
        return new_f, new_g

    f = torch.zeros_like(log_u)
    g = torch.zeros_like(log_v)
    f, g = update(f, g, schedule[0])
    for eps in schedule:
        new_f, new_g = update(f, g, eps)
        f = (f + new_f) / 2
        g = (g + new_g) / 2
    last_f, last_g = update(f, g, eps)
    h_u = (log_u + f / eps).squeeze(2)
    h_v = (log_v + g / eps).squeeze(1)
    return last_f.squeeze(2), last_g.squeeze(1), h_u, h_v


class _LastUpdate(torch.autograd.Function):
    """Gradient in x of f = softmin(C(x, y), h), y and h held: df_i = x_i - sum_j T_ij y_j with T the row softmax.

    T is made again from h, chunk by chunk, so that no cost matrix outlives the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, f: Tensor, h: Tensor, rows: Tensor, columns: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, y, h, rows, columns)
        ctx.eps = eps
        return f.clone()

    @staticmethod
    def backward(ctx: Any, grad_f: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the Sinkhorn distance has no second derivative: call it without create_graph")
        x, y, *of_pairs = ctx.saved_tensors
        grad_x = torch.zeros_like(x)
        size = _chunk_size(x, y)
        with torch.autocast(x.device.type, enabled=False):
            of_pairs.append(grad_f)
            parts = [torch.split(tensor, size) for tensor in of_pairs]
            for h, rows, columns, grad in zip(*parts, strict=True):
                logits = _kernel(x[rows], y[columns])
                logits = logits / ctx.eps + h.unsqueeze(1)
                transported = product(logits.softmax(2), y[columns])
                slope = x[rows] - transported
                grad_x.index_add_(0, rows, slope * grad.unsqueeze(2))
        return grad_x, None, None, None, None, None, None
