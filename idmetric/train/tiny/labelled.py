"""Groups of labelled photos: photos of an identity and, as its twin, those of another identity of the same folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray

from idmetric.train.tiny.photos import photo_files


@dataclass(frozen=True)
class Labelled:
    """Photos by folder and identity.

    Attributes:
        files: all photos.
        folders: for each folder, for each of its identities, the places of its photos in `files`.
        identities: number of the identity that each file shows, (N,).
    """

    files: list[Path]
    folders: list[list[list[int]]]
    identities: NDArray[np.int64]


def labelled_photos(paths: Sequence[str], views: int) -> Labelled:
    """Find photos in folders with one subfolder for each identity; identities with fewer than `views` photos go.

    Args:
        paths: such folders, or photos in them.

    Raises:
        ValueError: if a folder has fewer than two identities.
    """
    members: dict[Path, dict[Path, list[Path]]] = {}
    for file in photo_files(paths, "--labelled"):
        members.setdefault(file.parent.parent, {}).setdefault(file.parent, []).append(file)

    found = Labelled([], [], np.empty(0, np.int64))
    numbers: list[int] = []
    for folder, identities in members.items():
        known = [photos for photos in identities.values() if len(photos) >= views]
        if len(known) < 2:
            raise ValueError(
                f"--labelled: {len(known)} of the subfolders of {folder} holds {views} photos or more: two identities "
                "or more are needed, each in a subfolder"
            )
        found.folders.append([])
        for photos in known:
            found.folders[-1].append(list(range(len(found.files), len(found.files) + len(photos))))
            numbers += [numbers[-1] + 1 if numbers else 0] * len(photos)
            found.files.extend(photos)
    return replace(found, identities=np.asarray(numbers, dtype=np.int64))


def draw_labelled(labelled: Labelled, count: int, views: int, rng: Generator) -> NDArray[np.int64]:
    """Photos of a step's groups, (count, 2, views) places in `files`; all folders are drawn equally often."""
    rows = np.empty((count, 2, views), np.int64)
    for group in range(count):
        folder = labelled.folders[rng.integers(len(labelled.folders))]
        pair = rng.choice(len(folder), 2, replace=False)
        for which, identity in enumerate(pair):
            rows[group, which] = rng.choice(folder[identity], views, replace=False)
    return rows


def shrink(photos: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Photos (..., S, S, 3) at another side length."""
    pixels = torch.from_numpy(photos.reshape(-1, *photos.shape[-3:])).permute(0, 3, 1, 2).float()
    resized = F.interpolate(pixels, (size, size), mode="bilinear", antialias=True, align_corners=False)
    found: NDArray[np.uint8] = resized.round_().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return found.reshape(*photos.shape[:-3], size, size, 3)
