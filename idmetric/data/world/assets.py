"""Meshes and photos that objects are built from, and the building of objects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from idmetric.data.world import garments
from idmetric.data.world.dice import Blend, stream
from idmetric.data.world.identity import ODDS, Identity
from idmetric.data.world.materials import Texture
from idmetric.data.world.meshes import Mesh, fit, load_obj, load_texture, place, simplify
from idmetric.data.world.render import Part
from idmetric.data.world.shapes import SHAPES
from idmetric.data.world.solids import Solid
from idmetric.data.world.surfaces import Surfaces, dress

_FOLDERS = ("meshes", "shapes", "backgrounds", "textures", "produce")
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")  # more extensions would change the pictures of existing seeds
_LOADED = 512  # photos kept in memory


class Photos(Sequence[Texture]):
    """Image files as textures of at most `size` pixels a side, loaded on demand."""

    def __init__(self, paths: Sequence[Path], size: int = 256) -> None:
        self.paths, self.size = tuple(paths), size
        self._load = lru_cache(maxsize=_LOADED)(load_texture)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Photos(self.paths[index], self.size)
        return self._load(self.paths[index], self.size)


class Assets:
    """Meshes and photos that objects are built from, loaded on demand.

    Args:
        folder: holds any of meshes/, shapes/, backgrounds/, textures/ and produce/. Without it, objects are purely
            procedural, and the kinds "mesh" and "shape" do not occur.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None and folder.is_dir() and not any((folder / name).is_dir() for name in _FOLDERS):
            raise ValueError(f"{folder} holds none of the folders {', '.join(_FOLDERS)}")
        self.folder = folder
        self._built = lru_cache(maxsize=24)(self._build)

    def __reduce__(self) -> tuple[Any, ...]:  # pickles the folder, not the loaded files
        return shared_assets, (self.folder,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Assets) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    @property
    def kinds(self) -> dict[str, float]:
        """The kinds of objects that can be built, and the probability of each."""
        found = {k: v for k, v in ODDS.items() if (k != "mesh" or self.meshes) and (k != "shape" or self.shapes)}
        total = sum(found.values())
        return {k: v / total for k, v in found.items()}

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern)) if self.folder else []

    def _images(self, pattern: str) -> list[Path]:
        return [p for p in self._files(pattern) if p.suffix.lower() in _IMAGES and p.name[0] != "."]

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
            images = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in _IMAGES and p.name[0] != "."]
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


@lru_cache(maxsize=4)
def shared_assets(folder: Path | None) -> Assets:
    """The assets of a folder, loaded once per process."""
    return Assets(folder)
