"""EfficientNet-Lite without timm and without BatchNorm, the two backbones of "tiny".

Importing timm, torchvision and, through them, torch's compiler would take most of the time of a first score. The
BatchNorms are folded into the convolutions, which have timm's names; tests hold the outputs to timm's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
_STAGE_OF_MAP = (0, 1, 2, 4, 6)  # the last stage before each halving of the map, as in timm's `feature_info`


class LiteTrunk(nn.Module):
    """Normalized pixels (B, 3, H, W) to global features (B, 1280); weights are random until they are loaded.

    Args:
        name: a key of `SCALES`.
    """

    num_features = 1280

    def __init__(self, name: str) -> None:
        super().__init__()
        depth, width = SCALES[name]
        channels = 32
        self.conv_stem = _SameConv2d(3, channels, 3, stride=2)
        self.blocks = nn.Sequential()
        stage_channels = []
        for count, kernel_size, stride, expansion, base_channels in _STAGES:
            in_channels = channels
            channels = int(base_channels * width + 4) // 8 * 8  # the nearest multiple of 8
            if count > 1:
                count = math.ceil(count * depth)
            block = _Block(in_channels, channels, kernel_size, stride, expansion)
            stage = nn.Sequential(block)
            for _ in range(count - 1):
                stage.append(_Block(channels, channels, kernel_size, 1, expansion))
            self.blocks.append(stage)
            stage_channels.append(channels)
        self.conv_head = _SameConv2d(channels, self.num_features, 1)
        self.map_channels = [stage_channels[stage] for stage in _STAGE_OF_MAP]
        self._is_checkpointed = False

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute stages again in the backward pass instead of keeping their activations."""
        self._is_checkpointed = enable

    def forward(self, x: Tensor) -> Tensor:
        """Global features: the mean of the last feature map."""
        return self.forward_features(x)[0]

    def forward_features(self, x: Tensor, maps: Sequence[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """Global features (B, 1280), and feature maps (B, C, h, w), the finest first.

        Args:
            maps: numbers of the maps to return, ascending; 0 has a side of H / 2, 4 one of H / 32.
        """
        if x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)  # convolutions are faster so
        stages = [_STAGE_OF_MAP[number] for number in maps]
        outputs = []
        x = F.relu6(self.conv_stem(x), inplace=True)
        for number, blocks in enumerate(self.blocks):
            if self._is_checkpointed and torch.is_grad_enabled():
                x = checkpoint(blocks, x, use_reentrant=False)
            else:
                x = blocks(x)
            if number in stages:
                outputs.append(x)
        x = F.relu6(self.conv_head(x), inplace=True)
        return x.mean((2, 3)), outputs


def joined_tokens(maps: Sequence[Tensor]) -> tuple[Tensor, tuple[int, int]]:
    """Patch tokens (B, P, D) from feature maps (B, C, h, w), with D the sum of their channels, and the patch grid.

    Deep maps know what an object is, earlier ones are finer. The maps are resized to the first one's grid, and the
    centered, unit-length vectors of each place are joined.
    """
    rows, columns = maps[0].shape[-2:]
    grid = (rows, columns)
    tokens = []
    for feature_map in maps:
        resized = F.interpolate(feature_map, grid, mode="bilinear", align_corners=False)
        vectors = resized.flatten(2).mT
        centered = vectors - vectors.mean(-1, keepdim=True)
        tokens.append(F.normalize(centered, dim=-1))
    return torch.cat(tokens, -1), grid


class _Block(nn.Module):
    """Expansion, depthwise convolution, projection; the input is added where shapes allow.

    The first stage does not expand; there, timm calls the projection conv_pw.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner_channels = in_channels * expansion
        self.expands = expansion > 1
        self.has_skip = stride == 1 and in_channels == out_channels
        self.conv_dw = _SameConv2d(
            inner_channels,
            inner_channels,
            kernel_size,
            stride,
            groups=inner_channels,
        )
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
        project = self.conv_pwl if self.expands else self.conv_pw
        y = project(y)
        return x + y if self.has_skip else y


class _SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding, for odd kernels and strides 1 and 2.

    At stride 2, sides of even length need one row or column less before the image than after it. Padding both ends
    alike and dropping the first output gives the same result without a copy of the map.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, kernel_size // 2, groups=groups)

    def reset_parameters(self) -> None:
        """Random weights as large as those that timm draws."""
        weight = self.weight
        if weight.is_meta:  # they are loaded
            return
        if self.groups == 1:
            nn.init.kaiming_uniform_(weight, mode="fan_out", nonlinearity="relu")
        else:
            nn.init.kaiming_uniform_(weight, mode="fan_in", nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == (1, 1):
            return super().forward(x)
        height, width = x.shape[-2:]
        extra_rows = 1 - height % 2
        extra_columns = 1 - width % 2
        half = self.kernel_size[0] // 2
        padding = (half + extra_rows, half + extra_columns)
        y = F.conv2d(
            x,
            self.weight,
            self.bias,
            self.stride,
            padding,
            groups=self.groups,
        )
        return y[:, :, extra_rows:, extra_columns:]
