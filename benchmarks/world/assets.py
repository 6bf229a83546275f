"""Meshes and photos that objects are built from, and the building of objects with their textures."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw

from world import garments
from world.identity import ODDS, Blend, Dice, Edit, Identity, stream
from world.materials import MATERIALS, SURFACES, Texture, color, cut, earthy, paint, shift_hue
from world.meshes import Mesh, Solid, fit, load_obj, load_texture, place, simplify
from world.render import Part
from world.shapes import SHAPES

_FOLDERS = ("meshes", "shapes", "backgrounds", "textures", "produce")
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")  # more extensions would change the pictures of existing seeds
FILES = (*IMAGES, ".obj")  # extensions of all files that are read
_LOADED = 512  # photos kept in memory


# materials that suit the main surface of a kind, and its second surface
_MAIN: Mapping[str, tuple[str, ...]] = {
    "box": ("package", "package", "package", "photo", "wood"), "carton": ("package",),
    "book": ("package", "photo", "cloth"), "can": ("package", "package", "paint"),
    "bottle": ("package", "package", "paint", "glaze"), "vase": ("glaze", "glaze", "paint", "wood"),
    "pouch": ("package", "package", "photo"), "fruit": ("skin",), "bananas": ("skin",),
    "cup": ("glaze", "glaze", "paint", "package"), "teapot": ("glaze", "paint"), "pan": ("paint", "paint", "glaze"),
    "lamp": ("cloth", "paint", "glaze"), "chair": ("wood", "paint", "cloth"), "bag": ("cloth", "paint", "photo"),
    "soap": ("paint", "package", "photo"), "animal": ("fur",), "bear": ("fur", "fur", "cloth"),
    "robot": ("paint", "package"), "car": ("paint", "paint", "package"), "shoe": ("paint", "cloth", "photo"),
    "hat": ("cloth", "paint"), "compound": ("paint", "photo", "wood", "glaze"), "garment": ("garment",),
    "mesh": ("package", "package", "photo"), "shape": ("package", "photo", "paint"),
}  # fmt: skip
_SECOND: Mapping[str, tuple[str, ...]] = {
    "animal": ("fur",), "bear": ("fur", "cloth"), "chair": ("wood", "paint"), "lamp": ("wood", "glaze", "paint"),
    "cup": ("paint", "glaze"), "bag": ("cloth", "paint"), "shoe": ("paint", "cloth"),
}  # fmt: skip
_ROUGH = {"metal": 0.35, "glass": 0.15, "pale": 0.5, "dark": 0.6, "green": 0.6, "accent": 0.6}
_LABELED = ("bottle", "can", "cup", "vase", "fruit", "bag", "car", "chair", "soap", "robot", "lamp", "hat")


class Photos(Sequence[Texture]):
    """Image files as textures of at most `size` pixels a side, loaded on demand."""

    def __init__(self, paths: Sequence[Path], size: int = 256) -> None:
        self.paths, self.size = tuple(paths), size
        self._load = lru_cache(maxsize=_LOADED)(load_texture)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        return self._load(self.paths[index], self.size)


class Assets:
    """Meshes and photos that objects are built from, loaded on demand.

    Args:
        folder: holds any of meshes/, shapes/, backgrounds/, textures/ and produce/. Without it, objects are purely
            procedural, and the kinds "mesh" and "shape" do not occur.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None and not any((folder / name).is_dir() for name in _FOLDERS):
            raise ValueError(f"{folder} is not a folder with any of the folders {', '.join(_FOLDERS)}")
        self.folder = folder
        self._built = lru_cache(maxsize=24)(self._build)

    @property
    def kinds(self) -> dict[str, float]:
        """The kinds of objects that can be built, and the probability of each."""
        found = {k: v for k, v in ODDS.items() if (k != "mesh" or self.meshes) and (k != "shape" or self.shapes)}
        total = sum(found.values())
        return {k: v / total for k, v in found.items()}

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern)) if self.folder else []

    def _images(self, pattern: str) -> list[Path]:
        return [p for p in self._files(pattern) if p.suffix.lower() in IMAGES and p.name[0] != "."]

    @cached_property
    def photos(self) -> Photos:
        """All backgrounds and textures and every fourth produce photo, at most 256 pixels a side."""
        return Photos([*self.scenes.paths, *self.surfaces.paths, *self._images("produce/*/*")[::4]])

    @cached_property
    def scenes(self) -> Photos:
        """Background photos, at most 384 pixels a side."""
        return Photos(self._images("backgrounds/*"), 384)

    @cached_property
    def surfaces(self) -> Photos:
        """Photos of surfaces such as wood, tiles, plaster and cloth."""
        return Photos(self._images("textures/*"))

    @cached_property
    def meshes(self) -> list[tuple[Mesh, Texture]]:
        """Textured objects: the first OBJ file with faces of every folder that has a texture image."""
        found = []
        for folder in filter(Path.is_dir, self._files("meshes/*")):
            images = self._images(f"meshes/{glob.escape(folder.name)}/*")
            for path in sorted(folder.glob("*.obj")):
                mesh = load_obj(path)
                if mesh is not None and images:
                    found.append((simplify(mesh), load_texture(images[0])))
                    break
        return found

    @cached_property
    def shapes(self) -> list[Mesh]:
        """Meshes without a texture."""
        loaded = (load_obj(p) for p in self._files("shapes/*.obj"))
        return [simplify(m) for m in loaded if m is not None]

    def build(self, identity: Identity, figure: int | None = None) -> list[Part]:
        """The parts of an object, which together fit a unit cube.

        Args:
            figure: number of the figure that wears a garment; the figure's own parts are named "figure".
        """
        return list(self._built(identity, figure if identity.kind == "garment" else None))

    def _build(self, identity: Identity, figure: int | None) -> tuple[Part, ...]:
        solids, body = self._solids(identity, figure)
        meshes = fit([s.mesh for s in (*solids, *body)])
        surfaces = Surfaces(identity, self)
        parts = []
        for solid, mesh in zip(solids, meshes, strict=False):
            texture, rough, metallic = surfaces(solid)
            region = surfaces.label if texture is surfaces.main else None
            parts.append(Part(solid.name, mesh, texture, rough, metallic, region))
        for solid, mesh in zip(body, meshes[len(solids) :], strict=True):
            parts.append(Part("figure", mesh, dress(solid.slot, figure or 0), 0.75))
        return tuple(parts)

    def _solids(self, identity: Identity, figure: int | None) -> tuple[list[Solid], list[Solid]]:
        seed, other, amount = identity.seed, identity.seed, 0.0
        for edit in identity.edits:
            if edit.what in ("shape", "all"):
                other, amount = edit.seed, edit.strength
        dial = Blend(seed, other, amount)
        if identity.kind == "garment":
            cut_ = garments.cut(dial)
            return (garments.flat(cut_), []) if figure is None else garments.worn(cut_, stream(figure, "pose"))

        if identity.kind in ("mesh", "shape"):
            pick = stream(seed, "mesh")
            pool = [m for m, _ in self.meshes] if identity.kind == "mesh" else self.shapes
            mesh = pool[int(pick.integers(len(pool)))]
            return [Solid("body", "main", place(mesh, dial.uniform(0.85, 1.15, 3)))], []

        return SHAPES[identity.kind](dial), []


