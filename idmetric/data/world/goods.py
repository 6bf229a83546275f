"""Goods of a shop: packages, tins, bottles, fruit."""

from __future__ import annotations

import numpy as np

from idmetric.data.world.meshes import place
from idmetric.data.world.solids import Rng, Solid, block, cushion, lathe, piece, sweep, tube


def box(rng: Rng) -> list[Solid]:
    """A package."""
    return [Solid("body", "main", block(rng.uniform(0.5, 1.0), rng.uniform(0.5, 1.3), rng.uniform(0.12, 0.7)))]


def carton(rng: Rng) -> list[Solid]:
    """A milk carton, with or without a screw cap."""
    w, h, d, gable = rng.uniform(0.4, 0.6), rng.uniform(0.8, 1.1), rng.uniform(0.4, 0.6), rng.uniform(0.15, 0.3)
    parts = [piece("body", "main", block(w, h, d, gable), max(w, h + gable, d))]
    if rng.random() < 0.5:
        size = rng.uniform(0.12, 0.2)
        parts.append(
            piece("cap", "second", tube(), (size, size * 0.5, size), (0, (h + gable) / 2 - gable * 0.3, d * 0.3))
        )
    return parts


def book(rng: Rng) -> list[Solid]:
    """A book: covers and pages."""
    w, h, d = rng.uniform(0.6, 0.8), rng.uniform(0.8, 1.0), rng.uniform(0.06, 0.25)
    pages = place(block(w * 0.97, h * 0.97, d * 0.9), h * 0.97, (0.02, 0, 0))
    cover = block(w, h, 0.02)
    front, back = (place(cover, h, (0, 0, z)) for z in (d / 2, -d / 2))
    spine = place(block(0.03, h, d), max(h, d), (-w / 2, 0, 0))
    return [
        Solid("cover", "main", front),
        Solid("cover", "main", back),
        Solid("cover", "main", spine),
        Solid("pages", "pale", pages),
    ]


def can(rng: Rng) -> list[Solid]:
    """A tin: straight sides, metal ends."""
    r, h = rng.uniform(0.25, 0.5), rng.uniform(0.5, 1.2)
    body = lathe([r, r], [0, h], rng.choice([1.0, 2.0]))
    rim = lathe([r * 0.94, r * 1.02, r * 1.02, r * 0.94], np.array([0, 0.1, 0.9, 1.0]) * 0.06, 1.0)
    extent = max(h, 2 * r)
    ends = [place(rim, 2 * r * 1.02, (0, y, 0)) for y in (h / 2, -h / 2)]
    return [piece("body", "main", body, extent), *(Solid("rim", "metal", e) for e in ends)]


def bottle(rng: Rng) -> list[Solid]:
    """A bottle or jar of random profile, with a cap."""
    y = np.linspace(0, 1, 18)
    shoulder, neck = rng.uniform(0.45, 0.85), rng.uniform(0.25, 0.75)
    drop = 1 / (1 + np.exp(-(y - shoulder) * rng.uniform(15, 40)))
    waist = 1 - rng.uniform(0, 0.25) * np.exp(-(((y - rng.uniform(0.2, 0.5)) / 0.15) ** 2))
    r = rng.uniform(0.16, 0.34) * waist * (1 - drop * (1 - neck))
    parts = [piece("body", "main", lathe(r, y, rng.choice([1.0, 2.0])), 1.0, (0, 0.5, 0))]
    high, wide = rng.uniform(0.05, 0.16), 2 * float(np.atleast_1d(r)[-1]) * rng.uniform(1.0, 1.25)
    if rng.random() < 0.75:
        parts.append(piece("cap", "second", tube(), (wide, high, wide), (0, 1 + high / 2 - 0.02, 0)))
    return parts


def pouch(rng: Rng) -> list[Solid]:
    """A filled bag."""
    return [Solid("body", "main", cushion(rng.uniform(0.6, 1.0), rng.uniform(0.8, 1.2), rng.uniform(0.1, 0.3)))]


def fruit(rng: Rng) -> list[Solid]:
    """A round fruit by its profile, with a stalk and perhaps a leaf."""
    t = np.linspace(0.02, np.pi - 0.02, 20)
    r = np.sin(t) ** rng.uniform(0.7, 1.2) * (1 + rng.uniform(-0.3, 0.3) * np.cos(t))
    y = -np.cos(t) * rng.uniform(0.7, 1.6)
    y = y - rng.uniform(0, 0.35) * np.exp(-(((t - np.pi) / 0.4) ** 2))  # a dent at the stalk
    extent = max(float(np.ptp(y)), 2 * float(r.max()))
    parts = [piece("body", "main", lathe(r, y, rng.choice([1.0, 2.0])), extent)]
    top, lean = float(np.ptp(y)) / 2 - 0.1, rng.uniform(-0.15, 0.15)
    stalk, leaf = rng.uniform(0.15, 0.4), rng.uniform(0.3, 0.6)

    if rng.random() < 0.7:
        path = np.array([[0, top - 0.15, 0], [lean / 2, top + stalk / 2, 0], [lean, top + stalk, 0]])
        parts.append(Solid("stalk", "dark", sweep(path, 0.035)))
        if rng.random() < 0.5:
            parts.append(piece("leaf", "green", cushion(1.0, 0.45, 0.05, 2), leaf, (leaf / 2, top + stalk / 2, 0)))

    return parts


def bananas(rng: Rng) -> list[Solid]:
    """A bent fruit or vegetable."""
    bend, thick = rng.uniform(0.3, 1.4), rng.uniform(0.1, 0.22)
    a = np.linspace(-bend, bend, 17)
    path = np.stack([np.sin(a) / bend, 1 - np.cos(a), 0 * a], 1)
    r = thick * (1 - np.abs(np.linspace(-1, 1, 17)) ** rng.uniform(2, 6)) ** 0.6 + 0.015
    return [
        Solid("body", "main", sweep(path, r, 14)),
        Solid("tip", "dark", sweep(path[-2:] + (path[-1] - path[-2]) * 0.8, 0.03)),
    ]
