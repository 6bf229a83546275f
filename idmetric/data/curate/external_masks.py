"""Attach masks that another program made, such as RMBG, BiRefNet or an annotation tool, to the images of a manifest.

A mask belongs to the image with the end of its path (`idmetric.images.paths.mask_of`). An image within the manifest
goes by its id.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.images.kinds import ImageReadError
from idmetric.images.masks import MaskId, read_mask
from idmetric.images.paths import InputError, absent_mask, is_image, masks_of, walk
from idmetric.images.read import read_image
from idmetric.io.output import replacing

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


@dataclass
class Attached:
    """A manifest with masks.

    Attributes:
        manifest: rows in their order, with the new masks; a row without a new mask keeps the one it had.
        attached, scaled, soft, kept: numbers of rows with a new mask, with a mask that was scaled to its image, with
            a mask that has values between background and subject, and with the mask that the manifest had.
        unused: files that belong to no row.
        problems: id -> reason, of images that have no mask, or one that cannot be used. A text without an image needs
            none.
    """

    manifest: Manifest
    attached: int = 0
    scaled: int = 0
    soft: int = 0
    kept: int = 0
    unused: list[Path] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def match_masks(manifest: Manifest, folder: str | os.PathLike[str]) -> tuple[list[Path | None], list[Path]]:
    """The mask of each row by name, None without one, see the module; and the files that belong to no row.

    Raises:
        ManifestError: if the folder has no images, one mask fits two images, or none fits any.
    """
    if not os.path.isdir(folder):
        raise ManifestError(f"{folder}: no such folder")
    files = [file for file in walk(Path(folder)) if is_image(file)]
    if not files:
        raise ManifestError(f"{folder}: no masks (.png, ...) in the folder")
    sources, ids = manifest.sources(), manifest.column("id")
    pictures = [k for k, source in enumerate(sources) if source is not None]
    names = [source if isinstance(source, str) else ids[k] for k in pictures if (source := sources[k]) is not None]
    try:
        masks = dict(zip(pictures, masks_of(folder, names), strict=True))
    except InputError as error:
        raise ManifestError(str(error)) from error
    if names and not any(masks.values()):
        wanted = absent_mask(folder, names[0])[0]
        raise ManifestError(
            f"{folder}: none of its {len(files)} masks has the name of an image; the mask of {ids[pictures[0]]} would "
            f"be {wanted}"
        )
    used = {os.path.realpath(mask) for mask in masks.values() if mask is not None}
    found = [None if (mask := masks.get(k)) is None else Path(mask) for k in range(len(manifest))]
    return found, [file for file in files if os.path.realpath(file) not in used]


def attach_masks(
    manifest: Manifest, folder: str | os.PathLike[str], copies: str | os.PathLike[str],
    threshold: float | None = None, mask_id: MaskId | None = None,
    progress: Progress = lambda items, total, what: items, dry: bool = False,
) -> Attached:  # fmt: skip
    """Attach the masks of a folder by name, and check that each fits its image.

    A mask of its image's size is attached as it is. One of the same shape and another size is scaled to its image by
    exact area, and a copy is written. Soft masks stay soft unless `threshold` cuts them; generation takes values of one
    half and more as subject.

    Args:
        copies: folder for scaled and cut masks; their names follow from their content.
        threshold: makes masks of 0 and 255: the subject is where the coverage reaches it, in (0, 1].
        mask_id: the label that is the subject, for masks of several labels.
        dry: write no copies.

    Raises:
        ManifestError: as `match_masks`.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"threshold {threshold:g}: it must be within (0, 1]")
    files, unused = match_masks(manifest, folder)
    ids, old, old_bytes = (manifest.column(c) for c in ("id", "mask", "mask_bytes"))
    new, data = list(old), list(old_bytes)
    done = Attached(manifest, unused=unused)

    for k in cast("Iterable[int]", progress(range(len(manifest)), len(manifest), "masks")):
        file = files[k]
        if file is None:
            if manifest.source(k) is None:
                continue
            if old[k] is None and old_bytes[k] is None:
                done.problems[ids[k]] = f"no mask of that name in {folder}"
            else:
                done.kept += 1
            continue
        try:
            cover, size = _coverage(manifest, k, file, mask_id)
        except ImageReadError as error:
            done.problems[ids[k]] = str(error)
            continue
        cut = cover if threshold is None else (cover >= threshold).astype(np.float32)
        if not cut.any():
            done.problems[ids[k]] = f"{file}: the mask is empty, it must select the subject (white)"
            continue

        done.attached += 1
        done.scaled += size != cover.shape
        done.soft += bool(((cut > 0) & (cut < 1)).any())
        as_it_is = size == cover.shape and threshold is None and mask_id is None
        where = file if as_it_is else _copy(cut, Path(copies), dry)
        new[k], data[k] = str(where.absolute()), None

    done.manifest = manifest.at(manifest.root.absolute()).replace(mask=new, mask_bytes=data)
    return done


def _coverage(
    manifest: Manifest, row: int, file: Path, mask_id: MaskId | None
) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """The mask's coverage at its image's size (height, width), and the file's own size.

    Raises:
        ImageReadError: if the image or the mask cannot be read, or their shapes differ.
    """
    image = read_image(cast("str | bytes", manifest.source(row)))
    own = read_mask(os.fspath(file), image=image, mask_id=mask_id)
    size = (own.shape[0], own.shape[1])
    if size == (image.height, image.width):
        return own.numpy(), size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first reading gave them
        scaled = read_mask(os.fspath(file), (image.height, image.width), image=image, mask_id=mask_id)
    return scaled.numpy(), size


def _copy(cover: NDArray[np.float32], folder: Path, dry: bool) -> Path:
    """Write coverage as an 8-bit image with a name that follows from its content."""
    pixels = np.rint(cover * 255).astype(np.uint8)
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
    path = folder / digest[:2] / f"{digest[:32]}.png"
    if not dry and not path.is_file():
        with replacing(path, parents=True) as temporary:
            Image.fromarray(pixels).save(temporary, "PNG")
    return path
