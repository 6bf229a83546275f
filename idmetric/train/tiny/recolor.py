"""Twins that differ from an identity in color alone."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

# NTSC's luminance and two axes of color, in which hue is an angle
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]], np.float32)
_RGB = np.linalg.inv(_YIQ)
_CLEAR = 0.05  # mean change, of values from 0 to 1, that sets an identity apart


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
