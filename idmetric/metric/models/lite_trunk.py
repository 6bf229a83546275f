"""EfficientNet-Lite for saved weights: timm's `tf_efficientnet_lite0` and `2` without timm, with folded BatchNorm.

Most of the time of a first score of "tiny" would go into importing timm, torchvision and, through them, torch's
compiler. This module has timm's names of tensors, in timm's order, and the part of timm's interface that
`idmetric.metric.models.tokens` reads; tests hold it to timm's outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

# timm's name -> factors of blocks and channels
SCALES = {"tf_efficientnet_lite0": (1.0, 1.0), "tf_efficientnet_lite2": (1.2, 1.1)}

FOLDED = "_folded"  # behind a name: see `LiteTrunk`

# (blocks, kernel, stride of the first, expansion, channels) of each stage (Tan and Le 2019, Table 1; Lite: the same
# without squeeze-and-excitation, ReLU6 in place of SiLU, and stem, head and the depth of the outer stages not scaled)
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
           (1, 3, 1, 6, 320))  # fmt: skip
_STEM, _HEAD = 32, 1280
_ENDS = (0, 1, 2, 4, 6)  # stages before the next halving of the map: timm's `feature_info`


class LiteTrunk(nn.Module):
    """Pixels (B, 3, H, W), normalized, to a feature map (B, 1280, H/32, W/32); without classifier.

    Args:
        name: a key of `SCALES`, or one with `FOLDED` behind it, of which the convolutions have the BatchNorms in
            themselves (`fold`).
    """

    num_features = _HEAD
    num_prefix_tokens = 0

    def __init__(self, name: str = "tf_efficientnet_lite0") -> None:
        super().__init__()
        depth, width = SCALES[name.removesuffix(FOLDED)]
        plain = name.endswith(FOLDED)
        self.conv_stem, self.bn1 = _normed_conv(3, _STEM, 3, plain, stride=2)
        before, stages, sizes = _STEM, [], []
        for count, kernel, stride, expansion, base in _STAGES:
            blocks, channels = [], int(base * width + 4) // 8 * 8  # the nearest multiple of 8
            sizes.append(channels)
            for k in range(math.ceil(count * depth) if count > 1 else 1):
                blocks.append(_Block(before, channels, kernel, stride if k == 0 else 1, expansion, plain))
                before = channels
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head, self.bn2 = _normed_conv(before, _HEAD, 1, plain)
        self.feature_info = [{"num_chs": sizes[end], "module": f"blocks.{end}"} for end in _ENDS]
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

    def __init__(self, before: int, channels: int, kernel: int, stride: int, expansion: int, plain: bool) -> None:
        super().__init__()
        self.expands, self.adds = expansion > 1, stride == 1 and before == channels
        inner = before * expansion
        if self.expands:
            self.conv_pw, self.bn1 = _normed_conv(before, inner, 1, plain)
            self.conv_dw, self.bn2 = _normed_conv(inner, inner, kernel, plain, stride, groups=inner)
            self.conv_pwl, self.bn3 = _normed_conv(inner, channels, 1, plain)
        else:
            self.conv_dw, self.bn1 = _normed_conv(inner, inner, kernel, plain, stride, groups=inner)
            self.conv_pw, self.bn2 = _normed_conv(inner, channels, 1, plain)

    def forward(self, x: Tensor) -> Tensor:
        if self.expands:
            y = _normed(self.conv_pw, self.bn1, x, act=True)
            y = _normed(self.conv_dw, self.bn2, y, act=True)
            y = _normed(self.conv_pwl, self.bn3, y, act=False)
        else:
            y = _normed(self.conv_dw, self.bn1, x, act=True)
            y = _normed(self.conv_pw, self.bn2, y, act=False)
        return x + y if self.adds else y


def _normed_conv(
    before: int, after: int, kernel: int, plain: bool, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.Module]:
    """A convolution and its BatchNorm; `plain`: with a bias, and nothing behind it."""
    # TensorFlow's "same" padding depends on the input where the stride is 2: `_normed` pads there
    padding = kernel // 2 if stride == 1 else 0
    conv = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=plain)
    return conv, nn.Identity() if plain else nn.BatchNorm2d(after, eps=1e-3)


def _normed(conv: nn.Conv2d, norm: nn.Module, x: Tensor, *, act: bool) -> Tensor:
    """ReLU6 (with `act`) of the normalized convolution.

    With stored statistics, BatchNorm is a scale and a shift of channels; scaling the kernel instead saves a pass over
    the map. A module in the convolution's place, such as an adapter, is called as it is.
    """
    stored = isinstance(norm, nn.Identity) or not norm.training
    if type(conv) is nn.Conv2d and stored:
        kernel, shift = folded(conv, norm)
        padding, first = conv.padding, (0, 0)
        if conv.stride[0] == 2:
            (above, up), (left, on) = (_symmetric(side, conv.kernel_size[0]) for side in x.shape[-2:])
            padding, first = (above, left), (up, on)
        if conv.groups > 1 and _in_bfloat16(x) and torch.is_grad_enabled():
            x = _Depthwise.apply(x, kernel, shift, conv.stride, padding)
        else:
            x = F.conv2d(x, kernel, shift, conv.stride, padding, groups=conv.groups)
        x = x[:, :, first[0] :, first[1] :]
    else:
        if conv.stride[0] == 2:
            x = F.pad(x, _same(x.shape[-1], conv.kernel_size[0]) + _same(x.shape[-2], conv.kernel_size[0]))
        x = norm(conv(x))
    return F.relu6(x, inplace=True) if act else x


def folded(conv: nn.Conv2d, norm: Any) -> tuple[Tensor, Tensor | None]:
    """Kernel and bias of a convolution that has the BatchNorm behind it, by its stored statistics, in itself."""
    if isinstance(norm, nn.Identity):
        return conv.weight, conv.bias
    exact = torch.promote_types(conv.weight.dtype, torch.float32)
    scale = norm.weight.to(exact) * (norm.running_var.to(exact) + norm.eps).rsqrt()
    shift = norm.bias.to(exact) - norm.running_mean.to(exact) * scale
    kernel = (conv.weight.to(exact) * scale.view(-1, 1, 1, 1)).to(conv.weight.dtype)
    return kernel, shift.to(kernel.dtype)


def fold(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of `LiteTrunk(name + FOLDED)`, float32, that computes what `LiteTrunk(name)` does with `state`."""
    trunk = LiteTrunk(name)
    trunk.load_state_dict({key: value.float() for key, value in state.items()})
    found: dict[str, Tensor] = {}
    for path, part in trunk.named_modules():
        for (child, conv), (_, norm) in pairwise(part.named_children()):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                kernel, shift = folded(conv, norm)
                assert shift is not None
                place = f"{path}.{child}".lstrip(".")
                found |= {f"{place}.weight": kernel.detach(), f"{place}.bias": shift.detach()}
    return found


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


def _symmetric(side: int, kernel: int) -> tuple[int, int]:
    """`_same` as padding of both ends, which takes no copy of the map, and how many first outputs are too many."""
    before, after = _same(side, kernel)
    return (before, 0) if before == after else (before + 2, 1)
