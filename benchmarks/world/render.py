"""Off-screen rendering of textured meshes with VTK: physically based shading, several lights, exact masks.

With Mesa's software OpenGL, one core shades a picture of 448 x 448 samples in 13 ms, four times as fast as ray casting
(benchmarks/world.py). VTK needs no screen; on Linux it uses EGL (Debian: libegl1) or OSMesa. Importing this module
selects Mesa's software renderer through environment variables that are not yet set: it gives the same pixels on any
machine, unlike drivers of graphics cards.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from ctypes.util import find_library
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from world.meshes import Mesh

_MESA = Path("/usr/share/glvnd/egl_vendor.d/50_mesa.json")


def _choose_opengl() -> None:
    """Make VTK render off screen and in software; to be called before VTK opens its first window."""
    os.environ.setdefault("LIBGL_ALWAYS_SOFTWARE", "1")
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa's threads: processes share the work instead
    if sys.platform != "linux" or "VTK_DEFAULT_OPENGL_WINDOW" in os.environ:
        return
    if find_library("EGL"):
        os.environ["VTK_DEFAULT_OPENGL_WINDOW"] = "vtkEGLRenderWindow"
        if _MESA.is_file():  # Mesa instead of a graphics card's driver
            os.environ.setdefault("__EGL_VENDOR_LIBRARY_FILENAMES", str(_MESA))
    elif find_library("OSMesa"):
        os.environ["VTK_DEFAULT_OPENGL_WINDOW"] = "vtkOSOpenGLRenderWindow"


_choose_opengl()
with suppress(ImportError):
    # Triton, which torch may import later, crashes if Mesa has loaded its own copy of LLVM before
    importlib.import_module("triton")

try:
    import vtkmodules.vtkRenderingOpenGL2  # noqa: F401  (registers the OpenGL classes)
    from vtkmodules.util.numpy_support import numpy_to_vtk, numpy_to_vtkIdTypeArray, vtk_to_numpy
    from vtkmodules.vtkCommonCore import vtkPoints, vtkUnsignedCharArray
    from vtkmodules.vtkCommonDataModel import vtkCellArray, vtkImageData, vtkPolyData
    from vtkmodules.vtkCommonMath import vtkMatrix4x4
    from vtkmodules.vtkRenderingCore import (
        vtkActor,
        vtkLight,
        vtkPolyDataMapper,
        vtkRenderer,
        vtkRenderWindow,
        vtkTexture,
    )
except ImportError as error:  # pragma: no cover
    raise ImportError("rendering needs VTK: pip install vtk") from error

Floats = NDArray[np.float32]
Picture = NDArray[np.uint8]
FINER = 2  # pictures are rendered at twice their size and averaged down


@dataclass(frozen=True)
class Part:
    """A piece of an object.

    Attributes:
        name: such as body or handle; pieces with one name count as one part.
        mesh: in the frame of the object: x right, y up, z towards the viewer, all of it within about [-0.5, 0.5].
        texture: (H, W, 3), with v = 0 at the bottom row.
        roughness, metallic: of the surface, 0..1.
        region: (H, W) bool, true where the texture shows a label, which counts as a separate part; None = no label.
    """

    name: str
    mesh: Mesh
    texture: Picture
    roughness: float = 0.6
    metallic: float = 0.0
    region: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Light:
    """A main light, a fill light from the other side, and light from everywhere.

    Attributes:
        direction: towards the main light, (x, y, z) as seen by the viewer.
        color: RGB factors around 1.
        strength: of the main light.
        ambient: share of the light that comes from everywhere, 0..1.
    """

    direction: tuple[float, float, float]
    color: tuple[float, float, float] = (1.0, 1.0, 1.0)
    strength: float = 1.0
    ambient: float = 0.3


@dataclass(frozen=True)
class Pose:
    """Rotation, size and place of an object in the frame.

    Attributes:
        rotation: (3, 3).
        scale: size of the unit cube in fractions of the frame.
        center: image of the origin, in fractions of the frame from the top left.
        angle: vertical angle of view in degrees; a small one flattens perspective.
    """

    rotation: Floats
    scale: float = 0.7
    center: tuple[float, float] = (0.5, 0.5)
    angle: float = 20.0


class Renderer:
    """Draws square pictures of one size with its own OpenGL context; `renderer` shares one per process."""

    def __init__(self, size: int) -> None:
        self.size, self.fine = size, size * FINER
        self._window = vtkRenderWindow()
        self._window.SetOffScreenRendering(1)
        self._window.SetMultiSamples(0)
        self._window.SetAlphaBitPlanes(1)
        self._window.SetSize(self.fine, self.fine)
        self._scene = vtkRenderer()
        self._scene.SetBackground(0, 0, 0)
        self._scene.SetBackgroundAlpha(0.0)
        self._scene.AutomaticLightCreationOff()
        self._window.AddRenderer(self._scene)
        self._main, self._fill, self._front = (vtkLight() for _ in range(3))

        for light in (self._main, self._fill, self._front):
            light.SetLightTypeToSceneLight()
            light.SetFocalPoint(0, 0, 0)
            self._scene.AddLight(light)

        self._pixels = vtkUnsignedCharArray()

    def draw(self, parts: Sequence[Part], pose: Pose, light: Light) -> tuple[Floats, Floats]:
        """Color (size, size, 3) in [0, 1], meaningful where covered, and coverage (size, size) in [0, 1]."""
        self._place(pose)
        self._shine(light)
        actors = [self._actor(part, pose, _texture(part.texture), light) for part in parts]
        shot = self._shoot(actors)
        shot[..., 3] = np.where(shot[..., 3], np.uint8(255), np.uint8(0))
        coarse = _unit(Image.fromarray(shot, "RGBA").reduce(FINER))  # weighs by coverage
        return coarse[..., :3], coarse[..., 3]

    def regions(self, parts: Sequence[Part], pose: Pose, names: Sequence[str]) -> Floats:
        """Share (size, size) in [0, 1] of each pixel that shows the named parts; "label" selects the label."""
        self._place(pose)
        actors = []
        for part in parts:
            flat = np.full((2, 2), part.name in names)
            if part.region is not None and "label" in names and part.name not in names:
                flat = part.region
            actors.append(self._actor(part, pose, _texture(np.repeat(flat[..., None] * np.uint8(255), 3, 2)), None))
        shown = np.where(self._shoot(actors)[..., 0] > 127, np.uint8(255), np.uint8(0))
        return _unit(Image.fromarray(shown).reduce(FINER))

    def _place(self, pose: Pose) -> None:
        camera = self._scene.GetActiveCamera()
        distance = 0.5 / np.tan(np.radians(pose.angle) / 2)  # the frame is 1 x 1 at the origin's depth
        camera.SetPosition(0, 0, distance)
        camera.SetFocalPoint(0, 0, 0)
        camera.SetViewUp(0, 1, 0)
        camera.SetViewAngle(pose.angle)
        camera.SetWindowCenter(1 - 2 * pose.center[0], 2 * pose.center[1] - 1)
        camera.SetClippingRange(max(distance - 2, 0.05), distance + 2)

    def _shine(self, light: Light) -> None:
        x, y, z = light.direction
        strength = 3.0 * light.strength
        for lamp, place, share in (
            (self._main, (x, y, z), strength * (1 - light.ambient)),
            (self._fill, (-x, 0.4 * y + 0.3, max(z, 0.4)), strength * light.ambient * 0.45),
            (self._front, (0.1 * x, 0.5, 1.0), strength * light.ambient * 0.75),
        ):
            lamp.SetPosition(*(10 * p for p in place))
            lamp.SetColor(*light.color)
            lamp.SetIntensity(share)

    def _actor(self, part: Part, pose: Pose, texture: Any, light: Light | None) -> Any:
        mapper = vtkPolyDataMapper()
        mapper.SetInputData(_polydata(part.mesh))
        actor = vtkActor()
        actor.SetMapper(mapper)
        turned = np.eye(4)
        turned[:3, :3] = pose.rotation * pose.scale
        matrix = vtkMatrix4x4()
        matrix.DeepCopy([float(v) for v in turned.ravel()])
        actor.SetUserMatrix(matrix)
        surface = actor.GetProperty()

        if light is None:
            surface.LightingOff()
            actor.SetTexture(texture)
        else:
            surface.SetInterpolationToPBR()
            texture.UseSRGBColorSpaceOn()
            surface.SetBaseColorTexture(texture)
            surface.SetRoughness(part.roughness)
            surface.SetMetallic(part.metallic)

        return actor

    def _shoot(self, actors: Sequence[Any]) -> Picture:
        for actor in actors:
            self._scene.AddActor(actor)
        self._window.Render()
        last = self.fine - 1
        self._window.GetRGBACharPixelData(0, 0, last, last, 0, self._pixels)  # type: ignore[call-overload]
        for actor in actors:
            self._scene.RemoveActor(actor)
            actor.ReleaseGraphicsResources(self._window)
        shot: Picture = vtk_to_numpy(self._pixels).reshape(self.fine, self.fine, 4)[::-1].copy()
        return shot


def renderer(size: int) -> Renderer:
    """The renderer of this size that the process shares, for one thread at a time.

    Raises:
        RuntimeError: if there is no OpenGL to render with.
    """
    return _renderer(size, os.getpid())  # an OpenGL context doesn't survive a fork


@lru_cache(maxsize=4)
def _renderer(size: int, process: int) -> Renderer:
    if sys.platform == "linux" and not {"VTK_DEFAULT_OPENGL_WINDOW", "DISPLAY"} & set(os.environ):
        raise RuntimeError("no OpenGL to render with off screen: install Debian's libegl1 (with Mesa) or libosmesa6")
    made = Renderer(size)
    made._window.Render()
    if not made._window.SupportsOpenGL():
        raise RuntimeError(f"no OpenGL to render with: {made._window.GetOpenGLSupportMessage().strip()}")
    return made


def _polydata(mesh: Mesh) -> Any:
    points = vtkPoints()
    points.SetData(numpy_to_vtk(np.ascontiguousarray(mesh.vertices[mesh.faces].reshape(-1, 3)), deep=1))
    count = len(mesh.faces)
    cells = vtkCellArray()
    cells.SetData(
        numpy_to_vtkIdTypeArray(np.arange(0, 3 * count + 1, 3), deep=1),
        numpy_to_vtkIdTypeArray(np.arange(3 * count), deep=1),
    )
    data = vtkPolyData()
    data.SetPoints(points)
    data.SetPolys(cells)
    data.GetPointData().SetNormals(numpy_to_vtk(np.ascontiguousarray(mesh.normals.reshape(-1, 3)), deep=1))
    data.GetPointData().SetTCoords(numpy_to_vtk(np.ascontiguousarray(mesh.uv.reshape(-1, 2)), deep=1))
    return data


def _texture(picture: Picture) -> Any:
    height, width = picture.shape[:2]
    image = vtkImageData()
    image.SetDimensions(width, height, 1)
    image.GetPointData().SetScalars(numpy_to_vtk(np.ascontiguousarray(picture[::-1]).reshape(-1, 3), deep=1))
    texture = vtkTexture()
    texture.SetInputData(image)
    texture.InterpolateOn()
    texture.MipmapOn()
    texture.SetMaximumAnisotropicFiltering(1)
    texture.RepeatOn()
    return texture


def _unit(image: Image.Image) -> Floats:
    return np.asarray(image, dtype=np.float32) / np.float32(255)
