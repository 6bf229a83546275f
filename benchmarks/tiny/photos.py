"""Groups of images cut from single photos, for the looks of real cameras where nobody labeled identities.

photos = np.load("photos.npy", mmap_mode="r")              # written by `store_photos`
cuts = draw_cuts(families(files), 32, 2, rng, pasted=0.5)   # what 32 groups show
images = cut(photos, cuts, 144)                             # (32, 2, 2, 144, 144, 3): thing and twin, two views each

A photo is a thing, and another photo of its folder the twin that looks much like it. Views of a group are either crops,
anywhere in the photo and of 20 % to 100 % of its area, as instance discrimination takes them (SimCLR: 8 % to 100 %), or
a part of the photo pasted onto crops of other photos, drawn for each view: there only what was pasted tells the
thing. The twin has the same crops, and its part the same outline, places and surroundings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from idmetric.metric.files.folders import walk
from idmetric.metric.files.output import replacing
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.paths import IMAGE_ENDINGS, is_image
from idmetric.metric.images.read import read_image

CROP_AREA = (0.2, 1.0)  # of the photo
PART_AREA = (0.1, 0.6)  # of the photo, where it is cut out
PART_SIDE = (0.4, 0.85)  # of the view
_RATIO = 4 / 3
_FINER = 2  # pixels are drawn at twice the size, and averaged: photos and parts are mostly shrunk
_SOFT = 0.06  # width of the outline's edge, as a part of the radius


def photo_files(folders: Sequence[str]) -> list[Path]:
    """Images below some folders, in order of their names, each once.

    Raises:
        ValueError: if a folder holds none.
    """
    found = []
    for folder in folders:
        files = [file for file in walk(Path(folder)) if is_image(file)]
        if not files:
            raise ValueError(f"{folder}: no image is there ({', '.join(IMAGE_ENDINGS)})")
        found += files
    return list({path.resolve(): path for path in found}.values())


def families(files: Sequence[Path]) -> list[list[int]]:
    """For each photo those of its folder, its own place among them; all photos if it is alone there.

    Raises:
        ValueError: if there is but one photo.
    """
    if len(files) == 1:
        raise ValueError("1 photo has no other to differ from: give at least two")
    members: dict[Path, list[int]] = {}
    for place, file in enumerate(files):
        members.setdefault(file.parent, []).append(place)
    every = list(range(len(files)))
    found = [members[file.parent] for file in files]
    return [family if len(family) > 1 else every for family in found]


def spread(count: int, part: float) -> NDArray[np.bool_]:
    """Mark this part of the places 0..count - 1, rounded half up, evenly."""
    return np.asarray(np.diff(np.floor(np.arange(count + 1) * part + 0.5 + 1e-9)) > 0)


def store_photos(path: Path, files: Sequence[Path], size: int) -> None:
    """Write the photos as squares, (N, size, size, 3) uint8, as models see them, atomically."""
    with replacing(path) as part:
        out = np.lib.format.open_memmap(part, "w+", np.uint8, (len(files), size, size, 3))
        for place, square in enumerate(in_order(partial(_square, size=size), files, threads=4, waiting=8)):
            out[place] = square
        out.flush()


def _square(file: Path, size: int) -> NDArray[np.uint8]:
    return np.asarray(read_image(file).resize((size, size), Image.Resampling.BICUBIC))


@dataclass(frozen=True)
class Cuts:
    """What G groups of V views show; places and sizes in units of half a side, from -1 to 1."""

    photos: NDArray[np.int64]  # (G, 2): thing, twin
    pasted: NDArray[np.bool_]  # (G,)
    scene: NDArray[np.int64]  # (G, 2, V): the photo that is cropped: their own, or the surroundings
    crop: NDArray[np.float32]  # (G, V, 4): center x, y and half width, height
    part: NDArray[np.float32]  # (G, 4): the same, of what is pasted
    roundness: NDArray[np.float32]  # (G,): exponent of the outline |u|^p + |v|^p = 1
    place: NDArray[np.float32]  # (G, V, 4): its center and half width, height in the view
    turn: NDArray[np.float32]  # (G, V, 4): angle in radians, shear, and perspective along u and v

    def __getitem__(self, rows: slice) -> Cuts:
        return Cuts(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def draw_cuts(families: Sequence[Sequence[int]], count: int, views: int, rng: Generator, pasted: float) -> Cuts:
    """Draw the groups of a step; no photo is the thing of two groups while there are enough of them.

    Args:
        families: see the function of this name.
        pasted: share of groups that show a part of the photo, pasted.
    """
    known = len(families)
    things = rng.choice(known, count, replace=count > known)
    photos = np.stack([things, [_another(families[thing], thing, rng) for thing in things]], 1)
    chosen = spread(count, pasted)
    others = (things[:, None, None] + rng.integers(1, known, (count, 1, views))) % known  # not the thing's own
    others = np.broadcast_to(others, (count, 2, views))
    scene = np.where(chosen[:, None, None], others, photos[:, :, None])
    side, aspect = rng.uniform(*PART_SIDE, (count, views)), np.sqrt(_between(rng, 0.6, (count, 1)))
    half = np.stack([side * aspect, side / aspect], -1).clip(0.2, 0.95)
    center = rng.uniform(-1, 1, half.shape) * (1 - half)
    turn = rng.uniform(-1, 1, (count, views, 4)) * (0.35, 0.2, 0.25, 0.25)
    drawn = (
        _boxes(rng, (count, views), CROP_AREA),
        _boxes(rng, (count,), PART_AREA),
        rng.uniform(1.5, 8, count),
        np.concatenate([center, half], -1),
        turn,
    )
    return Cuts(photos, chosen, scene, *(values.astype(np.float32) for values in drawn))


def _another(family: Sequence[int], own: int, rng: Generator) -> int:
    place = int(rng.integers(len(family) - 1))
    return family[place + (place >= bisect_left(family, own))]


def _between(rng: Generator, ratio: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Numbers from 1 / ratio to ratio with uniform logarithms."""
    return np.asarray(np.exp(rng.uniform(-1, 1, shape) * np.log(ratio)))


