"""Identities, contexts, and pictures of the one in the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from idmetric.data.world import materials
from idmetric.data.world.meshes import Mesh, load_obj, load_texture, make_mesh, simplify
from idmetric.data.world.render import Floats, Light, render
from idmetric.data.world.shapes import SHAPES

Picture = NDArray[np.uint8]

# which materials suit a shape
_SUITS = {
    "box": ("package", "package", "package", "photo", "paint"), "carton": ("package",),
    "can": ("package", "package", "paint"), "bottle": ("package", "package", "paint", "photo"),
    "pouch": ("package", "package", "photo"), "fruit": ("paint", "photo", "paint"),
    "cup": ("paint", "package", "cloth"), "superellipsoid": ("package", "paint", "photo", "cloth"),
    "animal": ("fur", "fur", "paint"), "car": ("paint", "fur", "package"), "garment": ("cloth",),
    "compound": ("paint", "photo", "package"),
}  # fmt: skip
_ODDS = {"box": 5, "carton": 3, "can": 3, "bottle": 4, "pouch": 3, "fruit": 3, "cup": 2, "superellipsoid": 2,
         "animal": 3, "car": 2, "garment": 6, "compound": 2, "mesh": 4, "shape": 2}  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """A thing: its shape and what it is made of."""

    kind: str
    mesh: Mesh
    texture: Picture
    specular: float


@dataclass(frozen=True)
class Context:
    """Everything about a picture that is not the thing in it."""

    background: Picture
    rotation: Floats
    scale: float
    centre: tuple[float, float]
    light: Light
    perspective: float
    repeat: float  # distance of copies to the left and right, fractions of the frame; 0 = none
    occluder: tuple[float, float, float, float, int] | None  # left, top, width, height, grey value
    blur: float
    noise: float
    seed: int


class Assets:
    """Meshes and photos of a folder with meshes/, shapes/, backgrounds/, textures/ and produce/; loaded when used."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern)) if self.folder else []

    @cached_property
    def photos(self) -> list[Picture]:
        """Backgrounds, textures and every fourth produce photo, at most 256 pixels a side."""
        files = self._files("backgrounds/*") + self._files("textures/*") + self._files("produce/*/*")[::4]
        return [load_texture(p) for p in files]

    @cached_property
    def meshes(self) -> list[tuple[Mesh, Picture]]:
        """Textured objects: the first OBJ file of a folder that has one texture image."""
        found = []
        for folder in self._files("meshes/*"):
            images = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in (".jpg", ".jpeg", ".png")]
            for path in sorted(folder.glob("*.obj")):
                mesh = load_obj(path)
                if mesh is not None and images:
                    found.append((simplify(mesh), load_texture(images[0])))
                    break
        return found

    @cached_property
    def shapes(self) -> list[Mesh]:
        """Shapes with texture coordinates but no texture."""
        loaded = (load_obj(p) for p in self._files("shapes/*.obj"))
        return [simplify(m) for m in loaded if m is not None]


def sample_identity(rng: Generator, assets: Assets) -> Identity:
    """A random thing."""
    odds = {k: v for k, v in _ODDS.items() if k not in ("mesh", "shape") or assets.folder is not None}
    kind = str(rng.choice(list(odds), p=np.array(list(odds.values())) / sum(odds.values())))
    specular = float(rng.choice([0.0, 0.1, 0.3]))
    if kind == "mesh" and assets.meshes:
        mesh, texture = assets.meshes[rng.integers(len(assets.meshes))]
        if rng.random() < 0.8:  # a few dozen meshes make many identities
            texture = materials.shift_hue(texture, rng.uniform(0.08, 0.92))
        return Identity(kind, _stretch(mesh, rng, 0.15), texture, specular)
    if kind == "shape" and assets.shapes:
        mesh = assets.shapes[rng.integers(len(assets.shapes))]
        texture = _material(rng, assets, ("package", "photo", "paint"))
        return Identity(kind, _stretch(mesh, rng, 0.2), texture, specular)
    kind = kind if kind in SHAPES else "box"
    mesh = SHAPES[kind](rng)
    return Identity(kind, mesh, _material(rng, assets, _SUITS[kind]), 0.0 if kind == "garment" else specular)


