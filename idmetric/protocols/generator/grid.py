"""Files that hold four generated images, 2 x 2: each becomes a file of its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from idmetric.images.read import ImageReadError, read_image
from idmetric.io.output import replacing, writing
from idmetric.protocols.generator.picture import GENERATED, OutputsError, Picture, UnmatchedWarning
from idmetric.store.fingerprint import key_of

CELLS = ((0, 0), (1, 0), (0, 1), (1, 1))  # column, row: the order of XVerse's `split_grid`
_MARK = "grid"  # in a cell's PNG: the key of the grid that it was cut from


def cut(found: Sequence[Picture], folder: Path, skip: bool) -> list[Picture]:
    """Outputs with the four images of each grid in its place."""
    out: list[Picture] = []
    for picture in found:
        try:
            out += _cells(picture, folder) if picture.role == GENERATED else [picture]
        except ImageReadError as error:
            if not skip:
                raise OutputsError(f"{error}; leave it out (--on-error skip), or make it again") from error
            warnings.warn(f"{error}: left out", UnmatchedWarning, stacklevel=4)
    return out


def _cells(picture: Picture, folder: Path) -> list[Picture]:
    """The four images of a grid, by seed, kept as `folder`/METHOD/STEM_SEED.png; of an odd side the last pixel is lost.

    Raises:
        ImageReadError: if the grid cannot be read. OSError: if a cell cannot be written.
    """
    key, grid = key_of(picture.path), None
    found = []
    for seed, (column, row) in enumerate(CELLS):
        path = folder / picture.fields["method"] / f"{picture.path.stem}_{seed}.png"
        if not _is_of(path, key):
            grid = read_image(picture.path) if grid is None else grid
            _write(path, grid, column, row, key)
        found.append(Picture(path, picture.role, {**picture.fields, "seed": str(seed)}, picture.text))
    return found


def _is_of(path: Path, key: str) -> bool:
    """Whether this cell was cut from the grid with this key."""
    try:
        with Image.open(path) as image:
            return bool(image.info.get(_MARK) == key)
    except OSError:
        return False


def _write(path: Path, grid: Image.Image, column: int, row: int, key: str) -> None:
    width, height = grid.width // 2, grid.height // 2
    cell = grid.crop((column * width, row * height, (column + 1) * width, (row + 1) * height))
    mark = PngInfo()
    mark.add_text(_MARK, key)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        cell.save(temporary, format="PNG", pnginfo=mark)
