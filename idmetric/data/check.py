"""Check that the files of a manifest exist and can be read, and remove the rows of files that fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from torch import Tensor

from idmetric.data.manifest import PATHS, take
from idmetric.metric.images import ImageReadError, read_image, stored_orientation
from idmetric.metric.masks import read_mask, same_shape
from idmetric.stream import threads

if TYPE_CHECKING:
    import pandas as pd

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
    table: pd.DataFrame,
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
    rows_of: dict[tuple[str | None, ...], list[int]] = {}
    for row, files in enumerate(table[list(PATHS)].itertuples(index=False, name=None)):
        rows_of.setdefault(files, []).append(row)

    def look(files: tuple[str | None, ...]) -> list[Fault]:
        return _look(dict(zip(PATHS, files, strict=True)), decode, most_ratio)

    all_faults: list[Fault] = []
    with ThreadPoolExecutor(threads(None)) as pool:  # Pillow decodes outside Python's lock
        results: Iterable[Any] = pool.map(look, rows_of)
        if progress:
            results = progress(results, len(rows_of), "check")
        for rows, faults_of_files in zip(rows_of.values(), results, strict=True):
            for fault in faults_of_files:
                all_faults += [replace(fault, row=row) for row in rows]
    return sorted(all_faults, key=attrgetter("row"))


def _look(files: dict[str, str | None], decode: bool, most_ratio: float | None) -> list[Fault]:
    """The faults of the files of one row, which is counted as row 0."""
    row_faults = []
    image: Image.Image | None = None
    for column, file in files.items():
        if file is None:
            continue
        if not os.path.isfile(file):
            row_faults.append(Fault(0, column, f"{file}: the file does not exist", missing=True))
        elif decode:
            try:
                if column == "path":
                    image = read_image(file)
                    reason = _image_fault(image, most_ratio)
                else:
                    reason = _mask_fault(read_mask(file), image, column)
            except ImageReadError as error:
                reason = str(error)
            if reason:
                row_faults.append(Fault(0, column, reason))
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


def without(table: pd.DataFrame, rows: Collection[int]) -> pd.DataFrame:
    """The manifest without these rows and the rows that depend on them.

    A row depends on the other rows of its group (a triplet needs its positive) and on its parent (a distractor needs
    its positive). A group name that occurs in two splits names two groups.
    """
    names = table["id"]
    parents = table["parent"]
    groups = table["split"].fillna("") + "\0" + table["group"]  # missing without a group
    is_lost = np.isin(np.arange(len(table)), list(rows))
    count = -1
    while count != is_lost.sum():  # until no more rows depend on lost ones
        count = is_lost.sum()
        lost_names = names[is_lost]
        lost_groups = groups[is_lost].dropna()
        is_lost |= parents.isin(lost_names).to_numpy()
        is_lost |= groups.isin(lost_groups).to_numpy()
    return take(table, ~is_lost)
