"""Parts shared by the losses: full precision, cosines, and sums that leave masked entries out without NaN gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def full(x: Tensor) -> Tensor:
    """`x` in float32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of every row of a (..., N, D) with every row of b (..., M, D): shape (..., N, M), range [-1, 1].

    Computed in float32 or better, also inside autocast. A zero vector is at cosine 0 from everything.
    """
    with torch.autocast(a.device.type, enabled=False):
        return F.normalize(full(a), dim=-1) @ F.normalize(full(b), dim=-1).transpose(-1, -2)


def masked_mean(values: Tensor, valid: Tensor, dim: int | None = None) -> Tensor:
    """Mean of the entries where `valid`, over `dim` or all; 0 where no entry is, with a graph and zero gradient."""
    values = values.masked_fill(~valid, 0)
    total = values.sum() if dim is None else values.sum(dim)
    count = valid.sum() if dim is None else valid.sum(dim)
    return total / count.clamp_min(1)


def masked_logsumexp(values: Tensor, valid: Tensor, dim: int = -1) -> Tensor:
    """log of the sum of e^value over the entries where `valid`; -inf where no entry is, with zero gradient."""
    none = ~valid.any(dim, keepdim=True)
    kept = values.masked_fill(~valid, -torch.inf).masked_fill(none, 0)  # a row without entries passes no gradient
    return kept.logsumexp(dim).masked_fill(none.squeeze(dim), -torch.inf)


def check_shapes(fit: bool, need: str, *given: Tensor) -> None:
    """Raise ValueError, which names the shapes, unless they fit."""
    if not fit:
        raise ValueError(f"need {need}, got {', '.join(str(tuple(x.shape)) for x in given)}")


def check_temperature(temperature: float | Tensor) -> None:
    """Raise ValueError for a number that is not positive; a tensor is taken as it is, to spare the GPU a stop."""
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
