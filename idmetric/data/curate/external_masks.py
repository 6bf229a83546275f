"""Attach masks that another program made, such as RMBG, BiRefNet or an annotation tool, to the images of a manifest.

A mask belongs to the image with the end of its path (`images.paths.mask_of`). An image within the manifest
goes by its id.
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
from PIL import Image

from idmetric.data.old_manifest.table import Manifest, ManifestError
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
        manifest: rows in their order, with the new masks; a row without a new mask keeps the one it had.
        unused: files that belong to no row.
        attached, scaled: numbers of rows with a new mask, and with a mask that was scaled to its image.
        problems: id -> reason, of images that have no mask, or one that cannot be used. A text without an image needs
            none.
    """

    manifest: Manifest
    unused: list[Path]
    attached: int = 0
    scaled: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def match_masks(manifest: Manifest, folder: StrPath) -> tuple[dict[int, Path | None], list[Path]]:
    """Row -> its mask by name, None without one, of all rows with an image; and the files that belong to no row."""
    files = []
    if os.path.isdir(folder):
        files = [file for file in walk(Path(folder)) if is_image(file)]
    if not files:
        raise ManifestError(f"{folder}: no such folder, or no masks (.png, ...) in it")

    ids = manifest.column("id")
    names = {}
    for row, source in enumerate(manifest.sources()):
        if source is not None:
            names[row] = source if isinstance(source, str) else ids[row]
    try:
        masks = masks_of(folder, names.values())
    except RequestError as error:
        raise ManifestError(str(error)) from error
    if names and not any(masks):
        row, name = next(iter(names.items()))
        expected, *_ = absent_mask(folder, name)
        raise ManifestError(
            f"{folder}: none of its {len(files)} masks has the name of an image; the mask of {ids[row]} would be "
            f"{expected}"
        )

    matches = {row: None if mask is None else Path(mask) for row, mask in zip(names, masks, strict=True)}
    used = {os.path.realpath(mask) for mask in masks if mask is not None}
    return matches, [file for file in files if os.path.realpath(file) not in used]


def attach_masks(
    manifest: Manifest,
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
    matches, unused = match_masks(manifest, folder)
    ids, masks, mask_bytes = (manifest.column(name) for name in ("id", "mask", "mask_bytes"))
    attached = Attached(manifest, unused)

    for row, file in progress(matches.items(), len(matches), "masks"):
        if file is None:
            if masks[row] is None and mask_bytes[row] is None:
                attached.problems[ids[row]] = f"no mask of that name in {folder}"
            continue
        try:
            photo = read_image(manifest.source(row) or b"")
            values = read_mask(file, image=photo, mask_id=mask_id).numpy()
            is_scaled = values.shape != (photo.height, photo.width)
            if is_scaled:
                with warnings.catch_warnings(action="ignore"):  # the first reading gave them
                    values = read_mask(file, (photo.height, photo.width), image=photo, mask_id=mask_id).numpy()
        except ImageReadError as error:
            attached.problems[ids[row]] = str(error)
            continue

        if threshold is not None:
            values = (values >= threshold).astype(np.float32)
        if not values.any():
            attached.problems[ids[row]] = f"{file}: the mask is empty, it must select the subject (white)"
            continue
        if is_scaled or threshold is not None or mask_id is not None:
            file = _copy(values, Path(copies))
        attached.attached += 1
        attached.scaled += is_scaled
        masks[row], mask_bytes[row] = str(file.absolute()), None

    moved = manifest.at(manifest.root.absolute())
    attached.manifest = moved.replace(mask=masks, mask_bytes=mask_bytes)
    return attached


def _copy(values: np.ndarray, folder: Path) -> Path:
    """The file of a mask with these values in [0, 1]."""
    pixels = np.rint(values * 255).astype(np.uint8)
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
    file = folder / digest[:2] / f"{digest[:32]}.png"
    if not file.is_file():
        with replacing(file, parents=True) as temporary:
            Image.fromarray(pixels).save(temporary, "PNG")
    return file
