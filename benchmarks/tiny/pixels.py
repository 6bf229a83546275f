"""Random changes of images: augmentations, which keep the identity, and other colors, which change it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

# NTSC's luminance and two axes of color, in which hue is an angle
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]], np.float32)
_RGB = np.linalg.inv(_YIQ)
_CLEAR = 0.05  # mean change, of values from 0 to 1, that sets an identity apart


def mirror(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Mirror left and right in a share of the groups, all images of a group or none: they then show other identities.

    Args:
        images: (B, 2, V, H, W, 3).
    """
    chosen = torch.rand(len(images), generator=generator) < share
    return torch.where(chosen.to(images.device).view(-1, 1, 1, 1, 1, 1), images.flip(4), images)


def augment(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Random crop, small rotation, color change, blur, noise and occlusion of each image on its own.

    Args:
        images: (B, 3, H, W) in [0, 1]. Color changes stay mild: color is part of an identity.

    Returns:
        (B, 3, size, size) in [0, 1].
    """
    count = len(images)

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator).to(images.device) * (high - low) + low

    zoom, angle = draw(0.6, 1.0), draw(-0.2, 0.2)
    shift = draw(-1, 1, 2) * (1 - zoom)[:, None]
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    theta = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    grid = F.affine_grid(theta, [count, 3, size, size], align_corners=False)
    x = F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    x *= draw(0.87, 1.13, 1, 1, 1) * draw(0.96, 1.04, 3, 1, 1)
    mean = x.mean((2, 3), keepdim=True)
    x.sub_(mean).mul_(draw(0.87, 1.13, 1, 1, 1)).add_(mean)
    x = torch.lerp(x.mean(1, keepdim=True), x, draw(0.85, 1.15, 1, 1, 1))
    soft = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    x.lerp_(soft, draw(-0.5, 1.0, 1, 1, 1).clamp_min(0))
    x += torch.randn(x.shape, generator=generator).to(x.device) * draw(0, 0.04, 1, 1, 1)
    # an occluding rectangle of flat color on a third of the images
    rows = torch.arange(size, device=x.device).view(1, 1, -1, 1) / size
    columns = rows.transpose(2, 3)
    top, left = draw(0, 1, 1, 1, 1), draw(0, 1, 1, 1, 1)
    inside = (rows > top) & (rows < top + draw(0.1, 0.4, 1, 1, 1)) & (columns > left)
    inside &= (columns < left + draw(0.1, 0.4, 1, 1, 1)) & (draw(0, 1, 1, 1, 1) < 0.33)
    return torch.where(inside, draw(0, 1, 3, 1, 1), x).clamp_(0, 1)


def recolor(images: NDArray[np.uint8], rng: Generator) -> NDArray[np.uint8]:
    """Show all images (..., 3) in other colors, by one change for all.

    The hue turns by 0.25 radians or more. In half of the cases, and where a turn changes little, as in gray images,
    brightness and tint change too. The changes are larger than those of `augment`, which keep an identity.
    """
    angle = rng.uniform(0.25, np.pi) * rng.choice([-1, 1])
    saturation = rng.uniform(0.6, 1.6)
    cos, sin = saturation * np.cos(angle), saturation * np.sin(angle)
    turn = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])
    gamma = np.exp(rng.choice([-1, 1]) * rng.uniform(0.15, 0.5))
    tint = np.exp(rng.uniform(-0.25, 0.25, 3))

    given = images.astype(np.float32) / 255
    found = (given @ (_RGB @ turn @ _YIQ).T.astype(np.float32)).clip(0, 1)
    if rng.random() < 0.5 or np.abs(found - given).mean() < _CLEAR:
        found = (found ** np.float32(gamma) * tint.astype(np.float32)).clip(0, 1)
    recolored: NDArray[np.uint8] = (found * 255).round().astype(np.uint8)
    return recolored
