"""EfficientNet-Lite without timm and without BatchNorm, for the weights of "tiny".

Importing timm, torchvision and, through them, torch's compiler would take most of the time of a first score. In
`LiteTrunk` the BatchNorms are folded into the convolutions. It has timm's names of convolutions, and the part of timm's
interface that `idmetric.metric.backbone` reads; tests hold it to timm's outputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.checkpoint import checkpoint

FOLDED = "_folded"  # after timm's name of a model: its BatchNorms are folded into the convolutions

# name -> factors of the number of blocks, and of channels
SCALES = {"tf_efficientnet_lite0_folded": (1.0, 1.0), "tf_efficientnet_lite2_folded": (1.2, 1.1)}

# blocks, kernel size, stride of the first block, expansion, channels (Tan and Le 2019, Table 1; Lite: the same without
# squeeze-and-excitation, ReLU6 in place of SiLU, and stem, head and the depth of the outer stages not scaled)
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM_CHANNELS = 32
_HEAD_CHANNELS = 1280
_FEATURE_STAGES = (0, 1, 2, 4, 6)  # stages before the next halving of the map: timm's `feature_info`


class LiteTrunk(nn.Module):
    """Normalized pixels (B, 3, H, W) to a feature map (B, 1280, H/32, W/32); without classifier.

    Args:
        name: a key of `SCALES`.
    """

    num_features = _HEAD_CHANNELS

    def __init__(self, name: str) -> None:
        super().__init__()
        depth, width = SCALES[name]
        self.conv_stem = _SameConv2d(3, _STEM_CHANNELS, 3, stride=2)
        stages = []
        stage_channels = []
        in_channels = _STEM_CHANNELS
        for count, kernel_size, stride, expansion, base_channels in _STAGES:
            channels = int(base_channels * width + 4) // 8 * 8  # the nearest multiple of 8
            blocks = [_Block(in_channels, channels, kernel_size, stride, expansion)]
            if count > 1:
                for _ in range(math.ceil(count * depth) - 1):
                    blocks.append(_Block(channels, channels, kernel_size, 1, expansion))
            stages.append(nn.Sequential(*blocks))
            stage_channels.append(channels)
            in_channels = channels
        self.blocks = nn.Sequential(*stages)
        self.conv_head = _SameConv2d(in_channels, _HEAD_CHANNELS, 1)
        self.feature_info = [{"num_chs": stage_channels[stage]} for stage in _FEATURE_STAGES]
        self._checkpointed = False

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute stages again in the backward pass instead of keeping their activations."""
        self._checkpointed = enable

    def forward_intermediates(self, x: Tensor, indices: Sequence[int], **_options: Any) -> tuple[Tensor, list[Tensor]]:
        """The final feature map, and those of the entries `indices` of `feature_info`, as timm's method of that name.

        Options of timm's method have no effect: only their defaults exist.
        """
        wanted_stages = [_FEATURE_STAGES[index] for index in indices]
        maps = []
        x = F.relu6(self.conv_stem(x), inplace=True)
        for stage, blocks in enumerate(self.blocks):
            if self._checkpointed and torch.is_grad_enabled():
                x = checkpoint(blocks, x, use_reentrant=False)
            else:
                x = blocks(x)
            if stage in wanted_stages:
                maps.append(x)
        return F.relu6(self.conv_head(x), inplace=True), maps

    def forward_features(self, x: Tensor) -> Tensor:
        """The final feature map."""
        return self.forward_intermediates(x, ())[0]

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """The mean over positions, (B, 1280)."""
        return features.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Global features (B, 1280)."""
        return self.forward_head(self.forward_features(x))


class _Block(nn.Module):
    """Expansion, depthwise convolution, projection; the input is added where shapes allow.

    The first stage does not expand; there, timm calls the projection conv_pw.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner_channels = in_channels * expansion
        self.expands = expansion > 1
        self.has_skip = stride == 1 and in_channels == out_channels
        self.conv_dw = _SameConv2d(inner_channels, inner_channels, kernel_size, stride, groups=inner_channels)
        if self.expands:
            self.conv_pw = _SameConv2d(in_channels, inner_channels, 1)
            self.conv_pwl = _SameConv2d(inner_channels, out_channels, 1)
        else:
            self.conv_pw = _SameConv2d(inner_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x
        if self.expands:
            y = F.relu6(self.conv_pw(y), inplace=True)
        y = F.relu6(self.conv_dw(y), inplace=True)
        y = self.conv_pwl(y) if self.expands else self.conv_pw(y)
        if self.has_skip:
            y = x + y
        return y


class _SameConv2d(nn.Conv2d):
    """A convolution with a bias and TensorFlow's "same" padding, for odd kernels and strides 1 and 2.

    At stride 2, sides of even length need one row or column less before the image than after it. Padding both ends
    alike and dropping the first output gives the same result without a copy of the map.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, kernel_size // 2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == (1, 1):
            return super().forward(x)
        height, width = x.shape[-2:]
        extra_rows = 1 - height % 2
        extra_columns = 1 - width % 2
        half = self.kernel_size[0] // 2
        padding = (half + extra_rows, half + extra_columns)
        y = F.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return y[:, :, extra_rows:, extra_columns:]


def fold(model: nn.Module) -> dict[str, Tensor]:
    """The tensors, float32, of the `LiteTrunk` that computes what timm's `tf_efficientnet_lite0` or `2` does."""
    model = copy.deepcopy(model).float().eval()
    state: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        for (name, conv), (_, norm) in pairwise(module.named_children()):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                folded = fuse_conv_bn_eval(conv, norm)
                prefix = f"{path}.{name}".lstrip(".")
                for key, value in folded.state_dict().items():
                    state[f"{prefix}.{key}"] = value
    return state
