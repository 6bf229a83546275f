"""Household objects."""

from __future__ import annotations

import numpy as np

from idmetric.data.world.meshes import place
from idmetric.data.world.solids import Rng, Solid, arc, ball, block, lathe, piece, rounded, sweep, tube


def vase(rng: Rng) -> list[Solid]:
    """A vase or pot, open above, sometimes with two handles."""
    y = np.linspace(0, 1, 20)
    r = 0.25 + 0.12 * np.sin(y * np.pi * rng.uniform(0.6, 1.8) + rng.uniform(0, 2)) + rng.uniform(-0.08, 0.12) * y
    inner = r[::-1] * 0.9
    body = lathe(np.r_[r, inner], np.r_[y, y[::-1] * 0.98 + 0.01], rng.choice([1.0, 2.0]))
    parts = [piece("body", "main", body, max(1.0, 2 * float(r.max())), (0, 0.5, 0))]
    size, at = rng.uniform(0.12, 0.2), rng.uniform(0.5, 0.8)
    if rng.random() < 0.4:
        edge = float(np.interp(at, y, r))
        for sign in (1, -1):
            ring = arc((sign * edge, at, 0), size, -np.pi / 2 * 1.1, np.pi / 2 * 1.1)
            ring[:, 0] = sign * edge + sign * np.abs(ring[:, 0] - sign * edge)
            parts.append(Solid("handle", "second", sweep(ring, 0.03)))
    return parts


def cup(rng: Rng) -> list[Solid]:
    """A cup with a handle."""
    top, bottom, h = rng.uniform(0.35, 0.55), rng.uniform(0.25, 0.45), rng.uniform(0.6, 1.1)
    profile = [bottom, (top + bottom) / 2, top, top * 0.92, bottom * 0.9]
    body = lathe(profile, np.array([0, 0.5, 1, 1, 0.1]) * h)
    ring, thick, stretch = rng.uniform(0.18, 0.28), rng.uniform(0.03, 0.06), rng.uniform(0.8, 1.3)
    path = arc(((top + bottom) / 2 * 0.96, 0.0, 0.0), ring, -np.pi / 2 * 1.05, np.pi / 2 * 1.05, stretch)
    return [
        piece("body", "main", body, max(h, 2 * max(top, bottom))),
        Solid("handle", "second", sweep(path, thick)),
    ]


def teapot(rng: Rng) -> list[Solid]:
    """A teapot: belly, lid with a knob, spout and handle."""
    t = np.linspace(0.25, np.pi - 0.35, 16)
    r = np.sin(t) ** rng.uniform(0.6, 1.3) * 0.5
    y = -np.cos(t) * rng.uniform(0.35, 0.6)
    parts = [piece("body", "main", lathe(r, y, 2.0), max(float(np.ptp(y)), 2 * float(r.max())))]
    top, rim = float(np.ptp(y)) / 2, float(r[-1])
    flat, knob = rng.uniform(0.15, 0.35), rng.uniform(0.06, 0.12)
    parts.append(piece("lid", "second", ball(), (2.2 * rim, flat, 2.2 * rim), (0, top, 0)))
    parts.append(piece("lid", "second", ball(), knob * 2, (0, top + flat / 2 + knob * 0.6, 0)))
    reach, lift = rng.uniform(0.25, 0.4), rng.uniform(0.1, 0.4)
    spout = np.array([[0.4, -0.1, 0], [0.4 + reach * 0.6, 0, 0], [0.4 + reach, lift, 0]])
    parts.append(Solid("spout", "main", sweep(spout, [0.12, 0.08, 0.05], uv=(0, 0.4, 0.3, 0.6))))
    ring = arc((-0.42, 0.02, 0), rng.uniform(0.18, 0.26), np.pi / 2, 3 * np.pi / 2, 1.1)
    parts.append(Solid("handle", "second", sweep(ring, 0.035)))

    return parts


