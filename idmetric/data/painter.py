"""Painted identities for smoke runs, examples and tests: pictures of badges, made in milliseconds, without downloads.

An identity is a colored badge with an emblem. A context is its place, size and rotation, and the background. A seed
and the numbers of identity and view decide both.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from idmetric.data.manifest import checked, write
from idmetric.metric.files import writing

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Badge:
    """The look of an identity: its shapes, and their colors in red, green, blue."""

    corners: int
    emblem_corners: int
    body: tuple[int, ...]
    emblem: tuple[int, ...]

    def edited(self, strength: float, rng: np.random.Generator) -> Badge:
        """Another badge at strength 1; less: the same shapes, with colors moved by this share to those of the other."""
        other = random_badge(rng)
        if strength == 1:
            return other
        colors = np.array([self.body, self.emblem])
        goals = np.array([other.body, other.emblem])
        moved = colors + strength * (goals - colors)
        body, emblem = moved.astype(int).tolist()
        return replace(self, body=tuple(body), emblem=tuple(emblem))


@dataclass(frozen=True)
class Context:
    """Everything else: center and radius in sides of the picture, rotation in degrees, seed of the background."""

    x: float
    y: float
    radius: float
    rotation: float
    background: int


@dataclass(frozen=True)
class Painter:
    """Paints pictures, masks and a manifest.

    Attributes:
        seed: of all random choices. size: side of the pictures in pixels. views: pictures of each identity.
        distractors: in each view's context, paint another badge, the same one for all views. edits: a new one for each.
        strength: how much these differ, in (0, 1]: 1 = another badge, less = the same outline and nearer colors.
        parts: paint the first two views again, with a recolored emblem. contexts: paint each view in another context.
    """

    seed: int = 0
    size: int = 224
    views: int = 3
    strength: float = 1.0
    distractors: bool = False
    edits: bool = False
    parts: bool = False
    contexts: bool = False

    def paint(self, folder: Path, count: int) -> pd.DataFrame:
        """Paint identities 0 to `count` - 1 into a folder, with manifest.parquet; existing files are replaced."""
        rows = []
        with writing(folder):
            for number in range(count):
                rows += self._paint_identity(folder, number)
        manifest = checked(rows, folder)
        write(manifest, folder / "manifest.parquet")
        return manifest

    def _paint_identity(self, folder: Path, number: int) -> list[dict[str, Any]]:
        key = f"painted-{self.seed}-{number:06d}"
        (folder / key).mkdir(parents=True, exist_ok=True)
        badge = random_badge(self._rng(number, "identity"))
        rows: list[dict[str, Any]] = []

        def add(name: str, look: Badge, context: Context, role: str, identity: str = "", **cells: Any) -> None:
            picture, mask, emblem_mask = draw(look, context, self.size)
            images = {"path": (f"{key}/{name}.png", picture), "mask": (f"{key}/{name}-mask.png", mask)}
            if role == "part-edit":
                images["part_mask"] = (f"{key}/{name}-part-mask.png", emblem_mask)
                part = np.asarray(emblem_mask).sum()
                cells["oracle"] = 1 - float(part / np.asarray(mask).sum())
            for column, (path, image) in images.items():
                image.save(folder / path)
                cells[column] = path
            cells |= {"id": f"{key}/{name}", "identity": key + identity, "role": role, "category": "badge"}
            cells |= {"dataset": f"painted-{self.seed}", "seed": self.seed, "background": str(context.background)}
            rows.append(cells | {"engine": __name__})

        for view in range(self.views):
            name, parent = f"view-{view}", f"{key}/view-{view}"
            context = random_context(self._rng(number, name))
            add(name, badge, context, "real")

            about = {"parent": parent, "parameters": {"strength": self.strength}}
            if self.distractors:
                near = f"near-{self.strength:.2f}"  # one for all views
                look = badge.edited(self.strength, self._rng(number, "near"))
                add(f"{name}-{near}", look, context, "distractor", f"~{near}", **about)
            if self.edits:
                edit = f"{name}-edit-{self.strength:.2f}"
                look = badge.edited(self.strength, self._rng(number, edit))
                add(edit, look, context, "identity-edit", f"~{edit}", **about)
            if self.parts and view < 2:
                look = replace(badge, emblem=random_badge(self._rng(number, "part")).emblem)
                add(f"{name}-part", look, context, "part-edit", "~part", parent=parent)
            if self.contexts:
                context = random_context(self._rng(number, f"{name}-context"))
                add(f"{name}-context", badge, context, "context-edit", parent=parent)
        return rows

    def _rng(self, number: int, purpose: str) -> np.random.Generator:
        return np.random.default_rng((self.seed, number, zlib.crc32(purpose.encode())))


def random_badge(rng: np.random.Generator) -> Badge:
    """Draw the look of an identity."""
    body, emblem = rng.integers(0, 256, (2, 3)).tolist()
    corners, emblem_corners = rng.integers(3, 9, 2).tolist()
    return Badge(corners, emblem_corners, tuple(body), tuple(emblem))


def random_context(rng: np.random.Generator) -> Context:
    """Draw the context of a view."""
    x, y, radius, rotation = rng.uniform((0.4, 0.4, 0.25, -30), (0.6, 0.6, 0.4, 30)).tolist()
    return Context(x, y, radius, rotation, int(rng.integers(1 << 31)))


def draw(badge: Badge, context: Context, size: int) -> tuple[Image.Image, Image.Image, Image.Image]:
    """Draw a picture (RGB), the mask of the badge and the mask of its emblem (both of mode "1")."""
    center = (context.x * size, context.y * size)
    radius = context.radius * size
    mask = Image.new("1", (size, size))
    outline = (*center, radius)
    ImageDraw.Draw(mask).regular_polygon(outline, badge.corners, context.rotation, fill=1)
    emblem_mask = Image.new("1", (size, size))
    inner = (*center, radius * 0.4)
    ImageDraw.Draw(emblem_mask).regular_polygon(inner, badge.emblem_corners, context.rotation, fill=1)

    rng = np.random.default_rng(context.background)
    tiles = rng.integers(0, 256, (4, 4, 3)).astype(np.uint8)
    picture = Image.fromarray(tiles).resize((size, size), Image.Resampling.BICUBIC)
    picture.paste(badge.body, mask=mask)
    picture.paste(badge.emblem, mask=emblem_mask)
    return picture, mask, emblem_mask
