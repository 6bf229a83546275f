"""Check that the files of a manifest exist and can be read, and remove the rows of files that fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from idmetric.data.manifest.table import PATHS, Manifest
from idmetric.images.kinds import STORED
from idmetric.images.masks import read_mask, same_shape
from idmetric.images.read import ImageReadError, read_image

Progress = Callable[[Iterable[Any], int | None, str], Iterable[Any]]
Size = tuple[tuple[int, int], bool]  # height and width, and whether EXIF orientation turned the image on its side


@dataclass(frozen=True)
class Fault:
    """A file that cannot be used: row (from 0) and column of the manifest, and the reason."""

    row: int
    column: str
    reason: str
    missing: bool = False

    def __str__(self) -> str:
        return f"row {self.row + 1}, column {self.column!r}: {self.reason}"


def faults(
    manifest: Manifest,
    *,
    decode: bool = True,
    most_ratio: float | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Fault]:
    """The faults of a manifest's files, in order of rows; a file of several rows is read once and reported for each.

    Args:
        decode: decode images and masks, and report empty object masks and masks with another aspect ratio than their
            image; otherwise only check that the files exist.
        most_ratio: largest allowed ratio of an image's sides, with `decode`; None = any.
        workers: number of threads, 1 or more (default: one per core, at most 8).
        progress: wraps the files, see `idmetric.data.importers.run.Progress`.
    """
    tasks: list[tuple[str, list[int]]] = []  # column and rows of each file, and of each row's bytes
    for column in PATHS:
        by_path: dict[str, list[int]] = {}
        for row, path in enumerate(manifest.column(column)):
            if path is not None:
                by_path.setdefault(path, []).append(row)
        held = manifest.table["image_bytes" if column == "path" else f"{column}_bytes"]
        tasks += [(column, rows) for rows in by_path.values()]
        tasks += [(column, [row]) for row in np.flatnonzero(np.asarray(held.is_valid())).tolist()]

    found: list[Fault] = []
    sizes: dict[str, dict[int, Size]] = {column: {} for column in PATHS}
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:  # Pillow decodes outside Python's lock
        results: Iterable[Fault | Size | None] = pool.map(lambda t: _look(manifest, t[0], t[1][0], decode), tasks)
        shown = progress(results, len(tasks), "check") if progress else results
        for (column, rows), result in zip(tasks, shown, strict=True):
            if isinstance(result, Fault):
                found += [replace(result, row=row) for row in rows]
            elif result is not None:
                sizes[column].update(dict.fromkeys(rows, result))

    for row, ((height, width), _) in sizes["path"].items():
        if most_ratio is not None and max(height, width) > most_ratio * min(height, width):
            says = f"{width}x{height} pixels: the model takes no side ratio above {most_ratio:g}"
            found.append(Fault(row, "path", says))
    for column in PATHS[1:]:
        for row, (mask, _) in sizes[column].items():
            image, turned = sizes["path"].get(row, (mask, False))
            if not same_shape(mask, image) and not (turned and mask == image[::-1]):  # such a mask is rotated too
                says = f"the mask has {mask[1]}x{mask[0]} pixels, its image {image[1]}x{image[0]}: their shapes differ"
                found.append(Fault(row, column, says))
    return sorted(found, key=lambda f: (f.row, PATHS.index(f.column)))


def _look(manifest: Manifest, column: str, row: int, decode: bool) -> Fault | Size | None:
    source = manifest.source(row, column)
    if isinstance(source, str) and not os.path.isfile(source):
        return Fault(row, column, f"{source}: there is no such file", missing=True)
    if not decode or source is None:
        return None
    try:
        if column == "path":
            image = read_image(source)
            return (image.height, image.width), image.info.get(STORED, 1) >= 5
        mask = read_mask(source)
    except ImageReadError as error:
        return Fault(row, column, str(error))
    if column == "mask" and not mask.any():
        return Fault(row, column, "the mask is empty: it must select something")
    return (mask.shape[0], mask.shape[1]), False


def without(manifest: Manifest, rows: Collection[int]) -> Manifest:
    """The manifest without these rows and the rows that depend on them.

    A row depends on the other rows of its group (a triplet needs its positive) and on its parent (a distractor needs
    its positive). A group name that occurs in two splits names two groups.
    """
    gone = np.zeros(len(manifest), dtype=bool)
    gone[list(rows)] = True
    group, split, parent, ids = (manifest.column(c) for c in ("group", "split", "parent", "id"))
    while True:
        groups = {(group[i], split[i]) for i in np.flatnonzero(gone) if group[i] is not None}
        names = {ids[i] for i in np.flatnonzero(gone)}
        left = [(g, s) in groups or p in names for g, s, p in zip(group, split, parent, strict=True)]
        more = np.array(left, dtype=bool) | gone
        if (more == gone).all():
            return manifest.take(~gone)
        gone = more
