"""Antialiased resizing as an operator of its own, which torch.compile leaves as it is.

The compiler fails on the gradient of torch's antialiased interpolation where it does not know a size, such as after the
first change of the batch size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op(
    "idmetric::resize", mutates_args=(), schema="(Tensor x, SymInt height, SymInt width, str mode) -> Tensor"
)
def resize(x: Tensor, height: int, width: int, mode: str) -> Tensor:
    """`F.interpolate` of (B, C, H, W) to (B, C, height, width) with antialias=True; mode "bicubic" or "bilinear"."""
    return F.interpolate(x, (height, width), mode=mode, align_corners=False, antialias=True)


def _resized(x: Tensor, height: int, width: int, mode: str) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], height, width))


@torch.library.custom_op(
    "idmetric::resize_backward",
    mutates_args=(),
    schema="(Tensor grad, SymInt height, SymInt width, str mode) -> Tensor",
)
def _resize_backward(grad: Tensor, height: int, width: int, mode: str) -> Tensor:
    backward = getattr(torch.ops.aten, f"_upsample_{mode}2d_aa_backward").default
    found: Tensor = backward(grad, list(grad.shape[-2:]), [*grad.shape[:2], height, width], False, None, None)
    return found


def _resized_backward(grad: Tensor, height: int, width: int, mode: str) -> Tensor:
    return grad.new_empty((grad.shape[0], grad.shape[1], height, width))


def _setup(ctx: Any, inputs: tuple[Tensor, int, int, str], output: Tensor) -> None:
    x, _, _, mode = inputs
    ctx.size, ctx.mode = x.shape[-2:], mode


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _resize_backward(grad, *ctx.size, ctx.mode), None, None, None


torch.library.register_fake("idmetric::resize", _resized)
torch.library.register_fake("idmetric::resize_backward", _resized_backward)
torch.library.register_autograd("idmetric::resize", _backward, setup_context=_setup)
