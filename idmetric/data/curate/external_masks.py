"""Attach masks that another program made, such as RMBG, BiRefNet or an annotation tool, to the images of a manifest.

A mask belongs to the image with the end of its path (`metric.paths.mask_of`).
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from idmetric.data.manifest import ManifestError, with_columns
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, replacing
from idmetric.metric.images import ImageReadError, read_image
from idmetric.metric.masks import MaskId, read_mask
from idmetric.metric.paths import absent_mask, is_image, masks_of, walk

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


@dataclass
class Attached:
    """A manifest with masks.

    Attributes:
        table: rows in their order, with the new masks; a row without a new mask keeps the one it had.
        unused: files that belong to no row.
        attached, scaled: numbers of rows with a new mask, and with a mask that was scaled to its image.
        problems: id -> reason, of images that have no mask, or one that cannot be used. A text without an image needs
            none.
    """

    table: pd.DataFrame
    unused: list[Path]
    attached: int = 0
    scaled: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def match_masks(table: pd.DataFrame, folder: StrPath) -> tuple[dict[int, Path | None], list[Path]]:
    """Row -> its mask by name, None without one, of all rows with an image; and the files that belong to no row."""
    files = []
    if os.path.isdir(folder):
        files = [file for file in walk(Path(folder)) if is_image(file)]
    if not files:
        raise ManifestError(f"{folder}: no such folder, or no masks (.png, ...) in it")

    images = table["path"].dropna()
    try:
        masks = masks_of(folder, images)
    except RequestError as error:
        raise ManifestError(str(error)) from error
    if len(images) and not any(masks):
        expected, _ = absent_mask(folder, images.iloc[0])
        raise ManifestError(
            f"{folder}: none of its {len(files)} masks has the name of an image; the mask of {images.iloc[0]} would be "
            f"{expected}"
        )

    used = {os.path.realpath(mask) for mask in masks if mask is not None}
    mask_files = [None if mask is None else Path(mask) for mask in masks]
    unused = [file for file in files if os.path.realpath(file) not in used]
    return dict(zip(images.index.tolist(), mask_files, strict=True)), unused


def attach_masks(
    table: pd.DataFrame,
    folder: StrPath,
    copies: StrPath,
    threshold: float | None = None,
    mask_id: MaskId | None = None,
    progress: Progress = lambda items, total, what: items,
) -> Attached:
    """Attach the masks of a folder by name, and check that each fits its image.

    A mask of its image's size is attached as it is. One of the same shape and another size is scaled to its image by
    exact area, and a copy is written. Soft masks stay soft unless `threshold` cuts them; generation takes values of one
    half and more as subject.

    Args:
        copies: folder for scaled and cut masks; their names follow from their content.
        threshold: makes masks of 0 and 255: the subject is where the coverage reaches it, in (0, 1].
        mask_id: the label that is the subject, for masks of several labels.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"threshold {threshold:g}: it must be within (0, 1]")
    matches, unused = match_masks(table, folder)
    result = Attached(table, unused)
    ids = table["id"].to_numpy()
    masks = table["mask"].to_numpy(copy=True)

    for row, file in progress(matches.items(), len(matches), "masks"):
        if file is None:
            if masks[row] is None:
                result.problems[ids[row]] = f"no mask of that name in {folder}"
            continue
        try:
            values, is_scaled = _fitted(file, table["path"][row], mask_id)
        except ImageReadError as error:
            result.problems[ids[row]] = str(error)
            continue

        if threshold is not None:
            values = (values >= threshold).astype(np.float32)
        if not values.any():
            result.problems[ids[row]] = f"{file}: the mask is empty, it must select the subject (white)"
            continue
        if is_scaled or threshold is not None or mask_id is not None:
            file = _copy(values, Path(copies))
        result.attached += 1
        result.scaled += is_scaled
        masks[row] = os.path.abspath(file)

    result.table = with_columns(table, mask=masks)
    return result


def _fitted(file: Path, image: str, mask_id: MaskId | None) -> tuple[np.ndarray, bool]:
    """The values of a mask (H, W) in its image's size, and whether it was scaled to it."""
    photo = read_image(image)
    size = photo.height, photo.width
    values = read_mask(file, image=photo, mask_id=mask_id).numpy()
    if values.shape == size:
        return values, False
    with warnings.catch_warnings(action="ignore"):  # the first reading gave them
        return read_mask(file, size, image=photo, mask_id=mask_id).numpy(), True


def _copy(values: np.ndarray, folder: Path) -> Path:
    """The file of a mask with these values in [0, 1]."""
    pixels = np.rint(values * 255).astype(np.uint8)
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
    file = folder / digest[:2] / f"{digest[:32]}.png"
    if not file.is_file():
        with replacing(file, parents=True) as temporary:
            Image.fromarray(pixels).save(temporary, "PNG")
    return file
