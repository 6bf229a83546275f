"""Whether the files of a manifest are there and can be read, and a manifest without those that cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from idmetric.data.manifest import PATHS, Manifest
from idmetric.images import ImageReadError, read_image, read_mask

Progress = Callable[[Iterable[Any], int | None, str], Iterable[Any]]


@dataclass(frozen=True)
class Fault:
    """A file that cannot be used: row (from 0) and column of the manifest, and why."""

    row: int
    column: str
    reason: str
    missing: bool = False

    def __str__(self) -> str:
        return f"row {self.row + 1}, column {self.column!r}: {self.reason}"


def faults(
    manifest: Manifest, *, decode: bool = True, workers: int | None = None, progress: Progress | None = None
) -> list[Fault]:
    """What cannot be read, in order of rows; a file that several rows use is read once and named for each.

    Args:
        decode: read images and masks whole, and refuse object masks that are empty; otherwise only look for the files.
        workers: threads (default: one per core, at most 8).
        progress: wraps the files, see `idmetric.data.importers.run.Progress`.
    """
    tasks = _tasks(manifest)
    look = _read if decode else _find
    workers = workers or min(8, os.cpu_count() or 1)
    found: list[Fault] = []
    with ThreadPoolExecutor(workers) as pool:  # Pillow decodes outside the interpreter's lock
        results: Iterable[tuple[str, bool] | None] = pool.map(lambda task: look(manifest, task[0], task[1][0]), tasks)
        shown = progress(results, len(tasks), "check") if progress else results
        for (column, rows), result in zip(tasks, shown, strict=True):
            if result is not None:
                found += [Fault(row, column, *result) for row in rows]
    return sorted(found, key=lambda f: (f.row, PATHS.index(f.column)))


def _tasks(manifest: Manifest) -> list[tuple[str, list[int]]]:
    """Column and rows of each file, and of each row's bytes."""
    tasks = []
    for column in PATHS:
        held = manifest.table["image_bytes" if column == "path" else f"{column}_bytes"]
        by_path: dict[str, list[int]] = {}
        for row, path in enumerate(manifest.column(column)):
            if path is not None:
                by_path.setdefault(path, []).append(row)
        tasks += [(column, rows) for rows in by_path.values()]
        if held.null_count < len(held):
            tasks += [(column, [int(row)]) for row in np.flatnonzero(np.asarray(held.is_valid()))]
    return tasks


def _find(manifest: Manifest, column: str, row: int) -> tuple[str, bool] | None:
    source = manifest.source(row, column)
    if isinstance(source, str) and not os.path.isfile(source):
        return f"{source}: there is no such file", True
    return None


def _read(manifest: Manifest, column: str, row: int) -> tuple[str, bool] | None:
    absent = _find(manifest, column, row)
    source = manifest.source(row, column)
    if absent or source is None:
        return absent
    try:
        if column == "path":
            read_image(source)
        elif not read_mask(source).any() and column == "mask":
            return "the mask is empty: it must select something, above 0 = object", False
    except ImageReadError as error:
        return str(error), False
    return None


def without(manifest: Manifest, rows: Collection[int]) -> Manifest:
    """The manifest without these rows, and without those that are nothing without them.

    The rest of a group (a triplet without its positive), and what was made from a row (a distractor whose positive
    is gone), leave with it.
    """
    gone = np.zeros(len(manifest), dtype=bool)
    gone[list(rows)] = True
    group, parent, ids = (manifest.column(c) for c in ("group", "parent", "id"))
    while True:
        groups = {group[i] for i in np.flatnonzero(gone)} - {None}
        names = {ids[i] for i in np.flatnonzero(gone)}
        more = np.array([g in groups or p in names for g, p in zip(group, parent, strict=True)], dtype=bool) | gone
        if (more == gone).all():
            return manifest.take(~gone)
        gone = more
