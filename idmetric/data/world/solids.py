"""Solids that shapes are assembled from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.data.world.meshes import Floats, Mesh, make_mesh, place

Array = NDArray[np.float64]
Rng = Any  # numpy.random.Generator or idmetric.data.world.dice.Blend


class Solid(NamedTuple):
    """A piece of a shape: its name, its material slot (main, second, dark, ...) and its mesh."""

    name: str
    slot: str
    mesh: Mesh


def piece(
    name: str, slot: str, mesh: Mesh, scale: ArrayLike = 1.0, shift: ArrayLike = 0.0, turn: Floats | None = None
) -> Solid:
    """A piece of a shape from a mesh that is scaled, turned and moved as by `place`."""
    return Solid(name, slot, place(mesh, scale, shift, turn))


def grid(rows: int, columns: int) -> NDArray[np.int64]:
    """Two triangles for each cell of a grid of (rows + 1) x (columns + 1) vertices."""
    i = np.arange(rows)[:, None] * (columns + 1) + np.arange(columns)
    quad = np.stack([i, i + 1, i + columns + 2, i + columns + 1], -1).reshape(-1, 4)
    return np.concatenate([quad[:, [0, 1, 2]], quad[:, [0, 2, 3]]])


def block(w: float, h: float, d: float, gable: float = 0.0) -> Mesh:
    """A box, optionally with the gable of a milk carton; front and back show the whole texture, the sides a strip."""
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


def lathe(radius: ArrayLike, height: ArrayLike, repeat: float = 1.0, around: int = 28) -> Mesh:
    """A profile (radius at each height, bottom to top) turned about the vertical axis; closed at both ends."""
    profile, heights = np.asarray(radius, float), np.asarray(height, float)
    r = np.r_[0, profile, 0]
    y = np.r_[heights[0], heights, heights[-1]]
    angle = np.linspace(0, 2 * np.pi, around + 1)
    x, z = np.outer(r, np.sin(angle)), np.outer(r, np.cos(angle))
    vertices = np.stack([x, np.broadcast_to(y[:, None], x.shape), z], -1).reshape(-1, 3)
    v = (y - y.min()) / max(np.ptp(y), 1e-9)
    u = np.linspace(0, repeat, around + 1) + 0.5  # the texture's middle faces the viewer
    uv = np.stack(np.broadcast_arrays(u[None], v[:, None]), -1).reshape(-1, 2)
    return make_mesh(vertices, grid(len(r) - 1, around), uv)


def ball(rows: int = 12, around: int = 20) -> Mesh:
    """A ball of diameter 1."""
    t = np.linspace(0.02, np.pi - 0.02, rows)
    return lathe(np.sin(t), -np.cos(t), 1.0, around)


def tube(top: float = 0.5, bottom: float = 0.5, around: int = 16) -> Mesh:
    """A cylinder or cone stump of height 1."""
    return lathe([bottom, top], [0, 1], 1.0, around)


def cushion(w: float, h: float, d: float, power: float = 4) -> Mesh:
    """Two cushions sewn at the rim."""
    a = np.linspace(-1, 1, 15)
    x, y = np.meshgrid(a, a)
    bulge = ((1 - np.abs(x) ** power) * (1 - np.abs(y) ** power)) ** 0.5 * d
    uv = np.stack([(x + 1) / 2, (y + 1) / 2], -1).reshape(-1, 2)
    front = np.stack([x * w / 2, y * h / 2, bulge], -1).reshape(-1, 3)
    back = front * [-1, 1, -1]
    faces = grid(14, 14)
    return make_mesh(
        np.concatenate([front, back]), np.concatenate([faces, faces + len(front)]), np.concatenate([uv, uv])
    )


def rounded(e: float, n: float) -> Mesh:
    """A superellipsoid: between a box (small exponents), a cylinder and a ball (1), and a double cone (2)."""
    t, p = np.linspace(-np.pi / 2, np.pi / 2, 18), np.linspace(-np.pi, np.pi, 29)

    def power(x: Array, k: float) -> Array:
        return np.asarray(np.sign(x) * np.abs(x) ** k)

    c, s = power(np.cos(t), e)[:, None], power(np.sin(t), e)[:, None]
    x, y, z = c * power(np.sin(p), n), s * np.ones_like(p), c * power(np.cos(p), n)
    vertices = np.stack([x, y, z], -1).reshape(-1, 3)
    uv = np.stack(np.meshgrid((p / np.pi + 1) / 2, t / np.pi + 0.5), -1).reshape(-1, 2)
    return make_mesh(vertices, grid(17, 28), uv)


def sweep(
    path: ArrayLike, radius: ArrayLike, around: int = 10, uv: tuple[float, float, float, float] = (0, 0, 1, 1)
) -> Mesh:
    """A tube along a path (N, 3), with one radius or one per point; `uv` is the rectangle of the texture it shows."""
    points = np.asarray(path, float)
    r = np.broadcast_to(np.asarray(radius, float), len(points))
    along = np.gradient(points, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True).clip(1e-9)
    up = np.where(np.abs(along[:, 2:]) < 0.9, np.array([[0, 0, 1.0]]), np.array([[1.0, 0, 0]]))
    side = np.cross(along, up)
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    other = np.cross(side, along)
    angle = np.linspace(0, 2 * np.pi, around + 1)
    ring = np.cos(angle)[None, :, None] * side[:, None] + np.sin(angle)[None, :, None] * other[:, None]
    vertices = (points[:, None] + r[:, None, None] * ring).reshape(-1, 3)
    u = uv[0] + (uv[2] - uv[0]) * np.linspace(0, 1, around + 1)
    v = uv[1] + (uv[3] - uv[1]) * np.linspace(0, 1, len(points))

    return raw(vertices, grid(len(points) - 1, around), np.stack(np.meshgrid(u, v), -1).reshape(-1, 2))


def raw(vertices: Array, faces: NDArray[np.int64], uv: Array) -> Mesh:
    """A mesh that keeps its place and size."""
    used = vertices[faces.ravel()]
    low, high = used.min(0), used.max(0)
    return place(make_mesh(vertices, faces, uv), float((high - low).max()), (low + high) / 2)


def arc(centre: tuple[float, float, float], radius: float, start: float, stop: float, stretch: float = 1.0) -> Array:
    a = np.linspace(start, stop, 13)
    offset = np.stack([radius * np.cos(a), stretch * radius * np.sin(a), 0 * a], 1)
    return np.asarray(centre, float) + offset
