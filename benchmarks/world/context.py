"""Contexts: everything in a picture except the object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter

from world.assets import Assets
from world.identity import Dice, Identity, stream
from world.materials import MATERIALS, Texture, color, cut, smooth_noise
from world.render import Floats, Light, Picture, Pose, renderer

_FRONTAL = ("box", "carton", "book", "can", "bottle", "pouch", "mesh", "shape", "bag", "robot", "bear")


@dataclass(frozen=True)
class Background:
    """The background of a picture.

    Attributes:
        kind: "studio" (plain, shaded), "photo" (a cut-out of a photo), "room" (a wall and a floor or table in
            perspective), or "clutter" (a room with other objects in it).
        seed: selects one background of the kind.
    """

    kind: str
    seed: int

    @property
    def id(self) -> str:
        """The name of the background, for the manifest."""
        return f"{self.kind}-{self.seed:08x}"


@dataclass(frozen=True)
class Occluder:
    """A textured strip or disc in front of the object; lengths are fractions of the frame."""

    left: float
    top: float
    width: float
    height: float
    round: bool
    seed: int


@dataclass(frozen=True)
class Context:
    """A view: camera, light, background, occluders, and the blur and noise of the sensor.

    Attributes:
        yaw, pitch, roll: rotation of the object in radians; at yaw 0 it faces the viewer.
        scale, center, angle: see `Pose`.
        light: shines on the object and the background.
        shadow: darkness of the object's shadow, 0..1.
        repeat: distance between copies of the object (as on a shelf), in fractions of the frame; 0 = one object.
        figure: number of the figure that wears a garment; None = the garment lies flat.
        blur: radius in pixels, for a picture of 224 pixels.
        noise: standard deviation in 8-bit values.
        seed: of the noise.
    """

    background: Background
    yaw: float
    pitch: float
    roll: float
    scale: float
    center: tuple[float, float]
    angle: float
    light: Light
    shadow: float = 0.5
    repeat: float = 0.0
    figure: int | None = None
    occluders: tuple[Occluder, ...] = ()
    blur: float = 0.0
    noise: float = 0.0
    seed: int = 0

    @property
    def pose(self) -> Pose:
        """Rotation, size and place of the object."""
        return Pose(turn(self.yaw, self.pitch, self.roll), self.scale, self.center, self.angle)


def turn(yaw: float, pitch: float, roll: float) -> Floats:
    """Rotation (3, 3): about the vertical axis, then about the horizontal axis, then in the picture's plane."""
    cy, sy, cp, sp, cr, sr = (f(a) for a in (yaw, pitch, roll) for f in (np.cos, np.sin))
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_x = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    about_z = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
    turned: Floats = (about_z @ about_x @ about_y).astype(np.float32)
    return turned


def sample_light(rng: Generator) -> Light:
    """A random light: daylight, a lamp, side light or dusk."""
    toward = rng.normal(0, 0.7, 3) + np.array([0, 0.7, 1.1])
    toward[2] = max(toward[2], 0.15)
    warm = rng.normal(0, 0.07)
    return Light(
        direction=(float(toward[0]), float(toward[1]), float(toward[2])),
        color=(float(1 + warm), float(1 + rng.normal(0, 0.02)), float(1 - warm)),
        strength=float(rng.uniform(0.7, 1.3)), ambient=float(rng.uniform(0.2, 0.65)),
    )  # fmt: skip


def sample_background(rng: Generator, kind: str, assets: Assets) -> Background:
    """A random background that suits a kind of object."""
    odds = {"studio": 0.5, "photo": 0.25, "room": 0.2, "clutter": 0.05} if kind == "garment" else {
        "studio": 0.2, "photo": 0.3, "room": 0.25, "clutter": 0.25}  # fmt: skip
    if not assets.photos:
        odds = {**odds, "room": odds["room"] + odds["photo"], "photo": 0.0}
    return Background(str(rng.choice(list(odds), p=list(odds.values()))), int(rng.integers(1 << 31)))