def pan(rng: Rng) -> list[Solid]:
    """A pan or ladle: a bowl with a long handle."""
    r, depth, length = rng.uniform(0.3, 0.5), rng.uniform(0.08, 0.4), rng.uniform(0.4, 0.9)
    bowl = lathe([r * 0.8, r, r * 0.95, r * 0.75], np.array([0, 1, 1, 0.15]) * depth)
    path = np.array([[r * 0.9, depth * 0.3, 0], [r + length / 2, depth * 0.5, 0], [r + length, depth * 0.6, 0]])
    return [
        piece("bowl", "main", bowl, max(2 * r, depth)),
        Solid("handle", "second", sweep(path, [0.03, 0.045, 0.05])),
    ]


def lamp(rng: Rng) -> list[Solid]:
    """A table lamp: foot, stem and shade."""
    foot, stem, h = rng.uniform(0.18, 0.32), rng.uniform(0.3, 0.7), rng.uniform(0.3, 0.5)
    bulge = rng.uniform(0.03, 0.16)
    y = np.linspace(0, stem, 12)
    column = lathe(0.025 + bulge * np.sin(y / stem * np.pi) ** 2, y)
    shade = tube(rng.uniform(0.15, 0.4), 0.5, 24)
    wide = rng.uniform(0.5, 0.8)
    return [
        piece("foot", "second", tube(0.4, 0.5, 24), (2 * foot, 0.06, 2 * foot), (0, 0, 0)),
        piece("stem", "second", column, max(stem, 2 * bulge + 0.05), (0, stem / 2, 0)),
        piece("shade", "main", shade, (wide, h, wide), (0, stem + h / 2 - 0.05, 0)),
    ]


def chair(rng: Rng) -> list[Solid]:
    """A chair or stool: legs, seat, and mostly a back."""
    w, d, high, thick = rng.uniform(0.45, 0.7), rng.uniform(0.45, 0.65), rng.uniform(0.3, 0.6), rng.uniform(0.05, 0.14)
    slim, splay = rng.uniform(0.03, 0.08), rng.uniform(0.0, 0.08)
    parts = [piece("seat", "main", block(w, thick, d), max(w, d, thick), (0, high, 0))]
    for x in (-1, 1):
        for z in (-1, 1):
            foot = np.array([x * (w / 2 - slim + splay), 0, z * (d / 2 - slim + splay)])
            top = np.array([x * (w / 2 - slim), high, z * (d / 2 - slim)])
            parts.append(Solid("legs", "second", sweep(np.stack([foot, (foot + top) / 2, top]), slim, 8)))
    rise, lean = rng.uniform(0.3, 0.7), rng.uniform(0.0, 0.12)
    if rng.random() < 0.8:
        back = place(block(w, rise, thick * 0.7), max(w, rise), (0, high + rise / 2 + thick / 2, -d / 2 - lean / 2))
        parts.append(Solid("back", "main" if rng.random() < 0.6 else "second", back))
    return parts


def soap(rng: Rng) -> list[Solid]:
    """Something between a box, a cylinder and a ball."""
    shape = rounded(*(float(x) for x in rng.uniform(0.2, 1.6, 2)))
    return [piece("body", "main", shape, rng.uniform(0.4, 1.0, 3))]


def compound(rng: Rng) -> list[Solid]:
    """Two to five simple solids stuck together."""
    count = rng.integers(2, 6)
    names = ("body", "second piece", "third piece", "fourth piece", "fifth piece")
    parts = []
    for k in range(count):
        kind = rng.integers(5)
        a, b = rng.uniform(0.2, 1.4, 2)
        mesh = (block(1, 1, 1), tube(), ball(), rounded(float(a), float(b)), tube(0.1, 0.5))[kind]
        slot = "main" if k == 0 or rng.random() < 0.5 else "second"
        parts.append(piece(names[k], slot, mesh, rng.uniform(0.3, 1.0, 3), rng.uniform(-0.4, 0.4, 3)))
    return parts
