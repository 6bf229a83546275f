"""Cosine distance of features, precise near 0 and where products of float32 are taken with less precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos(a, b) along the last axis.

    Args:
        a, b: features, shape (..., D), broadcast against each other. Computed in float32 or better.

    Returns:
        Shape (...), range [0, 2]; 0 = same direction, 1 where one of them is zero.
    """
    # for unit vectors 1 - cos = |a - b|^2 / 2, which is exactly 0 for equal ones and precise near it
    x = unit(a)
    y = unit(b)
    half_squares = (x - y).square().sum(-1) / 2
    return half_squares + _lost(x) + _lost(y)


def _lost(unit: Tensor) -> Tensor:
    """The share that a vector of zeros is missing in |a - b|^2 / 2 = 1 - a.b: half of its unit length squared."""
    lost = (1 - unit.square().sum(-1)) / 2
    return lost.where(lost > 0.25, 0)  # of all others it is rounding


def cosine_matrix(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos of every row of a (N, D) with every row of b (M, D): shape (N, M), range [0, 2]."""
    if torch.compiler.is_compiling():  # which cannot ask how precise products are
        return cosine_distance(a[:, None], b[None])
    with torch.autocast(a.device.type, enabled=False):
        distances = 1 - product(unit(a), unit(b).T)
        return distances.clamp_min(0)  # rounding may leave -1e-7


def unit(x: Tensor) -> Tensor:
    """Vectors (..., D) at unit length, in float32 or better."""
    with torch.autocast(x.device.type, enabled=False):
        return F.normalize(x if x.dtype == torch.float64 else x.float(), dim=-1)


def product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y, in float64 where products of float32 are taken with less precision."""
    # TF32 keeps 3 digits of a product, which eps = 0.0025 would amplify. MPS has neither TF32 nor float64.
    is_reducible = x.dtype == torch.float32 and x.device.type != "mps"
    if is_reducible and _are_products_reduced():
        return torch.matmul(x.double(), y.double()).float()
    return torch.matmul(x, y)


def _are_products_reduced() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # raised when precision was set per backend: some backend is not at its highest
        return True
