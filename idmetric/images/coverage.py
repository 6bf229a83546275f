"""Coverage of pixels by a mask: exact averages over areas, bounding boxes, shapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 1 << 20  # values that are averaged at a time


def box_of(cover: Tensor) -> tuple[int, int, int, int]:
    """Left, top, right, bottom (both excluded) of the pixels that a mask (H, W) covers by half, else at all."""
    half = cover >= 0.5  # faint edges, as compression makes them, do not count
    inside = half if half.any() else cover > 0
    rows, columns = inside.any(1).nonzero().flatten().tolist(), inside.any(0).nonzero().flatten().tolist()
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def average_to(cover: Tensor, size: tuple[int, int], full: float = 1) -> Tensor:
    """Coverage (..., H, W) averaged to (..., *size), so that values are exact fractions of area; differentiable.

    Args:
        full: the value of a wholly covered pixel; the result is divided by it. Integers give float32.
    """
    if cover.shape[-2:] == tuple(size) and full == 1:
        return cover
    kind = cover.dtype if cover.is_floating_point() else torch.float32
    if cover.numel() <= BLOCK or cover.requires_grad:
        return _averaged(cover, size, (0, size[0]), full).to(kind).contiguous()
    found = cover.new_empty((*cover.shape[:-2], *size), dtype=kind)
    step = max(1, size[0] * BLOCK // max(cover.numel(), found.numel()))  # rows of the result
    for start in range(0, size[0], step):
        stop = min(start + step, size[0])
        found[..., start:stop, :] = _averaged(cover, size, (start, stop), full)
    return found


def same_shape(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two sizes (height, width) are one shape scaled, each side of the smaller rounded by up to a pixel."""
    return abs(a[0] * b[1] - a[1] * b[0]) <= max(sum(a), sum(b))


def _averaged(cover: Tensor, size: tuple[int, int], part: tuple[int, int], full: float) -> Tensor:
    """Rows part[0] to part[1] of coverage averaged to `size`, exactly."""
    length = cover.shape[-2]
    top, bottom = part[0] * length // size[0], -(-part[1] * length // size[0])
    rows = cover[..., top:bottom, :]
    exact = rows if rows.device.type == "mps" else rows.double()  # MPS has no float64
    across = _average(exact, (0, size[1]), size[1], cover.shape[-1])
    return (_average(across.mT, part, size[0], length, top).mT / full).clamp(0, 1)


def _average(x: Tensor, part: tuple[int, int], count: int, length: int, first: int = 0) -> Tensor:
    """Means over some of `count` equal stretches of an axis, ends counted by the fraction they cover.

    Args:
        x: values of the last axis from its place `first` on, as many as the stretches need.
        part: the first stretch, and the one after the last. length: of the whole axis.
    """
    edges = torch.arange(part[0], part[1] + 1, dtype=x.dtype, device=x.device) * length / count - first
    at = edges.long().clamp(max=x.shape[-1] - 1)
    sums = F.pad(x.cumsum(-1), (1, 0))[..., at] + (edges - at) * x[..., at]
    return sums.diff(dim=-1) * (count / length)