shared_assets = lru_cache(maxsize=4)(Assets)  # of a folder, loaded once per process


class Surfaces:
    """The textures of an object's material slots after its edits."""

    def __init__(self, identity: Identity, assets: Assets) -> None:
        self.identity, self.assets = identity, assets
        self._made: dict[tuple[str, str], tuple[Texture, float, float]] = {}
        self.label: Any = None
        self.main: Texture | None = None

    def __call__(self, solid: Solid) -> tuple[Texture, float, float]:
        remade = [e for e in self.identity.edits if e.what == "part" and e.part == solid.name]
        key = (solid.slot, solid.name if remade else "")
        if key not in self._made:
            texture, rough, metallic = self._slot(solid.slot, remade[-1].seed if remade else self.identity.seed)
            for edit in self.identity.edits:
                if edit.what in ("color", "all") and edit.strength:
                    texture = _recolor(texture, edit)
            self._made[key] = texture, rough, metallic
            if solid.slot == "main" and self.main is None:
                self.main = texture
        return self._made[key]

    @property
    def _owner(self) -> int:
        """The seed of the materials: that of the last edit that replaced all of them, else the identity's."""
        edits = reversed(self.identity.edits)
        return next((e.seed for e in edits if e.what == "all" and e.strength >= 1), self.identity.seed)

    def _slot(self, slot: str, seed: int) -> tuple[Texture, float, float]:
        identity = self.identity
        if seed == identity.seed:
            seed = self._owner
        if slot not in ("main", "second"):
            return _plain(slot, seed), _ROUGH[slot], 0.7 if slot == "metal" else 0.0

        rng = stream(seed, slot, "material")
        if identity.kind == "mesh" and (seed == identity.seed or rng.random() < 0.5):
            texture, name = self._photographed(seed), "photo"
        else:
            names = (_MAIN if slot == "main" else _SECOND).get(identity.kind, ("paint",))
            name = names[int(rng.integers(len(names)))]
            edits = [(e.seed, e.strength) for e in identity.edits if e.what in ("print", "all")]
            dice = Dice(int(stream(seed, slot).integers(1 << 31)), tuple(edits) if slot == "main" else ())
            texture = MATERIALS[name](dice, self.assets.photos)

        low, high, metal = SURFACES[name]
        if slot == "main":
            texture = self._labeled(texture)
        return texture, float(rng.uniform(low, high)), float(rng.random() < 0.3) * metal

    def _photographed(self, seed: int) -> Texture:
        """The mesh's own texture, the only one that fits it, with hues drawn from the seed and with edits stuck on."""
        texture = self.assets.meshes[int(stream(self.identity.seed, "mesh").integers(len(self.assets.meshes)))][1]
        pick = stream(seed, "hue")
        if pick.random() < 0.8 or seed != self.identity.seed:  # a few dozen meshes make many identities
            texture = shift_hue(texture, pick.uniform(0.08, 0.92))
        for edit in self.identity.edits:
            if edit.what in ("print", "all"):
                texture = _patched(texture, edit, self.assets.photos)
        return texture

    def _labeled(self, texture: Texture) -> Texture:
        """The texture with a label, if the kind may bear one or an edit of the part "label" adds one."""
        seed = self._owner
        own = stream(seed, "label")
        bears = self.identity.kind in _LABELED and own.random() < 0.5
        seeds = [e.seed for e in self.identity.edits if e.what == "part" and e.part == "label"]
        if not bears and not seeds:
            return texture

        rng = stream(seed if bears else seeds[-1], "label place")
        height, wide = texture.shape[0], texture.shape[1] // (2 if self.identity.kind == "garment" else 1)
        w, h = (max(int(x * wide), 2) for x in rng.uniform(0.2, 0.45, 2))
        left = int((wide - w) * rng.uniform(0.35, 0.65))
        top = int((height - h) * rng.uniform(0.25, 0.65))
        prints = tuple((e.seed, e.strength) for e in self.identity.edits if e.what in ("print", "all"))
        design = MATERIALS[("package", "photo", "paint")[int(rng.integers(3))]](
            Dice(seeds[-1]) if seeds else Dice(seed, prints), self.assets.photos
        )
        mask = Image.new("L", (texture.shape[1], height), 0)
        pen = ImageDraw.Draw(mask)
        (pen.ellipse if rng.random() < 0.4 else pen.rectangle)((left, top, left + w - 1, top + h - 1), fill=255)
        base = Image.fromarray(np.ascontiguousarray(texture))
        sheet = Image.new("RGB", base.size)
        sheet.paste(Image.fromarray(np.ascontiguousarray(design)).resize((w, h)), (left, top))
        base.paste(sheet, (0, 0), mask)
        self.label = np.asarray(mask) > 0

        return np.asarray(base)


