"""Antialiased resizing of pixels, differentiable, also under torch.compile; exact averages of masks.

The compiler fails on the gradient of torch's antialiased interpolation where it does not know a size, such as after the
first change of the batch size. There, `_resize` is an operator of its own, which the compiler leaves as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.resampling import Sides, check_interpolation

_PIXELS_AT_ONCE = 2**18


def resize_pixels(pixels: Tensor, size: Sides, interpolation: str = "bicubic") -> Tensor:
    """Resize (B, C, H, W) to (B, C, *size) with antialiasing, clamped to [0, 1]; differentiable.

    float64 stays float64; other types are computed and returned in float32. At the right size nothing changes.
    """
    check_interpolation(interpolation)
    if pixels.dtype != torch.float64:
        pixels = pixels.float()
    if pixels.shape[-2:] == tuple(size):
        return pixels
    return resize_antialiased(pixels, size, interpolation).clamp(0, 1)  # bicubic interpolation overshoots at edges


def resize_antialiased(x: Tensor, size: Sides, interpolation: str) -> Tensor:
    """Resize (B, C, H, W), of any range of values, to (B, C, *size); differentiable, computed in float32 or better.

    Returns the type of x on its device.
    """
    if size[1] == 1 < size[0]:  # torch's CPU kernel gets one column wrong (seen in 2.15), but not one row
        return resize_antialiased(x.mT, (1, size[0]), interpolation).mT

    # CPUs lack the kernels for 16-bit floats, and MPS lacks them all in some versions of torch
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.device.type == "mps":
        wide = wide.cpu()

    # torch.export should write operators of torch alone; torch tells it from compiling since 2.7
    is_exporting = hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()
    if torch.compiler.is_compiling() and not is_exporting:
        resized: Tensor = _resize(wide, *size, interpolation)
    else:
        resized = F.interpolate(wide, tuple(size), mode=interpolation, align_corners=False, antialias=True)
    return resized.to(x.device, x.dtype)


def place(pixels: Tensor, device: torch.device | str | None) -> Tensor:
    """Move to a device; MPS has no float64, so it becomes float32 there."""
    if device is not None and torch.device(device).type == "mps":
        pixels = pixels.float()  # MPS has no float64
    return pixels.to(device)


# Averages of masks


def average_to(cover: Tensor, size: Sides, full: float = 1) -> Tensor:
    """Coverage (..., H, W) averaged to (..., *size), so that values are exact fractions of area; differentiable.

    Args:
        full: the value of a wholly covered pixel; the result is divided by it. Integers give float32.
    """
    if cover.shape[-2:] == tuple(size) and full == 1:
        return cover
    dtype = cover.dtype if cover.is_floating_point() else torch.float32

    def average_columns(columns: Tensor) -> Tensor:
        means = _average(columns, size[0]) / full
        return means.clamp(0, 1).to(dtype)

    narrow = _in_parts(lambda rows: _average(rows, size[1]), cover)
    return _in_parts(average_columns, narrow.mT).mT.contiguous()


def _in_parts(average: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Averages of rows, of a large mask in parts: sums take 16 bytes a pixel."""
    if x.ndim != 2:
        return average(x)
    rows = max(1, _PIXELS_AT_ONCE // x.shape[1])
    parts = [average(part) for part in torch.split(x, rows)]
    return torch.cat(parts)


def _average(x: Tensor, count: int) -> Tensor:
    """Means over `count` equal stretches of the last axis, ends counted by the fraction they cover."""
    dtype = torch.float64
    if x.device.type == "mps":  # which has no float64
        dtype = torch.float32
    length = x.shape[-1]
    edges = torch.arange(count + 1, dtype=dtype, device=x.device)
    edges = edges * length / count

    # the sum up to each edge: of whole pixels, less what of the last one lies beyond the edge
    last_pixel = edges.long().clamp(max=length - 1)
    whole_sums = x.cumsum(-1, dtype=dtype)[..., last_pixel]
    beyond = edges - last_pixel - 1
    sums = whole_sums + beyond * x[..., last_pixel]
    of_cells = sums.diff(dim=-1)
    return of_cells * (count / length)


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
    output_size = list(grad.shape[-2:])
    input_shape = [*grad.shape[:2], height, width]
    grad_input: Tensor = backward(grad, output_size, input_shape, False, None, None)
    return grad_input


def _empty(x: Tensor, height: int, width: int, mode: str) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], height, width))


def _setup(ctx: Any, inputs: tuple[Tensor, int, int, str], output: Tensor) -> None:
    x, _, _, mode = inputs
    ctx.size = x.shape[-2:]
    ctx.mode = mode


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _resize_backward(grad, *ctx.size, ctx.mode), None, None, None


torch.library.register_fake("idmetric::resize", _empty)
torch.library.register_fake("idmetric::resize_backward", _empty)
torch.library.register_autograd("idmetric::resize", _backward, setup_context=_setup)
