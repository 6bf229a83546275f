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


Rgb = tuple[int, ...]


@dataclass(frozen=True)
class Badge:
    """The look of an identity: its shapes, and their colors in red, green, blue."""

    corners: int
    emblem_corners: int
    body: Rgb
    emblem: Rgb

    def edited(self, strength: float, rng: np.random.Generator) -> Badge:
        """Another badge at strength 1; less: the same shapes, with colors moved by this share to those of the other."""
        goal = random_badge(rng)
        if strength == 1:
            return goal
        body = _moved(self.body, goal.body, strength)
        emblem = _moved(self.emblem, goal.emblem, strength)
        return replace(self, body=body, emblem=emblem)


def _moved(color: Rgb, goal: Rgb, strength: float) -> Rgb:
    """A color moved towards another one."""
    start = np.array(color)
    end = np.array(goal)
    moved = start + strength * (end - start)
    return tuple(moved.astype(int).tolist())


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
            row_id = f"{key}/{name}"
            cells["path"] = f"{row_id}.png"
            picture.save(folder / cells["path"])
            cells["mask"] = f"{row_id}-mask.png"
            mask.save(folder / cells["mask"])
            if role == "part-edit":
                cells["part_mask"] = f"{row_id}-part-mask.png"
                emblem_mask.save(folder / cells["part_mask"])
                part = np.asarray(emblem_mask).sum()
                whole = np.asarray(mask).sum()
                cells["oracle"] = 1 - float(part / whole)
            facts = {
                "id": row_id,
                "identity": key + identity,
                "role": role,
                "category": "badge",
                "dataset": f"painted-{self.seed}",
                "seed": self.seed,
                "background": str(context.background),
                "engine": __name__,
            }
            rows.append(cells | facts)

        for view in range(self.views):
            name = f"view-{view}"
            parent = f"{key}/{name}"
            rng = self._rng(number, name)
            context = random_context(rng)
            add(name, badge, context, "real")

            about = {"parent": parent, "parameters": {"strength": self.strength}}
            if self.distractors:
                distractor = f"near-{self.strength:.2f}"  # one for all views
                look = badge.edited(self.strength, self._rng(number, "near"))
                add(f"{name}-{distractor}", look, context, "distractor", f"~{distractor}", **about)
            if self.edits:
                edit = f"{name}-edit-{self.strength:.2f}"
                look = badge.edited(self.strength, self._rng(number, edit))
                add(edit, look, context, "identity-edit", f"~{edit}", **about)
            if self.parts and view < 2:
                rng = self._rng(number, "part")
                look = replace(badge, emblem=random_badge(rng).emblem)
                add(f"{name}-part", look, context, "part-edit", "~part", parent=parent)
            if self.contexts:
                rng = self._rng(number, f"{name}-context")
                context = random_context(rng)
                add(f"{name}-context", badge, context, "context-edit", parent=parent)
        return rows

    def _rng(self, number: int, purpose: str) -> np.random.Generator:
        purpose_number = zlib.crc32(purpose.encode())
        return np.random.default_rng((self.seed, number, purpose_number))


def random_badge(rng: np.random.Generator) -> Badge:
    """Draw the look of an identity."""
    body, emblem = rng.integers(0, 256, (2, 3)).tolist()
    corners, emblem_corners = rng.integers(3, 9, 2).tolist()
    return Badge(corners, emblem_corners, tuple(body), tuple(emblem))


def random_context(rng: np.random.Generator) -> Context:
    """Draw the context of a view."""
    lowest = (0.4, 0.4, 0.25, -30)
    highest = (0.6, 0.6, 0.4, 30)
    x, y, radius, rotation = rng.uniform(lowest, highest).tolist()
    background = int(rng.integers(1 << 31))
    return Context(x, y, radius, rotation, background)


def draw(badge: Badge, context: Context, size: int) -> tuple[Image.Image, Image.Image, Image.Image]:
    """Draw a picture (RGB), the mask of the badge and the mask of its emblem (both of mode "1")."""
    center = (context.x * size, context.y * size)
    radius = context.radius * size
    outline = (*center, radius)
    mask = Image.new("1", (size, size))
    drawing = ImageDraw.Draw(mask)
    drawing.regular_polygon(outline, badge.corners, context.rotation, fill=1)

    emblem_outline = (*center, radius * 0.4)
    emblem_mask = Image.new("1", (size, size))
    drawing = ImageDraw.Draw(emblem_mask)
    drawing.regular_polygon(emblem_outline, badge.emblem_corners, context.rotation, fill=1)

    rng = np.random.default_rng(context.background)
    tiles = rng.integers(0, 256, (4, 4, 3)).astype(np.uint8)
    picture = Image.fromarray(tiles)
    picture = picture.resize((size, size), Image.Resampling.BICUBIC)
    picture.paste(badge.body, mask=mask)
    picture.paste(badge.emblem, mask=emblem_mask)
    return picture, mask, emblem_mask
