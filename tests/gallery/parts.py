"""Pictures that the tests of galleries share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def flat(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A picture of large spots."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size)


def detailed(seed: int, size: tuple[int, int] = (200, 160)) -> Image.Image:
    """Shapes of many sizes, so that there is detail everywhere."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((160, 200, 3))
    for side in (4, 10, 24, 80):
        grid = Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
        pixels += np.asarray(grid.resize((200, 160)), float) / 4
    return Image.fromarray(pixels.astype(np.uint8)).resize(size)


def files(photos: Path) -> list[Path]:
    return sorted(photos.rglob("*.png"))


def parts(index: Path) -> list[Path]:
    return sorted(index.rglob("part-*.safetensors"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def names_of_groups(rows: Any) -> list[set[str]]:
    groups: dict[int, set[str]] = {}
    for row in rows:
        groups.setdefault(row["group"], set()).add(Path(row["path"]).name)
    return list(groups.values())
