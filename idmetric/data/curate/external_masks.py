"""Attach masks that another program made, such as RMBG, BiRefNet or an annotation tool, to the images of a manifest.

A mask belongs to the image with the end of its path (`metric.paths.mask_of`).
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from idmetric.data.manifest import ManifestError, numbered, with_columns
from idmetric.metric.files import StrPath, replacing
from idmetric.metric.images import ImageReadError, read_image
from idmetric.metric.masks import MaskId, read_mask
from idmetric.metric.paths import absent_mask, is_image, masks_of, walk
from idmetric.tables import first_few

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


def attach_masks(
    table: pd.DataFrame,
    folder: StrPath,
    copies: StrPath,
    threshold: float | None = None,
    mask_id: MaskId | None = None,
    progress: Progress = lambda items, total, what: items,
) -> tuple[pd.DataFrame, dict[int, str], list[str]]:
    """Attach the masks of a folder by name, and check that each fits its image.

    A mask of its image's size is attached as it is. One of the same shape and another size is scaled to its image by
    exact area, and a copy is written. Soft masks stay soft unless `threshold` cuts them; generation takes values of one
    half and more as subject.

    Args:
        copies: folder for scaled and cut masks; their names follow from their content.
        threshold: makes masks of 0 and 255: the subject is where the coverage reaches it, in (0, 1].
        mask_id: the label that is the subject, for masks of several labels.

    Returns:
        The manifest, in which a row without a new mask keeps the one it had; row -> reason, of images without a mask,
        or with one that cannot be used (a text without an image needs none); and notes for the user.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"threshold {threshold:g}: it must be within (0, 1]")
    table = numbered(table)
    files, unused = _match_masks(table, folder)
    masks = table["mask"].to_numpy(copy=True)
    problems: dict[int, str] = {}
    attached = scaled = 0

    for row, file in progress(files.items(), len(files), "masks"):
        if file is None:
            if masks[row] is None:
                problems[row] = f"no mask of that name in {folder}"
            continue
        try:
            values, is_scaled = _fitted(file, table["path"][row], mask_id, threshold)
        except ImageReadError as error:
            problems[row] = str(error)
            continue
        if is_scaled or threshold is not None or mask_id is not None:
            file = _copy(values, Path(copies))
        masks[row] = os.path.abspath(file)
        attached += 1
        scaled += is_scaled

    notes = [f"{attached} masks attached ({scaled} scaled to their images)"]
    if unused:
        listed = ", ".join(first_few(unused))
        notes.append(f"{len(unused)} masks belong to no image: {listed}")
    return with_columns(table, mask=masks), problems, notes


def _match_masks(table: pd.DataFrame, folder: StrPath) -> tuple[dict[int, str | None], list[str]]:
    """Row -> its mask by name, None without one, of all rows with an image; and the masks that belong to no row."""
    files = []
    if os.path.isdir(folder):
        files = [str(file) for file in walk(Path(folder)) if is_image(file)]
    if not files:
        raise ManifestError(f"{folder}: no such folder, or no masks (.png, ...) in it")

    images = table["path"].dropna()
    masks = masks_of(folder, images)
    if len(images) and not any(masks):
        image = images.iloc[0]
        expected, _ = absent_mask(folder, image)
        raise ManifestError(
            f"{folder}: none of its {len(files)} masks has the name of an image: that of {image} would be {expected}"
        )
    used = {os.path.realpath(mask) for mask in masks if mask is not None}
    unused = [file for file in files if os.path.realpath(file) not in used]
    rows = images.index.tolist()
    return dict(zip(rows, masks, strict=True)), unused


def _fitted(file: str, image: str, mask_id: MaskId | None, threshold: float | None) -> tuple[np.ndarray, bool]:
    """The values (H, W) of a mask in its image's size, and whether it was scaled to it; ImageReadError if empty."""
    photo = read_image(image)
    size = photo.height, photo.width
    values = read_mask(file, image=photo, mask_id=mask_id).numpy()
    is_scaled = values.shape != size
    if is_scaled:
        with warnings.catch_warnings(action="ignore"):  # the first reading gave them
            values = read_mask(file, size, image=photo, mask_id=mask_id).numpy()
    if threshold is not None:
        values = (values >= threshold).astype(np.float32)
    if not values.any():
        raise ImageReadError(file, "the mask is empty, it must select the subject (white)")
    return values, is_scaled


def _copy(values: np.ndarray, folder: Path) -> Path:
    """The file of a mask with these values in [0, 1]."""
    pixels = np.rint(values * 255).astype(np.uint8)
    content = repr(pixels.shape).encode() + pixels.tobytes()
    digest = hashlib.sha256(content).hexdigest()
    file = folder / digest[:2] / f"{digest[:32]}.png"
    if not file.is_file():
        with replacing(file, parents=True) as temporary:
            Image.fromarray(pixels).save(temporary, "PNG")
    return file
