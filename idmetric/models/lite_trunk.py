"""EfficientNet-Lite0 for saved weights: timm's `tf_efficientnet_lite0` without timm, with folded BatchNorm.

Most of the time of a first score of "tiny" would go into importing timm, torchvision and, through them, torch's
compiler. This module has timm's names of tensors, in timm's order, and the part of timm's interface that
`idmetric.models.tokens` reads; tests hold it to timm's outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

NAME = "tf_efficientnet_lite0"  # timm's

# (blocks, kernel, stride of the first, expansion, channels) of each stage (Tan and Le 2019, Table 1; Lite: the same
# without squeeze-and-excitation, and ReLU6 in place of SiLU)
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
           (1, 3, 1, 6, 320))  # fmt: skip
_STEM, _HEAD = 32, 1280
_ENDS = (0, 1, 2, 4, 6)  # stages before the next halving of the map: timm's `feature_info`


class LiteTrunk(nn.Module):
    """Pixels (B, 3, H, W), normalized, to a feature map (B, 1280, H/32, W/32); without classifier."""

    num_features = _HEAD
    num_prefix_tokens = 0

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = _conv(3, _STEM, 3, stride=2), _norm(_STEM)
        before, stages = _STEM, []
        for count, kernel, stride, expansion, channels in _STAGES:
            blocks = []
            for k in range(count):
                blocks.append(_Block(before, channels, kernel, stride if k == 0 else 1, expansion))
                before = channels
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head, self.bn2 = _conv(before, _HEAD, 1), _norm(_HEAD)
        self.feature_info = [{"num_chs": _STAGES[end][-1], "module": f"blocks.{end}"} for end in _ENDS]
        self._checkpointed = False

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute stages again in the backward pass instead of keeping their activations."""
        self._checkpointed = enable

    def forward_intermediates(
        self, x: Tensor, indices: Sequence[int] | int, norm: bool = False, output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:  # fmt: skip
        """The final feature map and those of `feature_info`'s entries `indices`, as timm's method of that name.

        Args:
            indices: entries, or how many of the last.
            norm, output_fmt: only timm's defaults.
        """
        ends = _ENDS[-indices:] if isinstance(indices, int) else [_ENDS[k] for k in indices]

        found, x = [], _normed(self.conv_stem, self.bn1, x, act=True)
        for stage, blocks in enumerate(self.blocks):
            again = self._checkpointed and torch.is_grad_enabled()
            x = checkpoint(blocks, x, use_reentrant=False) if again else blocks(x)
            if stage in ends:
                found.append(x)
        return found if intermediates_only else (_normed(self.conv_head, self.bn2, x, act=True), found)

    def forward_features(self, x: Tensor) -> Tensor:
        """The final feature map."""
        final: Tensor = self.forward_intermediates(x, ())[0]
        return final

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """The mean over places, (B, 1280)."""
        return features.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Global features (B, 1280)."""
        return self.forward_head(self.forward_features(x))


class _Block(nn.Module):
    """Expansion, depthwise convolution, projection; the input is added where shapes allow.

    The first stage does not expand; there, timm calls the projection conv_pw.
    """

    def __init__(self, before: int, channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.expands, self.adds = expansion > 1, stride == 1 and before == channels
        inner = before * expansion
        if self.expands:
            self.conv_pw, self.bn1 = _conv(before, inner, 1), _norm(inner)
            self.conv_dw, self.bn2 = _conv(inner, inner, kernel, stride, groups=inner), _norm(inner)
            self.conv_pwl, self.bn3 = _conv(inner, channels, 1), _norm(channels)
        else:
            self.conv_dw, self.bn1 = _conv(inner, inner, kernel, stride, groups=inner), _norm(inner)
            self.conv_pw, self.bn2 = _conv(inner, channels, 1), _norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        if self.expands:
            y = _normed(self.conv_pw, self.bn1, x, act=True)
            y = _normed(self.conv_dw, self.bn2, y, act=True)
            y = _normed(self.conv_pwl, self.bn3, y, act=False)
        else:
            y = _normed(self.conv_dw, self.bn1, x, act=True)
            y = _normed(self.conv_pw, self.bn2, y, act=False)
        return x + y if self.adds else y


def _conv(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    # TensorFlow's "same" padding depends on the input where the stride is 2: `_normed` pads there
    padding = kernel // 2 if stride == 1 else 0
    return nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


def _normed(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor, *, act: bool) -> Tensor:
    """ReLU6 (with `act`) of the normalized convolution.

    With stored statistics, BatchNorm is a scale and a shift of channels; scaling the kernel instead saves a pass over
    the map. A module in the convolution's place, such as an adapter, is called as it is.
    """
    if conv.stride[0] == 2:
        x = F.pad(x, _same(x.shape[-1], conv.kernel_size[0]) + _same(x.shape[-2], conv.kernel_size[0]))
    if norm.training or type(conv) is not nn.Conv2d or norm.running_mean is None or norm.running_var is None:
        x = norm(conv(x))
    else:
        exact = torch.promote_types(conv.weight.dtype, torch.float32)
        scale = norm.weight.to(exact) * (norm.running_var.to(exact) + norm.eps).rsqrt()
        shift = norm.bias.to(exact) - norm.running_mean.to(exact) * scale
        kernel = (conv.weight.to(exact) * scale.view(-1, 1, 1, 1)).to(conv.weight.dtype)
        shift = shift.to(kernel.dtype)
        if conv.groups > 1 and _in_bfloat16(x) and torch.is_grad_enabled():
            x = _Depthwise.apply(x, kernel, shift, conv.stride, conv.padding)
        else:
            x = F.conv2d(x, kernel, shift, conv.stride, conv.padding, groups=conv.groups)
    return F.relu6(x, inplace=True) if act else x


def _in_bfloat16(x: Tensor) -> bool:
    """Whether a convolution of x runs in bfloat16 on a CPU."""
    if x.device.type != "cpu":
        return False
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") == torch.bfloat16
    return x.dtype == torch.bfloat16


class _Depthwise(torch.autograd.Function):
    """A depthwise convolution in bfloat16 whose gradients are computed in float32.

    In bfloat16, CPUs take up to 50 times as long for the gradients of 5 x 5 kernels and of stride 2, which is most of a
    training step. It has no second derivative.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, shift: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        ctx.types = x.dtype, kernel.dtype, shift.dtype
        x, kernel, shift = (one.to(torch.bfloat16) for one in (x, kernel, shift))
        ctx.save_for_backward(x, kernel)
        ctx.stride, ctx.padding = list(stride), list(padding)
        return F.conv2d(x, kernel, shift, stride, padding, groups=len(kernel))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel = (one.float() for one in ctx.saved_tensors)
        count, wanted = len(kernel), list(ctx.needs_input_grad[:3])
        found = torch.ops.aten.convolution_backward(
            grad.float(), x, kernel, [count], ctx.stride, ctx.padding, [1, 1], False, [0, 0], count, wanted
        )
        kinds = zip(found, ctx.types, strict=True)
        return *(one.to(dtype) if one is not None else None for one, dtype in kinds), None, None


def _same(side: int, kernel: int, stride: int = 2) -> tuple[int, int]:
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2