def _plain(slot: str, seed: int) -> Texture:
    rng = stream(seed, slot)
    if slot == "accent":
        return _flat(color(rng))
    if slot == "green":
        return _flat([rng.integers(30, 90), rng.integers(90, 150), rng.integers(20, 70)])
    ranges = {"metal": (150, 215), "glass": (25, 70), "pale": (205, 245), "dark": (15, 70)}
    return _flat(rng.integers(*ranges[slot]) + rng.integers(-12, 13, 3))


def _flat(c: ArrayLike) -> Texture:
    return np.full((8, 8, 3), np.clip(c, 0, 255), dtype=np.uint8)


def dress(slot: str, figure: int) -> Texture:
    """The texture of a figure's skin, hair or own clothes."""
    rng = stream(figure, slot)
    if slot == "skin":
        tone = np.array([(238, 200, 175), (215, 168, 135), (175, 122, 88), (120, 80, 56), (78, 52, 38)])
        return _flat(tone[rng.integers(len(tone))])
    if slot == "hair":
        return _flat(earthy(rng) if rng.random() < 0.5 else rng.integers(10, 50))
    return _flat(rng.integers(15, 60)) if slot == "dark" else paint(Dice(figure))


def _recolor(texture: Texture, edit: Edit) -> Texture:
    """The texture with hues shifted by up to half the circle; gray pixels get lighter or darker instead."""
    rng = stream(edit.seed, "hue")
    sign = 1 if rng.random() < 0.5 else -1
    turned = shift_hue(texture, sign * 0.5 * edit.strength).astype(np.float32)
    spread = np.ptp(texture.astype(np.int16), axis=2)[..., None]
    gray = np.clip(1 - spread / 50, 0, 1)  # a shift of hue would not change it visibly
    shift = (-1 if texture.mean() > 127 else 1) * 130 * edit.strength
    changed: Texture = (turned + gray * shift).clip(0, 255).astype(np.uint8)
    return changed


def _patched(texture: Texture, edit: Edit, photos: Sequence[Texture]) -> Texture:
    """The texture with a share of it covered by pieces of other designs."""
    image = Image.fromarray(np.ascontiguousarray(texture))
    rng = stream(edit.seed, "patches")
    w, h = image.size

    for k in range(12):
        if k % 2:
            piece = MATERIALS["package"](Dice(edit.seed), photos)
        else:
            piece = cut(rng, photos) if photos else _flat(color(rng))
        left, top = rng.uniform(0, 0.75, 2)
        if k < max(1, round(12 * edit.strength)):
            tile = Image.fromarray(np.ascontiguousarray(piece)).resize((w // 4 + 1, h // 4 + 1))
            image.paste(tile, (int(left * w), int(top * h)))

    return np.asarray(image)
