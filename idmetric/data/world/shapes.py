"""Procedural meshes; a shape's proportions are part of an identity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from idmetric.data.world.meshes import Mesh, join, make_mesh

Array = NDArray[np.float64]
_Part = tuple[Mesh, tuple[float, float, float], tuple[float, float, float]]  # solid, size, place


def _grid(rows: int, columns: int) -> NDArray[np.int64]:
    """Two triangles for each cell of a grid of (rows + 1) x (columns + 1) vertices."""
    i = np.arange(rows)[:, None] * (columns + 1) + np.arange(columns)
    quad = np.stack([i, i + 1, i + columns + 2, i + columns + 1], -1).reshape(-1, 4)
    return np.concatenate([quad[:, [0, 1, 2]], quad[:, [0, 2, 3]]])


def box(rng: Generator) -> Mesh:
    """A package: front and back show the whole texture, the sides a strip of it."""
    w, h, d = rng.uniform(0.5, 1.0), rng.uniform(0.5, 1.3), rng.uniform(0.12, 0.7)
    return _box(w, h, d, 0.0)


def carton(rng: Generator) -> Mesh:
    """A milk carton: a box with a gable on top."""
    w, h, d = rng.uniform(0.4, 0.6), rng.uniform(0.8, 1.1), rng.uniform(0.4, 0.6)
    return _box(w, h, d, rng.uniform(0.15, 0.3))


def _box(w: float, h: float, d: float, gable: float) -> Mesh:
    x, y, z = w / 2, h / 2, d / 2
    strip = min(0.25, d / w / 2)
    sides: list[tuple[list[tuple[float, float, float]], tuple[float, float, float, float]]] = [
        ([(-x, -y, z), (x, -y, z), (x, y, z), (-x, y, z)], (0, 0, 1, 1)),
        ([(x, -y, -z), (-x, -y, -z), (-x, y, -z), (x, y, -z)], (0, 0, 1, 1)),
        ([(x, -y, z), (x, -y, -z), (x, y, -z), (x, y, z)], (1 - strip, 0, 1, 1)),
        ([(-x, -y, -z), (-x, -y, z), (-x, y, z), (-x, y, -z)], (0, 0, strip, 1)),
        ([(-x, -y, -z), (x, -y, -z), (x, -y, z), (-x, -y, z)], (0, 0, 1, 0.15)),
    ]
    top = y + gable
    if gable:
        sides += [
            ([(-x, y, z), (x, y, z), (x, top, 0), (-x, top, 0)], (0, 0.8, 1, 1)),
            ([(x, y, -z), (-x, y, -z), (-x, top, 0), (x, top, 0)], (0, 0.8, 1, 1)),
            ([(x, y, z), (x, y, -z), (x, top, 0), (x, top, 0)], (0.8, 0.8, 1, 1)),
            ([(-x, y, -z), (-x, y, z), (-x, top, 0), (-x, top, 0)], (0.8, 0.8, 1, 1)),
        ]
    else:
        sides.append(([(-x, y, z), (x, y, z), (x, y, -z), (-x, y, -z)], (0, 0.85, 1, 1)))
    vertices, uv = [], []
    for corners, (u0, v0, u1, v1) in sides:
        vertices += corners
        uv += [(u0, v0), (u1, v0), (u1, v1), (u0, v1)]
    base = np.arange(len(sides))[:, None] * 4
    faces = np.concatenate([base + np.array([0, 1, 2]), base + np.array([0, 2, 3])])
    return make_mesh(np.array(vertices), faces, np.array(uv))


def lathe(radius: Array, height: Array, repeat: float = 1.0, around: int = 28) -> Mesh:
    """A profile (radius at each height, bottom to top) turned about the vertical axis; closed at both ends."""
    r = np.r_[0, radius, 0]
    y = np.r_[height[0], height, height[-1]]
    angle = np.linspace(0, 2 * np.pi, around + 1)
    x, z = np.outer(r, np.sin(angle)), np.outer(r, np.cos(angle))
    vertices = np.stack([x, np.broadcast_to(y[:, None], x.shape), z], -1).reshape(-1, 3)
    v = (y - y.min()) / max(np.ptp(y), 1e-9)
    u = np.linspace(0, repeat, around + 1)
    uv = np.stack(np.broadcast_arrays(u[None], v[:, None]), -1).reshape(-1, 2)
    return make_mesh(vertices, _grid(len(r) - 1, around), uv)


def can(rng: Generator) -> Mesh:
    """A tin or jar: straight sides."""
    r, h = rng.uniform(0.25, 0.5), rng.uniform(0.5, 1.2)
    lip = rng.uniform(0.9, 1.0)
    return lathe(np.array([r * lip, r, r, r * lip]), np.array([0, 0.03, 0.97, 1.0]) * h, rng.choice([1.0, 2.0]))


def bottle(rng: Generator) -> Mesh:
    """A bottle, jar or vase of random profile."""
    y = np.linspace(0, 1, 16)
    shoulder, neck = rng.uniform(0.45, 0.8), rng.uniform(0.25, 0.6)
    drop = 1 / (1 + np.exp(-(y - shoulder) * rng.uniform(15, 40)))
    waist = 1 - rng.uniform(0, 0.25) * np.exp(-(((y - rng.uniform(0.2, 0.5)) / 0.15) ** 2))
    r = rng.uniform(0.16, 0.3) * waist * (1 - drop * (1 - neck))
    return lathe(r, y, rng.choice([1.0, 2.0]))


def fruit(rng: Generator) -> Mesh:
    """A round fruit: apple, pear, tomato, lemon, ... by its profile."""
    t = np.linspace(0.02, np.pi - 0.02, 18)
    r = np.sin(t) ** rng.uniform(0.7, 1.2) * (1 + rng.uniform(-0.3, 0.3) * np.cos(t))
    y = -np.cos(t) * rng.uniform(0.7, 1.6)
    y = y - rng.uniform(0, 0.35) * np.exp(-(((t - np.pi) / 0.4) ** 2))  # a dent at the stalk
    return lathe(r, y, rng.choice([1.0, 2.0]))


def superellipsoid(rng: Generator) -> Mesh:
    """Between a box, a cylinder and a ball."""
    e, n = rng.uniform(0.2, 1.6, 2)
    t, p = np.linspace(-np.pi / 2, np.pi / 2, 18), np.linspace(-np.pi, np.pi, 29)

    def power(x: Array, k: float) -> Array:
        return np.asarray(np.sign(x) * np.abs(x) ** k)

    c, s = power(np.cos(t), e)[:, None], power(np.sin(t), e)[:, None]
    x, y, z = c * power(np.sin(p), n), s * np.ones_like(p), c * power(np.cos(p), n)
    vertices = np.stack([x, y, z], -1).reshape(-1, 3) * rng.uniform(0.4, 1.0, 3)
    uv = np.stack(np.meshgrid((p / np.pi + 1) / 2, t / np.pi + 0.5), -1).reshape(-1, 2)
    return make_mesh(vertices, _grid(17, 28), uv)


def pouch(rng: Generator) -> Mesh:
    """A filled bag: two cushions sewn at the rim."""
    w, h, d = rng.uniform(0.6, 1.0), rng.uniform(0.8, 1.2), rng.uniform(0.1, 0.3)
    a = np.linspace(-1, 1, 13)
    x, y = np.meshgrid(a, a)
    bulge = ((1 - x**4) * (1 - y**4)) ** 0.5 * d
    uv = np.stack([(x + 1) / 2, (y + 1) / 2], -1).reshape(-1, 2)
    front = np.stack([x * w / 2, y * h / 2, bulge], -1).reshape(-1, 3)
    back = front * [-1, 1, -1]
    faces = _grid(12, 12)
    return make_mesh(np.concatenate([front, back]), np.concatenate([faces, faces + 169]), np.concatenate([uv, uv]))


def _ball(rng: Generator) -> Mesh:
    t = np.linspace(0.02, np.pi - 0.02, 10)
    return lathe(np.sin(t), -np.cos(t), 1.0, 16)


def _tube() -> Mesh:
    return lathe(np.array([0.5, 0.5]), np.array([0, 1.0]), 1.0, 14)


def cup(rng: Generator) -> Mesh:
    """A cup with a handle."""
    top, bottom, h = rng.uniform(0.35, 0.55), rng.uniform(0.25, 0.45), rng.uniform(0.6, 1.1)
    body = lathe(
        np.array([bottom, (top + bottom) / 2, top, top * 0.92, bottom * 0.9]), np.array([0, 0.5, 1, 1, 0.1]) * h
    )
    a, b = np.meshgrid(np.linspace(-2, 2, 13), np.linspace(0, 2 * np.pi, 9))
    ring, thick = rng.uniform(0.18, 0.28), rng.uniform(0.03, 0.06)
    x, y = (ring + thick * np.cos(b)) * np.cos(a), (ring + thick * np.cos(b)) * np.sin(a)
    vertices = np.stack([x, y, thick * np.sin(b)], -1).reshape(-1, 3)
    uv = np.stack([a / 4 + 0.5, b / 7], -1).reshape(-1, 2)
    handle = make_mesh(vertices, _grid(8, 12), uv)
    one = np.ones(3, np.float32)
    extent = float(np.ptp(vertices, axis=0).max())
    side = np.array([(top + bottom) / 2 / max(h, 2 * top), 0, 0], np.float32)
    return join([(body, one, 0 * one), (handle, one * extent / max(h, 2 * top), side)])


def animal(rng: Generator) -> Mesh:
    """Four legs, a body, a neck, a head, ears and a tail."""
    length, girth, leg = rng.uniform(0.8, 1.2), rng.uniform(0.3, 0.55), rng.uniform(0.3, 0.8)
    lift = leg + girth / 2
    parts: list[_Part] = [(_ball(rng), (length, girth, girth * rng.uniform(0.7, 1.0)), (0, lift, 0))]
    thin = rng.uniform(0.08, 0.16)
    for x in (-0.32, 0.32):
        for z in (-0.25, 0.25):
            parts.append((_tube(), (thin, leg * 1.2, thin), (x * length, leg * 0.55, z * girth)))
    head, reach, rise = rng.uniform(0.22, 0.36), rng.uniform(0.5, 0.65) * length, rng.uniform(0.1, 0.5)
    parts.append((_ball(rng), (girth * 0.7, rise + girth * 0.6, girth * 0.5), (reach * 0.85, lift + rise / 2, 0)))
    parts.append((_ball(rng), (head * rng.uniform(1, 1.8), head, head * 0.8), (reach + head / 3, lift + rise, 0)))
    ear = rng.uniform(0.08, 0.2)
    parts += [(_ball(rng), (0.06, ear, 0.08), (reach, lift + rise + head / 2, z)) for z in (-head / 3, head / 3)]
    parts.append((_ball(rng), (0.06, rng.uniform(0.2, 0.5), 0.06), (-length / 2, lift, 0)))
    return join([(m, np.array(s, np.float32), np.array(p, np.float32)) for m, s, p in parts])


def car(rng: Generator) -> Mesh:
    """A car: body, cabin and wheels."""
    length, width, low, high = (
        rng.uniform(1, 1.4),
        rng.uniform(0.4, 0.6),
        rng.uniform(0.18, 0.3),
        rng.uniform(0.15, 0.3),
    )
    smooth = superellipsoid(np.random.default_rng(int(rng.integers(1 << 30))))
    parts: list[_Part] = [
        (smooth, (length, low * 1.5, width), (0, low / 2 + 0.1, 0)),
        (
            superellipsoid(rng),
            (length * rng.uniform(0.4, 0.7), high * 1.6, width * 0.9),
            (rng.uniform(-0.2, 0.1), low + 0.15, 0),
        ),
    ]
    wheel, axle = rng.uniform(0.18, 0.28), rng.uniform(0.3, 0.36) * length
    parts += [
        (_ball(rng), (wheel, wheel, 0.1), (x, wheel / 2, z)) for x in (-axle, axle) for z in (-width / 2, width / 2)
    ]
    return join([(m, np.array(s, np.float32), np.array(p, np.float32)) for m, s, p in parts])


def garment(rng: Generator) -> Mesh:
    """A shirt, dress, trousers or shorts laid out flat with folds, front and back."""
    rows, columns = 40, 40
    y, x = np.meshgrid(np.linspace(-1, 1, rows + 1), np.linspace(-1, 1, columns + 1), indexing="ij")
    cy, cx = (y[:-1, :-1] + y[1:, 1:]) / 2, np.abs(x[:-1, :-1] + x[1:, 1:]) / 2
    kind = rng.integers(3)
    if kind == 0:  # shirt or jacket; cy grows upwards
        waist, sleeve, cuff = rng.uniform(0.4, 0.55), rng.uniform(0.0, 0.95), rng.uniform(0.12, 0.2)
        body = cx < waist + rng.uniform(-0.08, 0.1) * cy
        reach = waist + (0.98 - waist) * np.clip((0.95 - cy) / 0.9, 0, 1)
        arm = (cx < reach) & (cx > reach - 2.2 * cuff - 0.1) & (cy > 0.9 - (0.25 + 1.4 * sleeve)) & (cy < 0.95)
        neck = (cx < rng.uniform(0.12, 0.25)) & (cy > rng.uniform(0.75, 0.95))
        inside = (body | arm) & ~neck
    elif kind == 1:  # dress or top without sleeves
        flare, top = rng.uniform(0.1, 0.5), rng.uniform(0.25, 0.4)
        inside = (cx < top + flare * (0.5 - cy) / 1.5) & ~((cx < 0.2) & (cy > 0.75))
    else:  # trousers or shorts
        hip, leg, gap = rng.uniform(0.4, 0.55), rng.uniform(0.16, 0.3), rng.uniform(0.02, 0.12)
        length = rng.uniform(-1, 0.3)
        inside = (cx < hip) & (cy > 0.45) | (cx > gap) & (cx < gap + 2 * leg * 0.9) & (cy > length)
    fold = 0.03 * np.sin(x * rng.uniform(4, 12) + y * rng.uniform(-6, 6) + rng.uniform(0, 6))
    front = np.stack([x * 0.8, y, 0.05 + fold], -1).reshape(-1, 3)
    uv = np.stack([(x + 1) / 2, (y + 1) / 2], -1).reshape(-1, 2)
    kept = np.concatenate([inside.ravel(), inside.ravel()])
    faces = _grid(rows, columns)[kept]
    back = front * [1, 1, -1]
    both = np.concatenate([faces, faces[:, ::-1] + len(front)])
    # the back repeats the cloth without the print: the texture's left edge, widened
    uv_back = np.stack([uv[:, 0] * 0.2, uv[:, 1]], -1)
    return make_mesh(np.concatenate([front, back]), both, np.concatenate([uv, uv_back]))


def compound(rng: Generator) -> Mesh:
    """Two to five simple solids stuck together."""
    kinds = (box, can, fruit, superellipsoid, bottle)
    parts = []
    for _ in range(rng.integers(2, 6)):
        mesh = kinds[rng.integers(len(kinds))](rng)
        parts.append((mesh, rng.uniform(0.3, 1.0, 3).astype(np.float32), rng.uniform(-0.4, 0.4, 3).astype(np.float32)))
    return join(parts)


SHAPES: dict[str, Callable[[Generator], Mesh]] = {
    "box": box, "carton": carton, "can": can, "bottle": bottle, "pouch": pouch, "fruit": fruit, "cup": cup,
    "superellipsoid": superellipsoid, "animal": animal, "car": car, "garment": garment, "compound": compound,
}  # fmt: skip
