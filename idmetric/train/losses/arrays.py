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
        unit_a = F.normalize(full(a), dim=-1)
        unit_b = F.normalize(full(b), dim=-1)
        return unit_a @ unit_b.transpose(-1, -2)


def masked_mean(values: Tensor, valid: Tensor, dim: int | None = None) -> Tensor:
    """Mean of the entries where `valid`, over `dim` or all; 0 where no entry is, with a graph and zero gradient."""
    total = values.masked_fill(~valid, 0).sum(dim)
    return total / valid.sum(dim).clamp_min(1)


def masked_logsumexp(values: Tensor, valid: Tensor, dim: int = -1) -> Tensor:
    """log of the sum of e^value over the entries where `valid`; -inf where no entry is, with zero gradient."""
    is_empty = ~valid.any(dim, keepdim=True)
    values = values.masked_fill(~valid, -torch.inf)
    values = values.masked_fill(is_empty, 0)  # a row without entries passes no gradient
    sums = values.logsumexp(dim)
    return sums.masked_fill(is_empty.squeeze(dim), -torch.inf)


def check_shapes(fit: bool, need: str, *tensors: Tensor) -> None:
    """Raise ValueError, which names the shapes, unless they fit."""
    if not fit:
        shapes = [str(tuple(tensor.shape)) for tensor in tensors]
        raise ValueError(f"need {need}, got {', '.join(shapes)}")


def check_matrix(*tensors: Tensor) -> None:
    """Raise ValueError unless all are of one shape (Q, N)."""
    first, *rest = tensors
    fit = first.ndim == 2 and all(tensor.shape == first.shape for tensor in rest)
    check_shapes(fit, f"{len(tensors)} arrays of one shape (Q, N)", *tensors)


def check_pairs(positive: Tensor, negative: Tensor) -> None:
    """Raise ValueError unless these are similarities (B,) to positives and (B, N) to negatives."""
    fit = positive.ndim == 1 and negative.ndim == 2 and len(negative) == len(positive) > 0
    check_shapes(fit, "(B,) and (B, N), B >= 1", positive, negative)


def check_labels(embedding: Tensor, label: Tensor) -> None:
    """Raise ValueError unless these are embeddings (N, D) and their labels (N,)."""
    fit = embedding.ndim == 2 and label.shape == embedding.shape[:1]
    check_shapes(fit, "(N, D) and (N,)", embedding, label)


def check_temperature(temperature: float | Tensor) -> None:
    """Raise ValueError for a number that is not positive; a tensor is taken as it is, to spare the GPU a stop."""
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
