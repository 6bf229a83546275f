"""Antialiased resizing of pixels, differentiable, also under torch.compile; exact averages of masks.

The compiler fails on the gradient of torch's antialiased interpolation where it does not know a size, such as after the
first change of the batch size. There, `_resize` is an operator of its own, which the compiler leaves as it is.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.images.kinds import check_interpolation

BLOCK = 1 << 20  # values that are averaged at a time


def resize_pixels(pixels: Tensor, size: tuple[int, int], interpolation: str = "bicubic") -> Tensor:
    """Resize (B, C, H, W) to (B, C, *size) with antialiasing, clamped to [0, 1]; differentiable.

    float64 stays float64; other types are computed and returned in float32. At the right size nothing changes.
    """
    check_interpolation(interpolation)
    pixels = pixels if pixels.dtype == torch.float64 else pixels.float()
    if pixels.shape[-2:] == tuple(size):
        return pixels
    if size[1] == 1 < size[0]:  # torch's CPU kernel gets one column wrong (seen in 2.15), but not one row
        return resize_pixels(pixels.mT, (1, size[0]), interpolation).mT
    # MPS lacks the antialiased kernels in some versions of torch
    x = pixels.cpu() if pixels.device.type == "mps" else pixels
    # torch.export (which torch 2.8 and later report) should write operators of torch alone
    exporting = getattr(torch.compiler, "is_exporting", bool)()
    if torch.compiler.is_compiling() and not exporting:
        x = _resize(x, *size, interpolation)
    else:
        x = F.interpolate(x, tuple(size), mode=interpolation, align_corners=False, antialias=True)
    return x.to(pixels.device).clamp(0, 1)  # bicubic interpolation overshoots at edges


def place(pixels: Tensor, device: torch.device | str | None) -> Tensor:
    """Move to a device; MPS has no float64, so it becomes float32 there."""
    if device is not None and torch.device(device).type == "mps":
        pixels = pixels.float()  # MPS has no float64
    return pixels.to(device)


# Averages of masks


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


# An operator of its own


@torch.library.custom_op(
    "idmetric::resize", mutates_args=(), schema="(Tensor x, SymInt height, SymInt width, str mode) -> Tensor"
)
def _resize(x: Tensor, height: int, width: int, mode: str) -> Tensor:
    """`F.interpolate` of (B, C, H, W) to (B, C, height, width) with antialias=True; mode "bicubic" or "bilinear"."""
    return F.interpolate(x, (height, width), mode=mode, align_corners=False, antialias=True)


@torch.library.custom_op(
    "idmetric::resize_backward",
    mutates_args=(),
    schema="(Tensor grad, SymInt height, SymInt width, str mode) -> Tensor",
)
def _resize_backward(grad: Tensor, height: int, width: int, mode: str) -> Tensor:
    backward = getattr(torch.ops.aten, f"_upsample_{mode}2d_aa_backward").default
    found: Tensor = backward(grad, list(grad.shape[-2:]), [*grad.shape[:2], height, width], False, None, None)
    return found


def _empty(x: Tensor, height: int, width: int, mode: str) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], height, width))


def _setup(ctx: Any, inputs: tuple[Tensor, int, int, str], output: Tensor) -> None:
    x, _, _, mode = inputs
    ctx.size, ctx.mode = x.shape[-2:], mode


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _resize_backward(grad, *ctx.size, ctx.mode), None, None, None


torch.library.register_fake("idmetric::resize", _empty)
torch.library.register_fake("idmetric::resize_backward", _empty)
torch.library.register_autograd("idmetric::resize", _backward, setup_context=_setup)
