"""Garments: a shirt, dress, skirt or trousers, laid flat or worn by a figure that isn't part of the identity.

Their texture holds the front in its left half and the back, without prints, in its right half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from world.meshes import Array, Mesh, Rng, Solid, ball, grid, piece, raw, sweep

_Sheet = tuple[Array, Array, NDArray[np.int64]]  # vertices (V, 2), texture coordinates (V, 2), faces

# the figure, in its own lengths: y = 0 at the crotch, arms and legs as paths
SHOULDER, NECK, HEAD, FOOT = 0.53, 0.6, 0.74, -0.78
_HEIGHTS = np.array([-0.05, 0.05, 0.18, 0.32, 0.45, SHOULDER, 0.575])
_WIDTHS = np.array([0.165, 0.17, 0.138, 0.155, 0.178, 0.17, 0.065])  # half the body's width there


@dataclass(frozen=True)
class Cut:
    """The cut of a garment; lengths are shares.

    Attributes:
        kind: top, dress, trousers or skirt. length: 0 short .. 1 long. sleeve: 0 none .. 1 to the wrist.
        loose: 1 = close to the body. flare: widening of the hem. neck: depth of the opening. hood: has a collar.
    """

    kind: str
    length: float
    sleeve: float
    loose: float
    flare: float
    neck: float
    hood: bool


def cut(rng: Rng) -> Cut:
    """Draw a random cut."""
    kind = ("top", "top", "top", "dress", "trousers", "trousers", "skirt")[rng.integers(7)]
    sleeveless = rng.random() < (0.25 if kind == "top" else 0.6)
    sleeve = float(rng.uniform(0.2, 1.0))
    return Cut(
        kind=kind, length=float(rng.uniform(0, 1)), sleeve=0.0 if sleeveless else sleeve,
        loose=float(rng.uniform(1.06, 1.35)), flare=float(rng.uniform(0, 1)), neck=float(rng.uniform(0, 1)),
        hood=bool(rng.random() < 0.3),
    )  # fmt: skip


def _body_width(y: NDArray[np.floating]) -> Array:
    return np.asarray(np.interp(y, _HEIGHTS, _WIDTHS), dtype=float)


def _hem(c: Cut) -> float:
    """Height of the lower edge on the figure."""
    if c.kind == "top":
        return 0.12 - 0.22 * c.length
    if c.kind == "trousers":
        return -0.25 - 0.48 * c.length
    return -0.15 - 0.5 * c.length


def _collar(c: Cut) -> float:
    """Height of the upper edge on the figure."""
    return 0.575 if c.kind in ("top", "dress") else 0.17


def flat(c: Cut) -> list[Solid]:
    """The solids of a garment that lies flat, with folds, front and back."""
    low, high = _hem(c), _collar(c)

    def body(start: float, stop: float, rows: int) -> tuple[Array, Array, Array]:
        y = np.linspace(start, stop, rows)
        return y, -_flat_width(y, c), _flat_width(y, c)

    if c.kind == "skirt":
        strips = [body(low, high, 16)]
    elif c.kind == "trousers":
        y = np.linspace(low, -0.03, 12)
        inner = 0.01 + 0.1 * np.clip(-y, 0, 1)
        hip = float(_flat_width(np.array([-0.04]), c)[0])
        outer = hip * (1 - 0.35 * np.clip(-y - 0.04, 0, 1)) + 0.14 * c.flare * np.clip(-y - 0.2, 0, 1)
        strips = [body(-0.04, high, 8), (y, -outer, -inner), (y, inner, outer)]
    else:
        neck, hole = SHOULDER - 0.02 - 0.12 * c.neck, 0.06 + 0.03 * c.neck
        y = np.linspace(neck, high, 9)
        inner = hole * np.sqrt(np.clip(1 - ((high - y) / (high - neck)) ** 2, 0, 1))
        outer = np.maximum(_flat_width(y, c) - 0.3 * (y - neck), inner + 0.015)
        strips = [body(low, neck, 18), (y, -outer, -inner), (y, inner, outer)]

    front = [_ruled(y, left, right, low, high) for y, left, right in strips]
    if c.kind in ("top", "dress") and c.sleeve:
        wide = float(_flat_width(np.array([SHOULDER - 0.03]), c)[0])
        for s in (-1, 1):
            start = np.array([s * wide * 0.9, SHOULDER - 0.07])
            end = start + np.array([s * 0.33, -0.42]) * c.sleeve
            front.append(_sleeve(start, end, 0.085 * c.loose, 0.06 * c.loose, s))

    vertices = np.concatenate([v for v, _, _ in front])
    uv = np.concatenate([t for _, t, _ in front])
    offsets = np.cumsum([0, *(len(v) for v, _, _ in front)])
    faces = np.concatenate([f + o for (_, _, f), o in zip(front, offsets[:-1], strict=True)])
    fold = 0.012 * np.sin(vertices[:, 0] * (10 + 20 * c.loose) + vertices[:, 1] * 12 * (c.flare - 0.5) + 6 * c.neck)
    deep = np.column_stack([vertices, 0.02 + fold])
    both = np.concatenate([deep, deep * [1, 1, -1]])
    behind = uv + [0.5, 0] * (uv[:, :1] < 0.5)
    mesh = raw(both, np.concatenate([faces, faces[:, ::-1] + len(deep)]), np.concatenate([uv, behind]))

    return [Solid("cloth", "main", mesh)]


def _flat_width(y: Array, c: Cut) -> Array:
    """Half the width of a garment's body when it lies flat."""
    width = _body_width(np.minimum(y, SHOULDER)) * c.loose * 1.3
    if c.kind in ("dress", "skirt"):
        width = width + np.clip((0.08 - y) / 0.6, 0, 1) * (0.06 + 0.34 * c.flare)
    return np.asarray(width)


