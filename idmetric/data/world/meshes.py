"""Triangle meshes, from arrays and from OBJ files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]


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

    Raises:
        ValueError: if there are no faces.
    """
    if not len(faces):
        raise ValueError("a mesh needs at least one face")
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
    """An image file as a texture of at most `size` pixels a side.

    Raises:
        ImageReadError: if it can't be read.
    """
    from idmetric.images.read import read_image  # imports torch, which nothing else here needs

    rgb = read_image(path)
    rgb.thumbnail((size, size))
    return np.asarray(rgb)
