"""Twins that differ from an identity in color alone."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

# NTSC's luminance and two axes of color, in which hue is an angle
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]], np.float32)
_RGB = np.linalg.inv(_YIQ)


def recolor(images: NDArray[np.uint8], rng: Generator) -> NDArray[np.uint8]:
    """Show all images (..., 3) in other colors, by one change for all.

    The hue turns by 0.25 radians or more, or, in 3 of 10 cases, the image gets a tint and a clearly other brightness,
    which also changes gray objects. The changes are larger than those of `augment`, which keep an identity.
    """
    turns = rng.random() < 0.7
    angle = rng.uniform(0.25, np.pi) * rng.choice([-1, 1]) if turns else 0.0
    saturation = rng.uniform(0.6, 1.6)
    darker = not turns or rng.random() < 0.5
    gamma = np.exp(rng.choice([-1, 1]) * rng.uniform(0.1, 0.5)) if darker else 1.0
    tint = np.ones(3) if turns else np.exp(rng.uniform(-0.25, 0.25, 3))

    cos, sin = saturation * np.cos(angle), saturation * np.sin(angle)
    turn = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])
    change = (_RGB @ turn @ _YIQ).astype(np.float32)
    found = (images.astype(np.float32) / 255 @ change.T).clip(0, 1) ** np.float32(gamma) * tint.astype(np.float32)
    recolored: NDArray[np.uint8] = (found.clip(0, 1) * 255).round().astype(np.uint8)
    return recolored