def _ruled(y: Array, left: Array, right: Array, low: float, high: float) -> _Sheet:
    """A sheet between two edges at each height, with the front half of the texture laid over it."""
    x = left[:, None] + (right - left)[:, None] * np.linspace(0, 1, 15)
    v = np.broadcast_to(((y - low) / (high - low))[:, None], x.shape)
    u = 0.25 + 0.25 * np.clip(x / 0.34, -1, 1)
    vertices = np.stack([x, np.broadcast_to(y[:, None], x.shape)], -1).reshape(-1, 2)
    return vertices, np.stack([u, v], -1).reshape(-1, 2), grid(len(y) - 1, 14)


def _sleeve(start: Array, stop: Array, wide: float, narrow: float, side: int) -> _Sheet:
    t = np.linspace(0, 1, 9)[:, None, None]
    across = np.linspace(-1, 1, 7)[None, :, None]
    along = (stop - start) / np.linalg.norm(stop - start).clip(1e-6)
    normal = np.array([-along[1], along[0]]) * side
    points = start + (stop - start) * t + normal * across * (wide + (narrow - wide) * t)
    u = np.broadcast_to(0.75 + 0.12 * across, (*points.shape[:2], 1))
    uv = np.concatenate([u, np.broadcast_to(0.8 - 0.5 * t, u.shape)], -1)
    return points.reshape(-1, 2), uv.reshape(-1, 2), grid(8, 6)


def worn(c: Cut, pose: Generator) -> tuple[list[Solid], list[Solid]]:
    """The solids of a garment that is worn, and those of the figure: skin, hair and other clothes."""
    arms, legs = _limbs(pose)
    low = _hem(c)
    pieces: list[Mesh] = []

    if c.kind in ("top", "dress"):
        pieces.append(_around(np.linspace(max(low, -0.1), 0.572, 22), c))
        if c.kind == "dress":
            pieces.append(_around(np.linspace(low, -0.08, 12), c))
        if c.sleeve:
            for path in arms:
                kept = path[: max(3, round(len(path) * c.sleeve))]
                pieces.append(sweep(kept, np.linspace(0.075, 0.055, len(kept)) * c.loose, 14, (0.6, 0.3, 0.9, 0.9)))
        if c.hood:
            ring = np.array([[0, NECK - 0.06, -0.02], [0, NECK - 0.02, -0.01], [0, NECK + 0.02, 0]])
            pieces.append(sweep(ring, [0.1, 0.09, 0.085], 18, (0.6, 0.9, 0.9, 1)))
    elif c.kind == "trousers":
        pieces.append(_around(np.linspace(-0.06, 0.17, 8), c))
        for path in legs:
            kept = path[: max(4, round(len(path) * (0.35 + 0.62 * c.length)))]
            wide = np.linspace(0.095, 0.06 + 0.05 * c.flare, len(kept)) * c.loose
            pieces.append(sweep(kept[::-1], wide[::-1], 14, (0.75, 0, 1.25, 0.85)))
    else:
        pieces.append(_around(np.linspace(low, 0.17, 18), c))

    figure = _figure(c, arms, legs, pose)
    return [Solid("cloth", "main", m) for m in pieces], figure


