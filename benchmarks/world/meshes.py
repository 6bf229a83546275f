"""Triangle meshes from arrays and OBJ files, and the solids that shapes are assembled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.images.read import read_image

Floats = NDArray[np.float32]
Array = NDArray[np.float64]
Rng = Any  # numpy.random.Generator or world.identity.Blend


@dataclass(frozen=True)
class Mesh:
    """Triangles with texture coordinates.

    Attributes:
        vertices: (V, 3). faces: (F, 3) indices into them.
        uv: texture coordinates of each face's corners, (F, 3, 2), v upwards; outside [0, 1] they repeat.
        normals: of each face's corners, (F, 3, 3).
    """

    vertices: Floats
    faces: NDArray[np.int64]
    uv: Floats
    normals: Floats


def make_mesh(vertices: NDArray[np.floating], faces: NDArray[np.integer], uv: NDArray[np.floating]) -> Mesh:
    """A mesh scaled to unit size around the origin, with smooth normals except across sharp edges.

    Args:
        vertices: (V, 3). faces: (F, 3). uv: (F, 3, 2) per corner, or (V, 2) per vertex.
    """
    v = np.asarray(vertices, dtype=np.float32)
    f = np.asarray(faces, dtype=np.int64)
    used = v[f.ravel()]
    low, high = used.min(0), used.max(0)
    v = (v - (low + high) / 2) / max(float((high - low).max()), 1e-9)
    t = np.asarray(uv, dtype=np.float32)
    return Mesh(v, f, t if t.ndim == 3 else t[f], _normals(v, f))


def _normals(vertices: Floats, faces: NDArray[np.int64]) -> Floats:
    corner = vertices[faces]
    flat = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    smooth = np.zeros_like(vertices)
    for k in range(3):
        np.add.at(smooth, faces[:, k], flat)  # weighted by area
    smooth /= np.linalg.norm(smooth, axis=1, keepdims=True).clip(1e-12)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True).clip(1e-12)
    at = smooth[faces]
    sharp = (at * flat[:, None]).sum(-1, keepdims=True) < 0.75
    return np.where(sharp, flat[:, None], at).astype(np.float32)


def fit(meshes: Sequence[Mesh]) -> list[Mesh]:
    """The meshes, moved and scaled together to just fit a unit cube around the origin."""
    used = np.concatenate([m.vertices[m.faces.ravel()] for m in meshes])
    low, high = used.min(0), used.max(0)
    middle, extent = (low + high) / 2, max(float((high - low).max()), 1e-9)
    return [replace(m, vertices=(m.vertices - middle) / extent) for m in meshes]


def place(mesh: Mesh, scale: ArrayLike = 1.0, shift: ArrayLike = 0.0, turn: Floats | None = None) -> Mesh:
    """The mesh, scaled along its axes, rotated by a (3, 3) matrix, then moved."""
    vertices = mesh.vertices * np.asarray(scale, dtype=np.float32)
    if turn is not None:
        vertices = vertices @ turn.T
    vertices = (vertices + np.asarray(shift, dtype=np.float32)).astype(np.float32)
    return Mesh(vertices, mesh.faces, mesh.uv, _normals(vertices, mesh.faces))


def load_obj(path: Path) -> Mesh | None:
    """A mesh from an OBJ file, polygons split into triangles, or None if it has no faces.

    Faces without texture coordinates get them from the two widest axes of the whole object.
    """
    from vtkmodules.util.numpy_support import vtk_to_numpy
    from vtkmodules.vtkFiltersCore import vtkTriangleFilter
    from vtkmodules.vtkIOGeometry import vtkOBJReader

    reader = vtkOBJReader()
    reader.SetFileName(str(path))
    triangles = vtkTriangleFilter()
    triangles.SetInputConnection(reader.GetOutputPort())
    triangles.PassLinesOff()
    triangles.PassVertsOff()
    triangles.Update()
    data = triangles.GetOutput()
    if not data.GetNumberOfPolys():
        return None

    corners = vtk_to_numpy(data.GetPolys().GetConnectivityArray()).reshape(-1, 3).astype(np.int64)
    # the reader splits points where texture coordinates differ; shading needs them whole
    points, whole = np.unique(vtk_to_numpy(data.GetPoints().GetData()), axis=0, return_inverse=True)
    given = data.GetPointData().GetTCoords()

    if given is None:
        widest = np.sort(np.argsort(np.ptp(points, axis=0))[1:])
        plane = points[:, widest]
        uv = ((plane - plane.min(0)) / np.ptp(plane, axis=0).clip(1e-9))[whole.reshape(-1)[corners]]
    else:
        uv = vtk_to_numpy(given)[corners]

    return make_mesh(points, whole.reshape(-1)[corners], uv)


def simplify(mesh: Mesh, cells: int = 40) -> Mesh:
    """The mesh with fewer triangles: vertices in one cell of a grid become one, texture coordinates stay."""
    if len(mesh.faces) <= 4000:
        return mesh
    keys = np.floor((mesh.vertices + 0.5) * cells).astype(np.int64)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    faces = inverse.reshape(-1)[mesh.faces]
    kept = (faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 0] != faces[:, 2])
    return make_mesh(mesh.vertices[first], faces[kept], mesh.uv[kept])


def load_texture(path: Path, size: int = 256) -> NDArray[np.uint8]:
    """An image file as a texture of at most `size` pixels a side."""
    rgb = read_image(path)
    rgb.thumbnail((size, size))
    return np.asarray(rgb)


# Solids


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


def arc(center: tuple[float, float, float], radius: float, start: float, stop: float, stretch: float = 1.0) -> Array:
    a = np.linspace(start, stop, 13)
    offset = np.stack([radius * np.cos(a), stretch * radius * np.sin(a), 0 * a], 1)
    return np.asarray(center, float) + offset
