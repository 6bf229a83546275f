"""A small software renderer: triangles to pixels with a depth buffer, textures and simple light. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idmetric.data.world.meshes import Mesh

Floats = NDArray[np.float32]
_CHUNK = 100_000  # (triangle, pixel) candidates looked at in one go


@dataclass(frozen=True)
class Light:
    """One directional light and a sky: `direction` points towards the light; colours are RGB factors around 1."""

    direction: Floats
    colour: Floats
    ambient: float  # 0..1, the part of light that comes from everywhere
    specular: float  # 0..1, strength of highlights


def rasterize(screen: Floats, faces: NDArray[np.int64], height: int, width: int) -> tuple[NDArray[np.int64], Floats]:
    """Which triangle covers each pixel centre, the nearest one winning.

    Args:
        screen: vertices (V, 3): x and y in pixels (y down), z depth (smaller = nearer), linear across the screen.
        faces: (F, 3) vertex indices, either winding.

    Returns:
        Face index (height, width), -1 where there is none, and barycentric coordinates (height, width, 3).
    """
    corner = screen[faces]
    low = np.floor(corner[..., :2].min(1)).astype(np.int64).clip(0, [width, height])
    high = (np.floor(corner[..., :2].max(1)).astype(np.int64) + 1).clip(0, [width, height])
    a, b, c = corner[:, 0], corner[:, 1], corner[:, 2]
    area = (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])
    size = (high - low).clip(0)
    counts = np.where(np.abs(area) > 1e-9, size[:, 0] * size[:, 1], 0)
    depth = np.full(height * width, np.inf, dtype=np.float32)
    index = np.full(height * width, -1, dtype=np.int64)
    weights = np.zeros((height * width, 3), dtype=np.float32)
    ends = np.cumsum(counts)
    start = 0
    while start < len(faces):
        base = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, base + _CHUNK, side="right")))
        part = np.arange(start, stop)
        _fill(part, counts[part], low, size, corner, area, depth, index, weights, width)
        start = stop
    return index.reshape(height, width), weights.reshape(height, width, 3)


def _fill(
    part: NDArray[np.int64],
    counts: NDArray[np.int64],
    low: NDArray[np.int64],
    size: NDArray[np.int64],
    corner: Floats,
    area: Floats,
    depth: Floats,
    index: NDArray[np.int64],
    weights: Floats,
    width: int,
) -> None:
    face = np.repeat(part, counts)
    if not len(face):
        return
    offset = np.arange(len(face)) - np.repeat(np.cumsum(counts) - counts, counts)
    column = low[face, 0] + offset % size[face, 0]
    row = low[face, 1] + offset // size[face, 0]
    # barycentric coordinates and depth are affine in the pixel's place: three coefficients each, for every triangle
    x, y, z = corner[part, :, 0], corner[part, :, 1], corner[part, :, 2]
    with np.errstate(divide="ignore", invalid="ignore"):  # flat triangles have no candidates
        slope_x = (np.roll(y, -1, 1) - np.roll(y, -2, 1)) / area[part, None]
        slope_y = (np.roll(x, -2, 1) - np.roll(x, -1, 1)) / area[part, None]
    px, py = (column + 0.5).astype(np.float32), (row + 0.5).astype(np.float32)
    local = face - part[0]
    u, v = (
        slope_x[local, k] * (px - x[local, (k + 1) % 3]) + slope_y[local, k] * (py - y[local, (k + 1) % 3])
        for k in range(2)
    )
    w = 1 - u - v
    inside = np.flatnonzero((u >= 0) & (v >= 0) & (w >= 0))
    face, local, u, v, w = face[inside], local[inside], u[inside], v[inside], w[inside]
    pixel = (row * width + column)[inside]
    z = u * z[local, 0] + v * z[local, 1] + w * z[local, 2]
    nearest = depth.copy()
    np.minimum.at(nearest, pixel, z)
    first = np.flatnonzero((z == nearest[pixel]) & (z < depth[pixel]))
    depth[pixel[first]] = z[first]
    index[pixel[first]] = face[first]
    weights[pixel[first]] = np.stack([u, v, w], 1)[first]


def render(
    mesh: Mesh,
    texture: NDArray[np.uint8],
    rotation: Floats,
    scale: float,
    centre: tuple[float, float],
    light: Light,
    size: int,
    perspective: float = 0.25,
) -> tuple[Floats, Floats]:
    """Draw a mesh.

    Args:
        mesh: of about unit size around the origin, x right, y up, z towards the viewer.
        texture: (H, W, 3), v = 0 at its bottom row.
        rotation: (3, 3).
        scale: size of the unit mesh in fractions of the frame.
        centre: where the origin falls, fractions of the frame from the top left.
        size: side of the square frame in pixels; drawn at twice that and averaged.
        perspective: strength of foreshortening; 0 = parallel projection.

    Returns:
        Colour (size, size, 3) in [0, 1], meaningful where it is covered, and coverage (size, size) in [0, 1].
    """
    fine = size * 2
    points = (mesh.vertices @ rotation.T).astype(np.float32)
    shrink = 1 / (1 - perspective * points[:, 2].clip(-1.5, 1.5))
    screen = np.stack(
        [
            (centre[0] + points[:, 0] * scale * shrink) * fine,
            (centre[1] - points[:, 1] * scale * shrink) * fine,
            -points[:, 2] * shrink,
        ],
        1,
    ).astype(np.float32)
    index, weights = rasterize(screen, mesh.faces, fine, fine)
    covered = index >= 0
    colour = np.zeros((fine, fine, 3), dtype=np.float32)
    face, bary = index[covered], weights[covered]
    bary = bary * shrink[mesh.faces[face]]  # perspective-correct interpolation
    bary /= bary.sum(1, keepdims=True)
    uv = (mesh.uv[face] * bary[..., None]).sum(1)
    normal = (mesh.normals[face] * bary[..., None]).sum(1) @ rotation.T
    normal /= np.linalg.norm(normal, axis=1, keepdims=True).clip(1e-6)
    normal *= np.where(normal[:, 2:] < 0, -1, 1)  # both sides of a surface are lit
    albedo = _sample(texture, uv, len(face))
    diffuse = (normal @ light.direction).clip(0)
    sky = 0.75 + 0.25 * normal[:, 1]
    half = light.direction + np.array([0, 0, 1], np.float32)
    half /= np.linalg.norm(half)
    glint = light.specular * (normal @ half).clip(0) ** 40
    shade = light.ambient * sky + (1 - light.ambient) * 1.3 * diffuse
    colour[covered] = albedo * (shade[:, None] * light.colour) + glint[:, None]
    alpha = _halve(covered.astype(np.float32))
    colour = _halve(colour) / alpha[..., None].clip(0.0625)
    return colour.clip(0, 1), alpha


def _halve(x: Floats) -> Floats:
    """Mean of each 2 x 2 block."""
    total: Floats = x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2]
    total *= 0.25
    return total


def _sample(texture: NDArray[np.uint8], uv: Floats, pixels: int) -> Floats:
    # a smaller copy where the texture has many more texels than the picture shows
    while texture.shape[0] * texture.shape[1] > 6 * max(pixels, 64) and min(texture.shape[:2]) >= 32:
        even = texture[: texture.shape[0] // 2 * 2, : texture.shape[1] // 2 * 2].astype(np.uint16)
        texture = ((even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]) // 4).astype(np.uint8)
    height, width = texture.shape[:2]
    x, y = (uv[:, 0] % 1) * width - 0.5, (1 - uv[:, 1] % 1) * height - 0.5
    left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    fx, fy = (x - left)[:, None], (y - top)[:, None]
    right, bottom = (left + 1) % width, (top + 1).clip(0, height - 1)
    left, top = left % width, top.clip(0, height - 1)
    upper = texture[top, left] * (1 - fx) + texture[top, right] * fx
    lower = texture[bottom, left] * (1 - fx) + texture[bottom, right] * fx
    colours: Floats = ((upper * (1 - fy) + lower * fy) / 255).astype(np.float32)
    return colours
