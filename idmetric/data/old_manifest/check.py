"""Check that the files of a manifest exist and can be read, and remove the rows of files that fail."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from idmetric.data.check import Fault
from idmetric.data.old_manifest.table import PATHS, Manifest
from idmetric.metric.images import ImageReadError, read_image, stored_orientation
from idmetric.metric.masks import read_mask, same_shape
from idmetric.stream import threads

Progress = Callable[[Iterable[Any], int | None, str], Iterable[Any]]


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
    # rows of the same files are one task; bytes are not compared
    has_bytes = np.zeros(len(manifest), dtype=bool)
    for column in PATHS.values():
        has_bytes |= np.asarray(manifest.table[column].is_valid())
    columns = map(manifest.column, PATHS)
    tasks: dict[Any, list[int]] = defaultdict(list)
    for row, files in enumerate(zip(*columns, strict=True)):
        tasks[row if has_bytes[row] else files].append(row)

    def look(rows: list[int]) -> list[Fault]:
        return _look(manifest, rows[0], decode, most_ratio)

    all_faults: list[Fault] = []
    with ThreadPoolExecutor(threads(None)) as pool:  # Pillow decodes outside Python's lock
        results: Iterable[Any] = pool.map(look, tasks.values())
        if progress:
            results = progress(results, len(tasks), "check")
        for rows, faults_of_task in zip(tasks.values(), results, strict=True):
            for fault in faults_of_task:
                all_faults += [replace(fault, row=row) for row in rows]
    return sorted(all_faults, key=attrgetter("row"))


def _look(manifest: Manifest, row: int, decode: bool, most_ratio: float | None) -> list[Fault]:
    """The faults of a row's files."""
    row_faults = []
    image: Image.Image | None = None
    for column in PATHS:
        source = manifest.source(row, column)
        if isinstance(source, str) and not os.path.isfile(source):
            row_faults.append(Fault(row, column, f"{source}: the file does not exist", missing=True))
        elif source is not None and decode:
            try:
                if column == "path":
                    image = read_image(source)
                    reason = _image_fault(image, most_ratio)
                else:
                    reason = _mask_fault(read_mask(source), image, column)
            except ImageReadError as error:
                reason = str(error)
            if reason:
                row_faults.append(Fault(row, column, reason))
    return row_faults


def _image_fault(image: Image.Image, most_ratio: float | None) -> str:
    if most_ratio is not None and max(image.size) > most_ratio * min(image.size):
        return f"{image.width}x{image.height} pixels: the model takes no side ratio above {most_ratio:g}"
    return ""


def _mask_fault(mask: Tensor, image: Image.Image | None, column: str) -> str:
    if column == "mask" and not mask.any():
        return "the mask is empty: it must select something"
    if image is None:
        return ""
    height, width = mask.shape
    is_turned = (stored_orientation(image) or 1) >= 5  # the image was stored on its side
    if is_turned and (height, width) == image.size:
        return ""
    if same_shape((height, width), (image.height, image.width)):
        return ""
    return f"the mask has {width}x{height} pixels, its image {image.width}x{image.height}: their shapes differ"


def without(manifest: Manifest, rows: Collection[int]) -> Manifest:
    """The manifest without these rows and the rows that depend on them.

    A row depends on the other rows of its group (a triplet needs its positive) and on its parent (a distractor needs
    its positive). A group name that occurs in two splits names two groups.
    """
    names, parents = manifest.column("id"), manifest.column("parent")
    columns = manifest.column("group"), manifest.column("split")
    groups = [*zip(*columns, strict=True)]
    lost = set(rows)
    before: set[int] | None = None
    while lost != before:
        before = set(lost)
        lost_names = {names[row] for row in lost}
        lost_groups = {groups[row] for row in lost}
        for row, (group, split) in enumerate(groups):
            in_lost_group = group is not None and (group, split) in lost_groups
            if in_lost_group or parents[row] in lost_names:
                lost.add(row)
    return manifest.take([row for row in range(len(manifest)) if row not in lost])
