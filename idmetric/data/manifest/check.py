"""Check that the files of a manifest exist and can be read, and remove the rows of files that fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from idmetric.data.manifest.table import PATHS, Manifest
from idmetric.metric.images.kinds import STORED
from idmetric.metric.images.masks import read_mask, same_shape
from idmetric.metric.images.read import ImageReadError, read_image
from idmetric.metric.scoring.pipeline import threads

Progress = Callable[[Iterable[Any], int | None, str], Iterable[Any]]


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
    progress: Progress | None = None,
) -> list[Fault]:
    """The faults of a manifest's files, in order of rows; a file of several rows is read once and reported for each.

    Args:
        decode: decode images and masks, and report empty object masks and masks with another aspect ratio than their
            image; otherwise only check that the files exist.
        most_ratio: largest allowed ratio of an image's sides, with `decode`; None = any.
        progress: (files, total, name) -> the files, with progress shown.
    """
    held = [np.asarray(manifest.table[column].is_valid()) for column in PATHS.values()]
    tasks: dict[Any, list[int]] = {}  # rows of the same files
    for row, files in enumerate(zip(*map(manifest.column, PATHS), strict=True)):
        tasks.setdefault((files, row if any(x[row] for x in held) else None), []).append(row)
    found: list[Fault] = []
    with ThreadPoolExecutor(threads(None)) as pool:  # Pillow decodes outside Python's lock
        results: Iterable[Any] = pool.map(lambda rows: _look(manifest, rows[0], decode, most_ratio), tasks.values())
        results = progress(results, len(tasks), "check") if progress else results
        for rows, own in zip(tasks.values(), results, strict=True):
            found += [replace(fault, row=row) for fault in own for row in rows]
    return sorted(found, key=lambda fault: (fault.row, [*PATHS].index(fault.column)))


def _look(manifest: Manifest, row: int, decode: bool, most_ratio: float | None) -> list[Fault]:
    """The faults of a row's files."""
    found = []
    size, turned = None, False  # of the image
    for column in PATHS:
        source, reason = manifest.source(row, column), ""
        if isinstance(source, str) and not os.path.isfile(source):
            found.append(Fault(row, column, f"{source}: there is no such file", missing=True))
            continue
        if source is None or not decode:
            continue
        try:
            if column == "path":
                image = read_image(source)
                size, turned = (image.height, image.width), image.info.get(STORED, 1) >= 5
                if most_ratio is not None and max(size) > most_ratio * min(size):
                    reason = f"{size[1]}x{size[0]} pixels: the model takes no side ratio above {most_ratio:g}"
            else:
                mask = read_mask(source)
                own = (mask.shape[0], mask.shape[1])
                if column == "mask" and not mask.any():
                    reason = "the mask is empty: it must select something"
                elif size and not same_shape(own, size) and not (turned and own == size[::-1]):  # rotated as the image
                    its, of_image = (f"{x[1]}x{x[0]}" for x in (own, size))
                    reason = f"the mask has {its} pixels, its image {of_image}: their shapes differ"
        except ImageReadError as error:
            reason = str(error)
        if reason:
            found.append(Fault(row, column, reason))
    return found


def without(manifest: Manifest, rows: Collection[int]) -> Manifest:
    """The manifest without these rows and the rows that depend on them.

    A row depends on the other rows of its group (a triplet needs its positive) and on its parent (a distractor needs
    its positive). A group name that occurs in two splits names two groups.
    """
    gone = np.zeros(len(manifest), dtype=bool)
    gone[list(rows)] = True
    places = [*zip(*map(manifest.column, ("id", "parent", "group", "split")), strict=True)]
    count = -1
    while count != gone.sum():
        count = gone.sum()
        names = {places[row][0] for row in np.flatnonzero(gone)}
        groups = {places[row][2:] for row in np.flatnonzero(gone) if places[row][2] is not None}
        gone |= np.array(
            [parent in names or (group, split) in groups for _, parent, group, split in places], dtype=bool
        )
    return manifest.take(~gone)