def sample_context(rng: Generator, kind: str, assets: Assets) -> Context:
    """A random context for an object of this kind."""
    figure = None
    if kind == "garment":
        yaw, pitch, roll = rng.uniform(-0.6, 0.6) + (np.pi if rng.random() < 0.3 else 0), rng.uniform(-0.1, 0.3), 0.1
        figure = int(rng.integers(1 << 31)) if rng.random() < 0.7 else None
    elif kind in _FRONTAL:
        yaw, pitch, roll = rng.normal(0, 0.55), rng.uniform(-0.1, 0.6), 0.15
        yaw = rng.uniform(-np.pi, np.pi) if rng.random() < 0.15 else yaw
    else:
        yaw, pitch, roll = rng.uniform(-np.pi, np.pi), rng.uniform(-0.05, 0.9), 0.15

    scale = float(rng.uniform(0.45, 0.95) if rng.random() < 0.8 else rng.uniform(0.95, 1.6))
    center = rng.normal(0.5, 0.06 if scale < 1 else 0.1, 2)
    if figure is not None and rng.random() >= 0.4:  # shops show whole figures, and the garment from near
        scale, center[1] = rng.uniform(1.1, 1.9), rng.uniform(0.45, 0.85)

    shelf = kind in ("box", "carton", "can", "bottle", "pouch", "mesh") and rng.random() < 0.3
    occluders = tuple(_occluder(rng) for _ in range(int(rng.choice([0, 0, 0, 1, 2]))))
    return Context(
        background=sample_background(rng, kind, assets), yaw=float(yaw), pitch=float(pitch),
        roll=float(rng.normal(0, roll)), scale=float(scale), center=(float(center[0]), float(center[1])),
        angle=float(rng.uniform(8, 45)), light=sample_light(rng), shadow=float(rng.uniform(0.2, 0.8)),
        repeat=float(scale * rng.uniform(0.55, 0.95)) if shelf else 0.0, figure=figure, occluders=occluders,
        blur=float(rng.choice([0, 0, 0.6, 1.2])), noise=float(rng.uniform(0, 6)), seed=int(rng.integers(1 << 31)),
    )  # fmt: skip


def _occluder(rng: Generator) -> Occluder:
    """A random occluder near the edge of the frame, which leaves most of the object visible."""
    width, height = rng.uniform(0.1, 0.4, 2)
    if rng.random() < 0.5:
        left, top = rng.choice([rng.uniform(-0.15, 0.05), rng.uniform(0.75, 0.95)]), rng.uniform(-0.1, 0.9)
    else:
        left, top = rng.uniform(-0.1, 0.9), rng.choice([rng.uniform(-0.25, 0.0), rng.uniform(0.75, 0.95)])
    return Occluder(
        float(left), float(top), float(width), float(height), bool(rng.random() < 0.5), int(rng.integers(1 << 31))
    )


@lru_cache(maxsize=64)
def draw_background(background: Background, assets: Assets, size: int) -> Picture:
    """The background as a picture (size, size, 3), from a cache."""
    rng = stream(background.seed, "background")
    if background.kind == "photo" and assets.photos:
        pool = assets.scenes if assets.scenes and rng.random() < 0.6 else assets.photos
        return _resized(cut(rng, pool), size)
    if background.kind == "studio":
        base = np.array(((246,) * 3, (int(rng.integers(80, 235)),) * 3, color(rng))[rng.choice(3, p=[0.45, 0.3, 0.25])])
        slope = np.linspace(1 - rng.uniform(0, 0.25), 1, size)[:, None, None]
        return (base * slope * np.ones((size, size, 1))).clip(0, 255).astype(np.uint8)

    image = Image.fromarray(_room(rng, assets, size))
    if background.kind == "clutter":
        for _ in range(rng.integers(3, 8)):
            sprite, alpha = _sprite(int(rng.integers(64)), assets, size)
            side = int(rng.uniform(0.25, 0.7) * size)
            left, top = int(rng.uniform(-0.2, 0.9) * size), int(rng.uniform(-0.1, 0.8) * size)
            image.paste(Image.fromarray(_resized(sprite, side)), (left, top), Image.fromarray(_resized(alpha, side)))
        if rng.random() < 0.4:
            image = image.filter(ImageFilter.GaussianBlur(size / 224 * rng.uniform(1, 3)))

    return np.array(image)


