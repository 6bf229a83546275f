"""Groups of an identity and its twin: rendered ones from a manifest, and labeled photos of two identities."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from config import RENDERED, Config, sources
from numpy.random import Generator
from numpy.typing import NDArray
from photos import photo_files

from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.metric.files.output import replacing
from idmetric.metric.files.threads import in_order
from idmetric.train.batches import Pictures, batch_rows

Images = NDArray[np.uint8]
Groups = NDArray[np.int64]  # (G, 2, V) rows of the manifest: views of an identity, and of its twin in the same contexts


def groups_of(data: Manifest, views: int) -> Groups:
    """Identities and their twins: rows of the first `views` views that have a distractor, and of these distractors.

    Of several distractors of a view, the n-th of all views belong together, each n a group of its own.

    Raises:
        ManifestError: if there is no such group.
    """
    place = {name: row for row, name in enumerate(data.column("id"))}
    identity, role, parent = (data.column(name) for name in ("identity", "role", "parent"))
    twins: dict[str, dict[str, list[int]]] = {}  # identity -> twin -> its rows
    for row in range(len(data)):
        if role[row] == "distractor" and parent[row] in place:
            owner = identity[place[parent[row]]]
            twins.setdefault(owner, {}).setdefault(identity[row], []).append(row)

    found = []
    for alike in twins.values():
        for rows in alike.values():
            rows = rows[:views]
            if len(rows) == views:
                found.append([[place[parent[row]] for row in rows], rows])
    if not found:
        raise ManifestError(
            f"no identity has {views} views with a distractor each (role distractor, parent = the view): "
            "`python -m world` in benchmarks renders such data"
        )
    return np.asarray(found, dtype=np.int64)


def store(path: Path, data: Manifest, groups: Groups, config: Config) -> None:
    """Write all groups' images, (G, 2, V, size, size, 3) uint8, identity and twin, atomically."""
    size = config.stored_size
    pictures = Pictures(data, (size, size))

    def images(index: int) -> Images:
        rows = groups[index].ravel()
        found = torch.stack([pictures.read_bytes(int(row)) for row in rows]).permute(0, 2, 3, 1)
        return found.view(2, config.views, size, size, 3).numpy()

    threads = min(8, os.cpu_count() or 1)
    with replacing(path) as part:
        out = np.lib.format.open_memmap(part, "w+", np.uint8, (len(groups), 2, config.views, size, size, 3))
        for index, made in enumerate(in_order(images, range(len(groups)), threads=threads, waiting=2 * threads)):
            out[index] = made
        out.flush()


def drawn(count: int, step: int, config: Config) -> NDArray[np.int64]:
    """The rendered groups of a step, in the order of the file."""
    return np.sort(batch_rows(step, count, int((sources(config) == RENDERED).sum()), config.seed))


def contexts_drawn(rows: NDArray[np.int64], step: int, config: Config) -> NDArray[np.int64]:
    """In which of their contexts a step shows its rendered groups, (len(rows), shown)."""
    rng = np.random.default_rng([config.seed, 2, step])
    return np.stack([rng.permutation(config.views)[: config.shown] for _ in rows])


def identity_numbers(data: Manifest, groups: Groups) -> NDArray[np.int64]:
    """A number for the identity that each group and its twin show, (G, 2)."""
    names = data.column("identity")
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return np.asarray([[number[names[row]] for row in group[:, 0]] for group in groups], dtype=np.int64)


def photo_digest(files: Sequence[Path], families: Sequence[Sequence[int]]) -> str:
    """Digest of the photos' contents, and of which are in a folder together."""
    lines = [
        f"{family[0]} {blake2b(file.read_bytes()).hexdigest()}" for file, family in zip(files, families, strict=True)
    ]
    return digest(lines)


def digest(names: Sequence[str]) -> str:
    """16 hex digits that follow from these names and their order."""
    return blake2b("\n".join(names).encode(), digest_size=8).hexdigest()


# Labeled photos: photos of an identity and, as its twin, those of another identity of the same folder


@dataclass(frozen=True)
class Labeled:
    """Photos by folder and identity.

    Attributes:
        files: all photos.
        folders: for each folder, for each of its identities, the places of its photos in `files`.
        identities: number of the identity that each file shows, (N,).
    """

    files: list[Path]
    folders: list[list[list[int]]]
    identities: NDArray[np.int64]


def labeled_photos(paths: Sequence[str], views: int) -> Labeled:
    """Find photos in folders with one subfolder for each identity; identities with fewer than `views` photos go.

    Raises:
        ValueError: if a folder has fewer than two identities.
    """
    members: dict[Path, dict[Path, list[Path]]] = {}
    for file in photo_files(paths):
        members.setdefault(file.parent.parent, {}).setdefault(file.parent, []).append(file)

    found = Labeled([], [], np.empty(0, np.int64))
    numbers: list[int] = []
    for folder, identities in members.items():
        known = [photos for photos in identities.values() if len(photos) >= views]
        if len(known) < 2:
            raise ValueError(
                f"{len(known)} of the subfolders of {folder} holds {views} photos or more: two identities or more are "
                "needed, each in a subfolder"
            )
        found.folders.append([])
        for photos in known:
            found.folders[-1].append(list(range(len(found.files), len(found.files) + len(photos))))
            numbers += [numbers[-1] + 1 if numbers else 0] * len(photos)
            found.files.extend(photos)
    return replace(found, identities=np.asarray(numbers, dtype=np.int64))


def draw_labeled(labeled: Labeled, count: int, views: int, rng: Generator) -> NDArray[np.int64]:
    """Photos of a step's groups, (count, 2, views) places in `files`; all folders are drawn equally often."""
    rows = np.empty((count, 2, views), np.int64)
    for group in range(count):
        folder = labeled.folders[rng.integers(len(labeled.folders))]
        pair = rng.choice(len(folder), 2, replace=False)
        for which, identity in enumerate(pair):
            rows[group, which] = rng.choice(folder[identity], views, replace=False)
    return rows


def shrink(photos: Images, size: int) -> Images:
    """Photos (..., S, S, 3) at another side length."""
    pixels = torch.from_numpy(photos.reshape(-1, *photos.shape[-3:])).permute(0, 3, 1, 2).float()
    resized = F.interpolate(pixels, (size, size), mode="bilinear", antialias=True, align_corners=False)
    found: Images = resized.round_().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return found.reshape(*photos.shape[:-3], size, size, 3)
