"""Draw a contact sheet of the procedural world: one object per row, one variant per column.

    PYTHONPATH=benchmarks python benchmarks/world/contact_sheet.py sheet.jpg

Columns: four views; distractors in the first view's context, from another object of its kind to a near-identical one
(strength 1, 0.75, 0.5, 0.3); an edited part and its mask; the first view in front of another background.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from world import World

STRENGTHS = (1.0, 0.75, 0.5, 0.3)
TITLES = ("view", "view", "view", "view", *(f"near {s:g}" for s in STRENGTHS), "part", "part mask", "context")


def main(path: str | Path = "contact_sheet.jpg", rows: int = 12, size: int = 112, seed: int = 3) -> None:
    """Write the sheet to `path`: `rows` objects, pictures of `size` pixels."""
    world = World(seed, None, size)
    sheet = [np.concatenate(row(world, number), 1) for number in range(rows)]
    head = Image.new("RGB", (sheet[0].shape[1], 18), "white")
    pen = ImageDraw.Draw(head)
    for column, title in enumerate(TITLES):
        pen.text((column * size + size / 2, 9), title, fill="black", font=ImageFont.load_default(12), anchor="mm")
    Image.fromarray(np.concatenate([np.asarray(head), *sheet])).save(path, quality=88)


def row(world: World, number: int) -> list[np.ndarray]:
    """The pictures of one object; gray if a part edit is not visible."""
    views = list(world.views(number, 4))
    near = [world.near(views[:1], strength)[0] for strength in STRENGTHS]
    gray = np.full_like(views[0].shot.picture, 128)
    part = next(iter(world.part_edit(views)), None)
    mask = gray if part is None else np.repeat(part.shot.part_mask[..., None], 3, 2)
    pictures = [t.shot.picture for t in (*views, *near)]
    return [
        *pictures,
        gray if part is None else part.shot.picture,
        mask,
        world.context_edit(views[0]).shot.picture,
    ]


if __name__ == "__main__":
    if "--smoke" in sys.argv[1:]:
        main(Path(tempfile.mkdtemp(prefix="idmetric-")) / "sheet.jpg", rows=1, size=48)
    else:
        main(*sys.argv[1:2])