def _room(rng: Generator, assets: Assets, size: int) -> Picture:
    """A picture of a wall above a floor or table top in perspective."""
    wall, floor = (_resized(_cover(rng, assets), size) for _ in range(2))
    edge = int(size * rng.uniform(0.25, 0.75))
    picture = wall.copy()
    depth = np.arange(1, size - edge + 1, dtype=np.float64) / max(size - edge, 1)
    rows = ((1 / (0.15 + depth) * 0.9) % 1 * (size - 1)).astype(int)
    across = (np.arange(size) - size / 2)[None] / (0.35 + depth)[:, None] * 0.7 + size / 2 + rng.uniform(0, size)
    picture[edge:] = floor[rows[:, None], across.astype(int) % size]
    shade = 1 - 0.35 * np.exp(-np.abs(np.arange(size) - edge) / (0.08 * size))[:, None, None]
    blotches = 0.85 + 0.3 * smooth_noise(rng, size, 3)[..., None]
    return (picture * shade * blotches).clip(0, 255).astype(np.uint8)


def _cover(rng: Generator, assets: Assets) -> Texture:
    if assets.surfaces and rng.random() < 0.6:
        return cut(rng, assets.surfaces)
    names = ("wood", "cloth", "paint", "paint", "glaze")
    return MATERIALS[names[rng.integers(len(names))]](Dice(int(rng.integers(1 << 31))), assets.photos)


@lru_cache(maxsize=64)
def _sprite(number: int, assets: Assets, size: int) -> tuple[Picture, Picture]:
    """Color and coverage of one of the 64 objects that lie in cluttered rooms."""
    rng = stream(number, "sprite")
    kinds = [k for k in assets.kinds if k not in ("garment", "compound")]
    identity = Identity(kinds[int(rng.integers(len(kinds)))], int(rng.integers(1 << 31)))
    pose = Pose(turn(rng.uniform(-3, 3), rng.uniform(0, 0.7), rng.normal(0, 0.3)), 0.9, angle=25)
    rendered, alpha = renderer(size).draw(assets.build(identity), pose, sample_light(rng))
    return (rendered * 255).astype(np.uint8), (alpha * 255).astype(np.uint8)


def _resized(picture: Picture, size: int) -> Picture:
    return np.array(Image.fromarray(np.ascontiguousarray(picture)).resize((size, size)))


def occlude(picture: Floats, masks: Sequence[Floats], occluders: Sequence[Occluder], assets: Assets) -> None:
    """Draw the occluders into a picture (H, W, 3) and clear the masks (H, W) there, in place."""
    height, width = picture.shape[:2]
    for o in occluders:
        rng = stream(o.seed, "occluder")
        y, x = np.mgrid[:height, :width]
        u, v = ((x + 0.5) / width - o.left) / o.width, ((y + 0.5) / height - o.top) / o.height
        inside = (u >= 0) & (u < 1) & (v >= 0) & (v < 1)
        if o.round:
            inside &= (u - 0.5) ** 2 + (v - 0.5) ** 2 < 0.25
        texture = _cover(rng, assets)
        rows = (v[inside] * (texture.shape[0] - 1)).astype(int)
        picture[inside] = texture[rows, (u[inside] * (texture.shape[1] - 1)).astype(int)].astype(np.float32) / 255
        for mask in masks:
            mask[inside] = 0
