"""Scenes with known answers: panels that show painted badges, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from idmetric.data.painter import Badge, draw, random_badge, random_context

SIDE = 112
ANN, REX, STRANGER = (random_badge(np.random.default_rng(seed)) for seed in (1, 2, 3))


def panel(badge: Badge, seed: int, side: int = SIDE) -> Image.Image:
    """A badge in a random context."""
    picture, _, _ = draw(badge, random_context(np.random.default_rng(seed)), side)
    return picture


def references(badge: Badge, count: int = 6) -> list[Image.Image]:
    return [panel(badge, 100 + number) for number in range(count)]


def scene(badges: Sequence[Badge | None], seed: int = 0) -> tuple[Image.Image, list[tuple[int, int, int, int]]]:
    """Panels in a row, gray where there is no badge, and the boxes of those with one."""
    picture = Image.new("RGB", (SIDE * len(badges), SIDE), (128, 128, 128))
    boxes = []
    for number, badge in enumerate(badges):
        if badge is not None:
            left = SIDE * number
            picture.paste(panel(badge, 1000 * seed + number), (left, 0))
            boxes.append((left, 0, left + SIDE, SIDE))
    return picture, boxes