def _boxes(rng: Generator, shape: tuple[int, ...], area: tuple[float, float]) -> NDArray[np.float64]:
    """Boxes anywhere within -1 to 1: center x, y and half width, height."""
    part, ratio = rng.uniform(*area, shape), _between(rng, _RATIO, shape)
    half = np.stack([np.sqrt(part * ratio), np.sqrt(part / ratio)], -1).clip(0, 1)
    return np.concatenate([rng.uniform(-1, 1, half.shape) * (1 - half), half], -1)


def cut(photos: NDArray[np.uint8], cuts: Cuts, size: int) -> NDArray[np.uint8]:
    """The groups' images: (G, 2, V, size, size, 3) uint8; a group's do not depend on the others.

    Args:
        photos: (N, S, S, 3), of `store_photos`; only those that are shown are read.
    """
    fine = size * _FINER
    line = (torch.arange(fine) + 0.5) / fine * 2 - 1
    x, y = torch.meshgrid(line, line, indexing="xy")

    def at(box: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Sampling points of (u, v) in a box of photos, (..., size, size, 2)."""
        cx, cy, w, h = box[..., None, None].unbind(-3)
        return torch.stack([cx + w * u, cy + h * v], -1)

    images = _sample(photos, cuts.scene, at(torch.from_numpy(cuts.crop), x, y)[:, None])
    if cuts.pasted.any():
        rows = np.flatnonzero(cuts.pasted)
        u, v = _on_part(torch.from_numpy(cuts.place[rows]), torch.from_numpy(cuts.turn[rows]), x, y)
        power = torch.from_numpy(cuts.roundness[rows]).view(-1, 1, 1, 1)
        radius = (u.abs() ** power + v.abs() ** power) ** (1 / power)
        inside = ((1 - radius) / _SOFT + 0.5).clamp(0, 1)[:, None, ..., None]  # (g, 1, V, size, size, 1)
        box = torch.from_numpy(cuts.part[rows])[:, None]
        shown = np.broadcast_to(cuts.photos[:, :, None], cuts.scene.shape)[rows]
        part = _sample(photos, shown, at(box, u.clamp(-1.2, 1.2), v.clamp(-1.2, 1.2))[:, None])
        images[rows] = torch.lerp(images[rows], part, inside)
    images = F.avg_pool2d(images.flatten(0, 2).permute(0, 3, 1, 2), _FINER).permute(0, 2, 3, 1)
    return images.reshape(*cuts.scene.shape, size, size, 3).round_().to(torch.uint8).numpy()


def _on_part(place: Tensor, turn: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Where each pixel lies on what is pasted, whose outline is at 1: (g, V, size, size) each."""
    cx, cy, w, h = place[..., None, None].unbind(-3)
    angle, shear, along, across = turn[..., None, None].unbind(-3)
    cos, sin = angle.cos(), angle.sin()
    u, v = (cos * (x - cx) + sin * (y - cy)) / w, (cos * (y - cy) - sin * (x - cx)) / h
    u = u + shear * v
    depth = (1 + along * u + across * v).clamp_min(0.2)  # not behind the viewer
    return u / depth, v / depth


def _sample(photos: NDArray[np.uint8], which: NDArray[np.int64], grid: Tensor) -> Tensor:
    """Pixels of photos at places from -1 to 1: (..., size, size, 3) in 0 to 255, for (...) photos."""
    size = grid.shape[-2]
    grid = grid.expand(*which.shape, size, size, 2).reshape(-1, size, size, 2)
    names, places = np.unique(which.ravel(), return_inverse=True)
    pixels = torch.from_numpy(photos[names]).permute(0, 3, 1, 2).float()
    found = F.grid_sample(pixels[places.ravel()], grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return found.permute(0, 2, 3, 1).reshape(*which.shape, size, size, 3)
