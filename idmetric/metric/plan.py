"""One step of annealing: both softmins from one exponential per pair of tokens (`idmetric.metric.annealing`).

The softmins of a step start from the same potentials f and g, at the same eps::

    new_f_i = -eps log sum_j v_j exp((g_j - C_ij) / eps)        new_g_j = -eps log sum_i u_i exp((f_i - C_ij) / eps)

With any F and G near them, both are sums of one matrix, over its columns and over its rows::

    E_ij = exp((F_i + G_j - C_ij) / eps)
    new_f_i = F_i - eps log sum_j v_j exp((g_j - G_j) / eps) E_ij        and new_g_j likewise

Steps at the same eps share E, and E at eps / 4 is E^4, which two multiplications give. References: Schmitzer 2019,
"Stabilized sparse scaling algorithms for entropy regularized transport problems" (absorption of F and G).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idmetric.metric.cosine import product

_LOG2E = math.log2(math.e)
# Next to sums of 1e-10 and more, exp(-80) counts for nothing; less than exp(-87) takes some CPUs twenty times as long.
_FLOOR = -80.0
_LOG_SUMS = -23.0, 69.0  # float32 holds these sums and their terms, and the floor is far below
_MOVES = -40.0, 40.0  # of potentials from F and G, divided by eps
_FALL = 8.0  # of eps from one step to the next: entries of E, at most 1 / weight, rise to this power
_POWERS = 64.0  # E is squared while eps is above the first / 64: exponents stay above -32 within the diameter


class TransportPlan:
    """The matrix E of a chunk of pairs, from step to step.

    Potentials are f and g side by side, (K, 1, P + Q), or the one potential (K, 1, P) of images against themselves.

    Args:
        kernel: minus the costs, (K, P, Q).
        weights: u and v of the tokens, as potentials are.
        start: the first eps.
    """

    def __init__(self, kernel: Tensor, weights: Tensor, start: float) -> None:
        self.kernel = kernel
        self.weights = weights
        self.start = start
        self.buffer = torch.empty_like(kernel)
        self.previous_eps = math.nan
        self.buffer_eps: float | None = None  # eps of E in the buffer
        self.base = weights  # F and G of E
        self.logs: list[Tensor] = []
        self.moves: list[Tensor] = []

    def update(self, z: Tensor, eps: float) -> Tensor:
        """The potentials' softmins at `eps`."""
        fall = self.previous_eps / eps
        self.previous_eps = eps
        if not self.kernel.is_cpu or fall > _FALL:
            self.buffer_eps = None
            return apart(self.kernel, self.weights, self.buffer, z, eps)

        # what z has moved from F and G goes into the weights of the sums
        self._prepare(z, eps)
        weights = self.weights
        if z is not self.base:
            moves = (z - self.base).div_(eps)
            self.moves.append(moves)
            weights = moves.exp().mul_(weights)

        logs = _sums(self.buffer, weights).log_()
        self.logs.append(logs)
        return torch.add(self.base, logs, alpha=-eps)

    def unsafe(self) -> Tensor:
        """Which of the pairs (K,) lost digits in some step: how far their sums went and the potentials moved.

        A pair's own numbers decide, so that it is solved in the same way in any chunk.
        """
        safe = _within(self.logs, _LOG_SUMS)
        if self.moves:
            safe &= _within(self.moves, _MOVES)
        return ~safe

    def _prepare(self, z: Tensor, eps: float) -> None:
        """Bring E to `eps`: as it is, squared, or made again around `z`."""
        squarings = self._squarings(eps)
        self.buffer_eps = eps
        if squarings is not None:
            for _ in range(squarings):
                self.buffer.square_()
            return

        self.base = z
        per_eps = _LOG2E / eps
        f, g = _sides(z * per_eps, self.kernel)
        torch.add(g, self.kernel, alpha=per_eps, out=self.buffer)
        self.buffer.add_(f.mT).clamp_min_(_FLOOR * _LOG2E).exp2_()

    def _squarings(self, eps: float) -> int | None:
        """How often E has to be squared for `eps`; None where that is not the way."""
        if self.buffer_eps is None:
            return None
        doublings = math.log2(self.buffer_eps / eps)
        squarings = round(doublings)
        if squarings < 0 or abs(doublings - squarings) >= 1e-9:
            return None
        if squarings > 0 and eps * _POWERS <= self.start * (1 - 1e-9):
            return None
        return squarings


def _within(values: list[Tensor], bounds: tuple[float, float]) -> Tensor:
    """Which pairs (K,) have all of their values (K, 1, P + Q) between two bounds; NaN is not."""
    low, high = bounds
    joined = torch.cat(values, 1).flatten(1)
    least, most = torch.aminmax(joined, dim=1)
    return (least >= low) & (most <= high)


def _sides(z: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """What belongs to the rows and to the columns of a kernel: one for images against themselves."""
    rows = kernel.shape[1]
    if z.shape[2] == rows:
        return z, z
    of_rows = z[:, :, :rows]
    of_columns = z[:, :, rows:]
    return of_rows, of_columns


def _sums(matrix: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows and of columns, as potentials are."""
    u, v = _sides(weights, matrix)
    row_sums = product(v, matrix.mT)
    if u is v:
        return row_sums
    column_sums = product(u, matrix)
    return torch.cat([row_sums, column_sums], 2)


def apart(
    kernel: Tensor,
    weights: Tensor,
    buffer: Tensor,
    z: Tensor,
    eps: float,
) -> Tensor:
    """Each softmin by itself, stable whatever its exponents are."""
    h = weights.log() + z / eps
    rows, cols = _sides(h, kernel)
    f = _log_sum_exp(kernel, cols, eps, 2, buffer).mT
    if rows is cols:
        return f * -eps
    g = _log_sum_exp(kernel, rows.mT, eps, 1, buffer)
    both = torch.cat([f, g], 2)
    return both * -eps


def _log_sum_exp(
    kernel: Tensor,
    h: Tensor,
    eps: float,
    dim: int,
    buffer: Tensor,
) -> Tensor:
    """log sum exp(h + kernel / eps) over `dim`, which is kept; `h` has size 1 on the other."""
    torch.add(h, kernel, alpha=1 / eps, out=buffer)
    peak = buffer.amax(dim, keepdim=True)
    # Powers of two take CPUs a quarter of the time of those of e.
    buffer.sub_(peak).clamp_min_(_FLOOR)
    powers = buffer.mul_(_LOG2E).exp2_()
    sums = powers.sum(dim, keepdim=True)
    return sums.log_() + peak