def _material(rng: Generator, assets: Assets, names: tuple[str, ...]) -> Picture:
    return materials.MATERIALS[names[rng.integers(len(names))]](rng, assets.photos)


def _stretch(mesh: Mesh, rng: Generator, amount: float) -> Mesh:
    return make_mesh(mesh.vertices * rng.uniform(1 - amount, 1 + amount, 3), mesh.faces, mesh.uv)


def edit_identity(identity: Identity, rng: Generator, assets: Assets) -> Identity:
    """Another thing much like this one: other colours, another print, other proportions, or another material."""
    choice = rng.random()
    suits = _SUITS.get(identity.kind, ("package", "photo", "paint"))
    grey = np.ptp(identity.texture.astype(np.int16), axis=2).mean() < 25  # turning its hues would show nothing
    if choice < 0.4 and not grey:
        return replace(identity, texture=materials.shift_hue(identity.texture, rng.uniform(0.12, 0.88)))
    if choice < 0.5:  # the print stays, the proportions change, plainly
        mesh = identity.mesh
        factors = np.ones(3, dtype=np.float32)
        factors[rng.integers(2)] = rng.choice([0.6, 0.7, 1.4, 1.6])
        return replace(identity, mesh=make_mesh(mesh.vertices * factors, mesh.faces, mesh.uv))
    if choice < 0.75:
        # a patch of another design over the middle, where it is seen
        other = Image.fromarray(_material(rng, assets, suits))
        base = Image.fromarray(np.ascontiguousarray(identity.texture))
        w, h = base.size
        piece = other.resize((max(1, w // 2), max(1, h // 2)))
        for x in (0, w // 2):
            base.paste(piece, (x, int(rng.uniform(0, h / 2))))
        return replace(identity, texture=np.asarray(base))
    return replace(identity, texture=_material(rng, assets, suits))


def _turn(yaw: float, pitch: float, roll: float) -> Floats:
    cy, sy, cp, sp, cr, sr = (f(a) for a in (yaw, pitch, roll) for f in (np.cos, np.sin))
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_x = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    about_z = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
    turned: Floats = (about_z @ about_x @ about_y).astype(np.float32)
    return turned


def sample_context(rng: Generator, kind: str, assets: Assets, size: int) -> Context:
    """A random context for a thing of this kind."""
    if kind == "garment":
        yaw, pitch, roll = rng.uniform(-0.6, 0.6) + (np.pi if rng.random() < 0.4 else 0), rng.uniform(-0.1, 0.3), 0.1
    elif kind in ("box", "carton", "can", "bottle", "pouch", "mesh", "shape"):  # mostly seen from the front
        yaw, pitch, roll = rng.normal(0, 0.55), rng.uniform(-0.15, 0.6), 0.15
        yaw = rng.uniform(-np.pi, np.pi) if rng.random() < 0.15 else yaw
    else:
        yaw, pitch, roll = rng.uniform(-np.pi, np.pi), rng.uniform(-0.1, 1.0), 0.15
    toward = rng.normal(0, 0.6, 3) + np.array([0, 0.7, 1.2])
    colour = 1 + rng.normal(0, 0.05, 3)
    light = Light(
        (toward / np.linalg.norm(toward)).astype(np.float32), (rng.uniform(0.75, 1.2) * colour).astype(np.float32),
        float(rng.uniform(0.35, 0.8)), 0.0,
    )  # fmt: skip
    scale = float(rng.uniform(0.45, 1.0) if rng.random() < 0.75 else rng.uniform(1.0, 1.7))
    shelf = kind not in ("garment", "animal", "car", "cup") and rng.random() < 0.35
    occluder = None
    if rng.random() < 0.15:
        left, top = rng.uniform(-0.1, 0.8, 2)
        width, height = rng.uniform(0.1, 0.35, 2)
        occluder = (float(left), float(top), float(width), float(height), int(rng.integers(20, 236)))
    centre = rng.normal(0.5, 0.06 if scale < 1 else 0.12, 2)
    return Context(
        background=_background(rng, kind, assets, size), rotation=_turn(yaw, pitch, rng.normal(0, roll)), scale=scale,
        centre=(float(centre[0]), float(centre[1])), light=light, perspective=float(rng.uniform(0, 0.4)),
        repeat=float(scale * rng.uniform(0.55, 0.95)) if shelf else 0.0, occluder=occluder,
        blur=float(rng.choice([0, 0, 0.6, 1.0])), noise=float(rng.uniform(0, 6)), seed=int(rng.integers(1 << 31)),
    )  # fmt: skip


def _background(rng: Generator, kind: str, assets: Assets, size: int) -> Picture:
    choice = rng.random()
    if choice < (0.6 if kind == "garment" else 0.3):  # a studio: white, grey or a plain colour, gently shaded
        light = rng.choice([0, 1, 2], p=[0.5, 0.25, 0.25])
        base = ((245,) * 3, (int(rng.integers(80, 230)),) * 3, materials.colour(rng))[light]
        slope = np.linspace(1 - rng.uniform(0, 0.25), 1, size)[:, None, None]
        return (np.array(base) * slope * np.ones((size, size, 1))).clip(0, 255).astype(np.uint8)
    if choice < 0.8 and assets.photos:
        picture = materials.photo(rng, assets.photos)
        return np.asarray(Image.fromarray(np.ascontiguousarray(picture)).resize((size, size)))
    # clutter: flat things of many designs lying about
    canvas = Image.fromarray(materials.paint(rng)).resize((size, size))
    for _ in range(rng.integers(3, 9)):
        w, h = (int(x) for x in rng.integers(size // 6, size // 2, 2))
        thing = materials.package(rng, assets.photos) if rng.random() < 0.5 else materials.cloth(rng)
        tile = Image.fromarray(thing).resize((w, h)).rotate(rng.uniform(-15, 15), expand=True)
        canvas.paste(tile, (int(rng.integers(-size // 6, size)), int(rng.integers(-size // 6, size))))
    return np.asarray(canvas)


def render_scene(identity: Identity, context: Context, size: int) -> tuple[Picture, Picture]:
    """A picture (size, size, 3) uint8 of the thing in the context, and its mask (size, size) uint8, 255 = thing."""
    c = context
    light = replace(c.light, specular=identity.specular)
    colour, alpha = render(
        identity.mesh, identity.texture, c.rotation, c.scale, c.centre, light, size, c.perspective
    )  # fmt: skip
    picture = context.background.astype(np.float32) / 255
    mask = alpha.copy()
    if context.repeat:  # copies beside it, behind it
        step = round(context.repeat * size)
        for shift in range(-2 * step, 2 * step + 1, step):
            if shift and abs(shift) < size:
                moved_colour, moved = _shift(colour, shift), _shift(alpha, shift)
                picture = picture * (1 - moved[..., None]) + moved_colour * moved[..., None]
                mask = np.maximum(mask, moved)
    picture = picture * (1 - alpha[..., None]) + colour * alpha[..., None]
    if context.occluder:
        left, top, width, height = (round(v * size) for v in context.occluder[:4])
        where = np.s_[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
        picture[where] = context.occluder[4] / 255
        mask[where] = 0
    image = Image.fromarray((picture.clip(0, 1) * 255).astype(np.uint8))
    if context.blur:
        image = image.filter(ImageFilter.GaussianBlur(context.blur))
    noise = np.random.default_rng(context.seed).normal(0, context.noise, (size, size, 3))
    noisy = (np.asarray(image, dtype=np.float32) + noise).clip(0, 255).astype(np.uint8)
    return noisy, (mask * 255).astype(np.uint8)


def _shift(x: Floats, columns: int) -> Floats:
    moved = np.zeros_like(x)
    if columns > 0:
        moved[:, columns:] = x[:, :-columns]
    else:
        moved[:, :columns] = x[:, -columns:]
    return moved
