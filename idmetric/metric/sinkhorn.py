"""Sinkhorn distance between two sets of patch tokens: entropic optimal transport with ID-Sim's schedule.

The distance is the patch term of ID-Sim (Eq. 3), with the cost C_ij = |x_i - y_j|²/2 and at temperature
eps = blur² (token weights u of `a` and v of `b` sum to 1)::

    OT(a, b) = max over f, g of  sum_i u_i f_i + sum_j v_j g_j
                                 - eps * (sum_ij u_i v_j exp((f_i + g_j - C_ij) / eps) - 1)
    S(a, b)  = OT(a, b) - OT(a, a) / 2 - OT(b, b) / 2                  (debias=True)

Higher = more different. Range, at convergence: OT in [0, 2] for unit vectors, with OT(a, a) > 0; S >= 0, S(a, a) = 0.

**A fixed schedule, not converged transport.** Following geomloss's `SamplesLoss("sinkhorn", p=2)`, eps falls from
diameter² by scaling² a step to blur², the dual potentials take one averaged symmetric update per step, and a last
full update ends it. Published numbers belong to that schedule: on 28x28 smooth unit features scaling 0.99 gave a 7%
higher value than scaling 0.5. For the same reason S(a, b) may be slightly negative between near-identical sets.

**The gradient is that of the last update alone**, the iterations before it being constants (envelope theorem), as in
geomloss. It is exact only at convergence (about 2% off along itself at scaling 0.5), and `create_graph` raises an
error, because a second derivative of the last update alone would be wrong.

**Settings.** ID-Sim's release uses blur=0.05, scaling=0.05, debias=False: the paper's "regularization 0.05" is
geomloss's `scaling`, the annealing ratio. `diameter` is where eps starts; 2.0 bounds the distance of unit vectors
(normalizing tokens is the caller's job) and is the same for every pair. `diameter=None` takes the bounding-box
diagonal of each *pair*, which is what geomloss does for a batch of one; here a score never depends on batch mates.

**Precision.** Half-precision tokens are computed in float32 and float64 stays float64, also inside autocast. Where
TF32 or bfloat16 products are switched on for float32, the products are taken in float64. Tokens that are not finite
give NaN, unless their weight is zero.

**Memory.** Cost matrices exist for one chunk of pairs at a time, forward and backward, and stay below `MAX_ELEMENTS`
numbers (two buffers) or one pair. On CPUs, each thread solves a chunk of its own, within the same bound. With a graph,
a few potentials per token and pair are kept, never a cost matrix.

References: ID-Sim, Eq. 3; Feydy et al. 2019, "Interpolating between optimal transport and MMD using Sinkhorn
divergences".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from idmetric.metric.annealing import (
    Chunk,
    Cloud,
    by_views,
    cross_potentials,
    flipped,
    halves,
    no_autocast,
    over_threads,
    self_potentials,
    wants_graph,
)

MAX_ELEMENTS = 2**24  # of a chunk of cost matrices; one pair may exceed it
_CACHED = 2**20  # elements of a chunk that a CPU's cache holds: larger ones were half as quick
_THREADED = 2**15  # elements of a chunk from which a thread of its own pays


def sinkhorn_distance(
    a: Tensor,
    b: Tensor,
    *,
    weights_a: Tensor | None = None,
    weights_b: Tensor | None = None,
    blur: float = 0.05,
    scaling: float = 0.5,
    diameter: float | None = 2.0,
    debias: bool = True,
) -> Tensor:
    """Sinkhorn distance of each pair `a[k]`, `b[k]`; higher = more different (formula and reference: module).

    Args:
        a: tokens, (B, N, D), or (1, N, D) to compare one image with every `b[k]`.
        b: tokens, (B, M, D), or (1, M, D).
        weights_a: nonnegative weights or a mask, (B, N), rescaled to sum 1 per row; uniform by default. Tokens of
            weight zero are ignored whatever they hold. They must be finite, and each row needs a positive one, which
            is checked unless tokens require grad: a check waits for the device.
        weights_b: the same for `b`, (B, M).
        blur: square root of the final temperature.
        scaling: ratio of successive blurs, in (0, 1); nearer 1 = more iterations.
        diameter: first blur; None = bounding-box diagonal of each pair.
        debias: subtract the self terms, so that equal sets are at distance 0.

    Returns:
        Distances (B,), float32 or float64, differentiable in tokens and weights.
    """
    counts = (len(a), len(b))
    if counts[0] != counts[1] and 1 not in counts:
        raise ValueError(f"a and b need equal batches or one of 1, got {tuple(a.shape)} and {tuple(b.shape)}")
    options = _Annealing(blur, scaling, diameter, debias)
    with no_autocast(a):
        left = _cloud(a, b, weights_a)
        right = _cloud(b, a, weights_b)
        rows = _indices(a)
        cols = _indices(b)
        if len(a) == 1:
            rows = rows.expand(len(b))
        elif len(b) == 1:
            cols = cols.expand(len(a))
        return _scores(left, right, rows, cols, options)


def sinkhorn_matrix(
    a: Tensor,
    b: Tensor,
    *,
    weights_a: Tensor | None = None,
    weights_b: Tensor | None = None,
    blur: float = 0.05,
    scaling: float = 0.5,
    diameter: float | None = 2.0,
    debias: bool = True,
    self_b: Tensor | None = None,
) -> Tensor:
    """Sinkhorn distances of all pairs `a[i]`, `b[j]`; each image's self term is computed once.

    Takes `a` (N, P, D) and `b` (M, Q, D), and otherwise the arguments of `sinkhorn_distance`, with weights (N, P) and
    (M, Q); `self_b` is the `self_potential` (M, Q) of `b` with the same weights and settings, when it is at hand. When
    `a is b` and `weights_a is weights_b`, only the upper triangle is computed and the debiased diagonal is exactly 0.
    With `diameter=None` self terms depend on the pair and are computed for each.

    Returns:
        Distances (N, M), float32 or float64, differentiable in tokens and weights.
    """
    options = _Annealing(blur, scaling, diameter, debias)
    symmetric = a is b and weights_a is weights_b
    with no_autocast(a):
        left = _cloud(a, b, weights_a)
        if symmetric:
            right = left
            rows, cols = torch.triu_indices(len(a), len(a), int(debias), device=a.device)
        else:
            right = _cloud(b, a, weights_b, self_b)
            rows = _indices(a).repeat_interleave(len(b))
            cols = _indices(b).repeat(len(a))

        scores = _scores(left, right, rows, cols, options)
        matrix = scores.new_zeros(len(a), len(b))
        matrix = matrix.index_put((rows, cols), scores)
        if symmetric:
            matrix = matrix.index_put((cols, rows), scores)
        return matrix


def self_potential(
    x: Tensor,
    weights: Tensor | None = None,
    *,
    blur: float = 0.05,
    scaling: float = 0.5,
    diameter: float = 2.0,
) -> Tensor:
    """Per-token potential p of OT(x, x), what debiasing subtracts: OT(x, x) / 2 = sum_i u_i p_i.

    Compute it once per image and hand it to `sinkhorn_matrix` as `self_b`, with the same weights and settings. It is
    kept per token, not summed, because the distance of similar sets is a small difference of large potentials:
    subtracting before summing keeps its digits. It carries its share of the gradient if made with grad; under `no_grad`
    that share is lost, which suits only a side that is not optimized.

    Args:
        x: tokens, (N, P, D).
        weights: as in `sinkhorn_distance`, (N, P).
        blur, scaling, diameter: as in `sinkhorn_distance`; a bounding box of pairs has no place here.

    Returns:
        Potentials (N, P); those of tokens of weight zero mean nothing.
    """
    options = _Annealing(blur, scaling, diameter, True)
    with no_autocast(x):
        return _self_potential(_cloud(x, x, weights), options)


class _Annealing(NamedTuple):
    blur: float
    scaling: float
    diameter: float | None
    debias: bool


def _indices(images: Tensor) -> Tensor:
    return torch.arange(len(images), device=images.device)


def _saveable(x: Tensor) -> Tensor:
    """A tensor that autograd can keep: embeddings made under inference_mode may meet ones that require grad."""
    if x.is_inference() and not torch.is_inference_mode_enabled():
        return x.clone()
    return x


def _cloud(x: Tensor, y: Tensor, weights: Tensor | None, potential: Tensor | None = None) -> Cloud:
    """The tokens `x`, which are compared with `y`, their weights, and their potential if it is at hand."""
    is_set = x.ndim == 3 and x.shape[1] > 0
    if not is_set or x.shape[2] != y.shape[-1]:
        raise ValueError(f"need (images, tokens >= 1, same channels), got {tuple(x.shape)} and {tuple(y.shape)}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    x = _saveable(x.to(dtype))
    if potential is not None:
        potential = _saveable(potential.to(dtype))

    if weights is None:
        weights = x.new_full(x.shape[:2], 1 / x.shape[1])
    else:
        weights = _normalized(weights, x, check=not wants_graph(x, y))
        # A masked token may hold anything, and inf * 0 is NaN: it has to leave before the products.
        is_masked = weights == 0
        x = x.masked_fill(is_masked.unsqueeze(2), 0)
    return Cloud(x, weights, halves(x), potential)


def _normalized(weights: Tensor, x: Tensor, check: bool) -> Tensor:
    if weights.shape != x.shape[:2]:
        raise ValueError(f"weights of shape {tuple(weights.shape)} for tokens of shape {tuple(x.shape)}")
    weights = _saveable(weights.to(x.dtype))
    total = weights.sum(1)
    if check:
        is_nonnegative = (weights >= 0).all(1)
        is_valid = is_nonnegative & (total > 0) & total.isfinite()
        bad_rows = (~is_valid).nonzero()
        if len(bad_rows):
            raise ValueError(f"weights row {int(bad_rows[0])} must be finite and nonnegative with a positive sum")
    return weights / total.unsqueeze(1)


def _scores(
    a: Cloud,
    b: Cloud,
    rows: Tensor,
    cols: Tensor,
    options: _Annealing,
) -> Tensor:
    """Distances (K,) of the pairs (rows[k], cols[k])."""
    chunks = _chunks(a, b, rows, cols, options)
    if options.debias and options.diameter is not None:
        is_same = b is a
        a = _with_self_potential(a, options)
        b = a if is_same else _with_self_potential(b, options)

    # Without a graph each chunk shrinks to its scores at once; with one, a single node sums the chunks' gradients.
    if wants_graph(*a, *b):
        return _transport(a, b, chunks, options.debias)

    def transport(chunk: Chunk) -> Tensor:
        return _transport(a, b, [chunk], options.debias)

    return torch.cat(over_threads(transport, chunks, chunks[0].threads))


def _transport(a: Cloud, b: Cloud, chunks: list[Chunk], debias: bool) -> Tensor:
    """Distances (K,) of the pairs of all chunks, in order."""
    rows = torch.cat([chunk.rows for chunk in chunks])
    cols = torch.cat([chunk.cols for chunk in chunks])
    f, g = cross_potentials(a, b, chunks)
    if debias:
        # Potential minus potential, then the sum: the sums alone would cancel to few digits.
        f = f - _debiasing(a, rows, chunks)
        g = g - _debiasing(b, cols, flipped(chunks))
    weights_a = a.weights[rows]
    weights_b = b.weights[cols]
    costs_a = (weights_a * f).sum(1)
    costs_b = (weights_b * g).sum(1)
    return costs_a + costs_b


def _debiasing(x: Cloud, images: Tensor, chunks: list[Chunk]) -> Tensor:
    """The self potentials (K, P) of these images, which are the `rows` of the chunks."""
    if x.potential is None:
        return self_potentials(x, chunks)
    return x.potential[images]


def _chunks(
    a: Cloud,
    b: Cloud,
    rows: Tensor,
    cols: Tensor,
    options: _Annealing,
) -> list[Chunk]:
    """The pairs (rows[k], cols[k]) in chunks that fit in memory, and on CPUs in a cache."""
    tokens_a, channels = a.tokens.shape[1:]
    tokens_b = b.tokens.shape[1]
    pair_elements = tokens_a * tokens_b
    if wants_graph(*a, *b) or not by_views(a.tokens, b.tokens):
        pair_elements = max(pair_elements, (tokens_a + tokens_b) * channels)  # the pairs' tokens are copied too

    # with diameter=None each pair has temperatures of its own
    most_elements = min(MAX_ELEMENTS, _CACHED) if rows.is_cpu else MAX_ELEMENTS
    size = max(1, most_elements // pair_elements)
    if options.diameter is None:
        size = 1
    threads = 1
    if rows.is_cpu and size * pair_elements >= _THREADED:
        threads = MAX_ELEMENTS // (size * pair_elements)

    chunks = []
    pairs = zip(torch.split(rows, size), torch.split(cols, size), strict=True)
    for chunk_rows, chunk_cols in pairs:
        diameter = options.diameter
        if diameter is None:
            diameter = _diameter(a, b, chunk_rows, chunk_cols, options.blur)
        schedule = _schedule(diameter, options)
        chunks.append(Chunk(chunk_rows, chunk_cols, schedule, threads))
    return chunks


def _schedule(diameter: float, options: _Annealing) -> list[float]:
    """Temperatures: diameter², then from diameter² again by steps of scaling² while above blur², then blur²."""
    log_start = 2 * math.log(diameter)
    log_end = 2 * math.log(options.blur)
    log_ratio = 2 * math.log(options.scaling)
    steps = math.ceil((log_end - log_start) / log_ratio)

    schedule = [diameter**2]
    for step in range(steps):
        log_eps = log_start + step * log_ratio
        schedule.append(math.exp(log_eps))
    schedule.append(options.blur**2)
    return schedule


def _diameter(
    a: Cloud,
    b: Cloud,
    rows: Tensor,
    cols: Tensor,
    blur: float,
) -> float:
    """Bounding-box diagonal of a pair; a floor keeps the first temperature positive for constant sets."""
    if not len(rows):
        return 1.0
    tokens = []
    for cloud, images in ((a, rows), (b, cols)):
        is_visible = cloud.weights[images] > 0
        tokens.append(cloud.tokens[images].detach()[is_visible])
    low, high = torch.aminmax(torch.cat(tokens), dim=0)
    diameter = float((high - low).norm())
    if not math.isfinite(diameter):
        return 1.0  # such a score is NaN anyway
    return max(diameter, 1e-3 * blur)


def _self_potential(x: Cloud, options: _Annealing) -> Tensor:
    images = _indices(x.tokens)
    chunks = _chunks(x, x, images, images, options)
    return self_potentials(x, chunks)


def _with_self_potential(x: Cloud, options: _Annealing) -> Cloud:
    if x.potential is not None:
        return x
    return x._replace(potential=_self_potential(x, options))