def _limbs(pose: Generator) -> tuple[list[Array], list[Array]]:
    """Paths of arms and legs from the body outwards, 12 points each."""
    arms, legs = [], []
    t = np.linspace(0, 1, 12)[:, None]
    for s in (-1, 1):
        out, bend, fore = pose.uniform(0.1, 0.7), pose.uniform(-0.3, 0.6), pose.uniform(-0.2, 0.5)
        shoulder = np.array([s * 0.165, SHOULDER - 0.03, 0.0])
        elbow = shoulder + 0.28 * np.array([s * np.sin(out), -np.cos(out), fore * 0.4])
        hand = elbow + 0.27 * np.array([s * np.sin(out - bend), -np.cos(out - bend), fore])
        arms.append(np.where(t < 0.5, shoulder + (elbow - shoulder) * 2 * t, elbow + (hand - elbow) * (2 * t - 1)))
        apart, step = pose.uniform(0.0, 0.12), pose.uniform(-0.15, 0.15)
        hip = np.array([s * 0.085, 0.02, 0.0])
        foot = np.array([s * (0.09 + apart), FOOT, step])
        legs.append(hip + (foot - hip) * t)
    return arms, legs


def _around(y: Array, c: Cut) -> Mesh:
    """Cloth around the body between heights: the texture's middle in front, its left edge behind."""
    half = _body_width(y) * c.loose
    if c.kind in ("dress", "skirt"):
        half = half + np.clip((0.08 - y) / 0.6, 0, 1) * (0.05 + 0.28 * c.flare)
    angle = np.linspace(-np.pi, np.pi, 37)
    ripple = 1 + 0.05 * np.sin(9 * angle)[None] * np.clip((0.05 - y) / 0.5, 0, 1)[:, None]
    x = half[:, None] * np.sin(angle) * ripple
    z = (0.62 * half[:, None] + 0.02) * np.cos(angle) * ripple
    low, high = _hem(c), _collar(c)
    v = np.clip((y - low) / (high - low), 0, 1)[:, None] + 0 * x
    front = np.cos(angle)[None] >= 0
    reach = min(1.0, float(half.max()) * 2.4)
    u = np.where(front, 0.25, 0.75) + 0.24 * np.sin(angle)[None] * np.where(front, reach, -reach) + 0 * x
    vertices = np.stack([x, np.broadcast_to(y[:, None], x.shape), z], -1).reshape(-1, 3)

    return raw(vertices, grid(len(y) - 1, 36), np.stack([u, v], -1).reshape(-1, 2))


def _figure(c: Cut, arms: list[Array], legs: list[Array], pose: Generator) -> list[Solid]:
    """Head, hair and limbs of the figure, and its own clothes; slots are skin, hair, other and dark."""
    solid = ball()
    neck = np.array([[0, 0.5, 0], [0, NECK, 0], [0, HEAD - 0.05, 0.01]])
    parts = [piece("figure", "skin", solid, (0.15, 0.21, 0.18), (0, HEAD, 0.01)),
             Solid("figure", "skin", sweep(neck, 0.05)),
             piece("figure", "hair", solid, (0.17, 0.2, 0.18), (0, HEAD + 0.035, -0.025))]  # fmt: skip

    if pose.random() < 0.5:  # long hair
        parts.append(piece("figure", "hair", solid, (0.18, pose.uniform(0.25, 0.45), 0.1), (0, HEAD - 0.08, -0.07)))

    for path in arms:
        parts.append(Solid("figure", "skin", sweep(path, np.linspace(0.048, 0.033, len(path)))))
        parts.append(piece("figure", "skin", solid, (0.07, 0.09, 0.06), path[-1]))
    dressed = pose.random() < 0.7
    body = Cut("top", 0.4, 0.0, 1.0, 0.0, 0.3, False)
    trunk = _around(np.linspace(-0.06, 0.572, 14), body)

    if c.kind in ("trousers", "skirt"):
        parts.append(Solid("figure", "other", trunk))
    else:
        parts.append(Solid("figure", "other", _around(np.linspace(-0.08, 0.12, 6), body)))
        parts.append(piece("figure", "skin", trunk, 0.97))

    covered = c.kind == "top" or (c.kind != "trousers" and not dressed)
    for path in legs:
        slot = "other" if covered and dressed else "skin"
        parts.append(Solid("figure", slot, sweep(path, np.linspace(0.082, 0.045, len(path)))))
        parts.append(piece("figure", "dark", solid, (0.09, 0.07, 0.2), path[-1] + [0, -0.01, 0.05]))

    return parts
