"""Bags, shoes and hats."""

from __future__ import annotations

import numpy as np

from idmetric.data.world.meshes import place
from idmetric.data.world.solids import Rng, Solid, arc, block, lathe, piece, rounded, sweep, tube


def bag(rng: Rng) -> list[Solid]:
    """A handbag or backpack: body, flap and straps."""
    w, h, d = rng.uniform(0.6, 1.0), rng.uniform(0.5, 0.9), rng.uniform(0.15, 0.4)
    body = place(rounded(0.35, 0.4), (w, h, d))
    flap = rng.uniform(0.25, 0.6) * h
    parts = [
        Solid("body", "main", body),
        piece("flap", "second", rounded(0.3, 0.3), (w * 1.02, flap, d * 0.5), (0, h / 2 - flap / 2, d * 0.3)),
    ]
    wide, rise = rng.uniform(0.15, 0.35) * w, rng.uniform(0.2, 0.6)
    path = arc((0, h / 2 - 0.02, 0), wide, 0, np.pi, rise / wide)
    parts.append(Solid("strap", "second", sweep(path, 0.025)))
    size = rng.uniform(0.05, 0.1)
    parts.append(piece("buckle", "metal", rounded(0.3, 0.3), (size, size, 0.04), (0, h / 2 - flap, d * 0.55)))
    return parts


def shoe(rng: Rng) -> list[Solid]:
    """A shoe or boot: sole, upper, toe and laces."""
    length, wide, tall = 1.0, rng.uniform(0.3, 0.42), rng.uniform(0.3, 0.75)
    sole, heel = rng.uniform(0.05, 0.12), rng.uniform(0.0, 0.12)
    parts = [
        piece("sole", "second", rounded(0.3, 0.6), (length, sole * 1.6, wide), (0, sole / 2, 0)),
        piece("toe", "main", rounded(0.8, 0.8), (length * 0.62, 0.32, wide * 0.95), (length * 0.18, sole + 0.06, 0)),
        piece(
            "upper",
            "main",
            rounded(0.5, 0.8),
            (length * 0.5, tall, wide * 0.8),
            (-length * 0.22, sole + tall * 0.42, 0),
        ),
        piece(
            "opening",
            "dark",
            rounded(0.3, 0.9),
            (length * 0.34, 0.06, wide * 0.6),
            (-length * 0.22, sole + tall * 0.9, 0),
        ),
    ]

    if heel > 0.05:
        parts.append(piece("heel", "second", block(1, 1, 1), (0.25, heel * 2, wide * 0.8), (-length * 0.34, -heel, 0)))

    for k in range(3):
        x = -length * 0.02 + k * 0.09
        parts.append(
            piece(
                "laces",
                "pale",
                tube(),
                (0.03, wide * 0.5, 0.03),
                (x, sole + 0.27 - k * 0.03, 0),
                np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]], np.float32),
            )
        )

    return parts


def hat(rng: Rng) -> list[Solid]:
    """A hat or cap: crown, band and brim or peak."""
    r, h = rng.uniform(0.28, 0.36), rng.uniform(0.2, 0.5)
    dome = rng.uniform(0.3, 1.0)
    y = np.linspace(0, 1, 12)
    crown = lathe(r * (1 - y**3 * dome * 0.95), y * h, 2.0)
    parts = [
        piece("crown", "main", crown, max(h, 2 * r), (0, h / 2, 0)),
        piece("band", "accent", tube(around=28), (2.05 * r, 0.06, 2.05 * r), (0, 0.05, 0)),
    ]
    wide, peak = rng.uniform(1.4, 2.2), rng.uniform(0.3, 0.6)

    if rng.random() < 0.6:
        parts.append(piece("brim", "main", tube(0.49, 0.5, 28), (2 * r * wide, 0.03, 2 * r * wide), (0, 0, 0)))
    else:
        parts.append(piece("peak", "second", rounded(0.2, 0.9), (r * 1.7, 0.04, peak + r), (0, 0.02, r * 0.8)))

    return parts
