"""Near-duplicates by a perceptual hash of 64 bits, without a model: `idmetric gallery dedupe --fast`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from idmetric.gallery.clusters import FIRST_FRAME, numbered
from idmetric.gallery.index import Item, row_of
from idmetric.gallery.sources import Entry, Source, entries
from idmetric.metric.files import StrPath
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.opening import Named, is_animated, open_file
from idmetric.metric.images.read import ImageReadError, read_image
from idmetric.metric.scoring.keys import content_key
from idmetric.metric.scoring.pipeline import threads
from idmetric.metric.scoring.records import Record, Records

Bits = NDArray[np.float32]
HASHED = (
    "group", "size", "keep", "reason", "image", "name", "identity", "width", "height", "bytes", "bits", "mirrored",
)  # fmt: skip
MOST_BITS = 6  # of 64 that copies differ in, at most; benchmarks/copies.py
_SIDE = 32
_FLAT = 1.0  # root mean square of an image's coefficients, of gray values 0-255, below which it shows too little
_ROWS = 256  # compared with all others at once


class HashedImage(NamedTuple):
    """An image, its hash and that of the mirrored image, and whether it has several frames."""

    item: Item
    hashes: Bits
    is_animated: bool


def fast_duplicates(
    sources: Sequence[StrPath],
    *,
    most_bits: int = MOST_BITS,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Records, dict[str, str]]:
    """Find groups of images with the same bytes, or with hashes that differ in few bits, also mirrored.

    Faster than `near_duplicates` and less sure: crops are missed, and similar pictures may be linked. Look at each
    group before you remove files.

    Args:
        sources: folders, files or manifests. progress: called with (images read, all images).

    Returns:
        A row for each image of a group, as by `near_duplicates`: the largest image is kept, `bits` are those in which a
        hash differs from the kept image's, and `reason` is "kept", "same bytes", "hash" or as there. Also the
        places of unreadable images, and the reasons.

    Raises:
        GalleryError: if a source is missing or holds no image.
    """
    folders = [Source(os.path.abspath(source)) for source in sources]
    wanted = list(entries(folders, masked=False))
    images: list[HashedImage] = []
    problems: dict[str, str] = {}
    for done, image in enumerate(in_order(_read, wanted, threads=threads(None), waiting=64), 1):
        if image.item.problem:
            problems[image.item.place] = image.item.problem
        else:
            images.append(image)
        if progress is not None:
            progress(done, len(wanted))
    images.sort(key=_largest_first)

    relative = not any(map(os.path.isabs, sources))
    hashes = np.array([image.hashes for image in images]).reshape(-1, 2, 64)
    grouped: set[int] = set()
    groups: list[list[Record]] = []
    for row, similar in enumerate(_similar(hashes, most_bits)):
        if row in grouped:
            continue
        kept = images[row]
        group = {row: _row(kept.item, "kept", relative)}
        for other_row, bits, mirrored in similar:
            if other_row in grouped:
                continue
            image = images[other_row]
            reason = "hash"
            if image.item.key == kept.item.key:
                reason = "same bytes"
            elif image.is_animated or kept.is_animated:
                reason = FIRST_FRAME
            group[other_row] = _row(image.item, reason, relative, bits, mirrored)
        if len(group) > 1:
            grouped |= group.keys()
            groups.append(list(group.values()))
    return numbered(groups, HASHED), problems


def _largest_first(image: HashedImage) -> tuple[int, int, str]:
    item = image.item
    return -item.width * item.height, -item.size, item.place


def perceptual_hash(gray: NDArray[np.floating]) -> Bits | None:
    """The hash of grays (32, 32), 0-255, and of the mirrored image: (2, 64) of -1 and 1; None for a plain image.

    The signs of the 64 DCT coefficients of frequencies 1 to 8, less their median (Zauner, "Implementation and
    Benchmarking of Perceptual Image Hash Functions", 2010, section 3.2.1). Of two hashes, (64 - a @ b) / 2 bits differ.
    """
    pixels, frequencies = np.arange(_SIDE), np.arange(1, 9)
    angles = np.outer(np.pi * frequencies, 2 * pixels + 1) / (2 * _SIDE)
    cosines = np.cos(angles) / 4  # DCT-II, orthonormal
    coefficients = cosines @ gray @ cosines.T
    if np.sqrt(np.square(coefficients).mean()) < _FLAT:
        return None
    mirrored = coefficients * (-1.0) ** frequencies  # odd columns change signs
    both = np.stack([coefficients, mirrored]).reshape(2, -1)
    return np.where(both > np.median(both, axis=1, keepdims=True), 1, -1).astype(np.float32)


def _read(entry: Entry) -> HashedImage:
    item = Item(entry.name, entry.place, entry.files, "", entry.identity)
    try:
        data = entry.image()
        key = content_key(data, None)
        image = read_image(Named(data, entry.place), needed=lambda *_: (_SIDE, _SIDE))
        gray = image.convert("L").resize((_SIDE, _SIDE))
        hashes = perceptual_hash(np.asarray(gray, np.float64))
        if hashes is None:  # random bits of its content
            rng = np.random.default_rng(int(key[:16], 16))
            hashes = rng.choice(np.array([-1, 1], np.float32), (2, 64))
        with open_file(io.BytesIO(data)) as file:
            width, height = file.size
            item = replace(item, key=key, width=width, height=height, size=len(data))
            return HashedImage(item, hashes, is_animated(file))
    except ImageReadError as error:
        problem = error.reason
    except OSError as error:
        problem = str(error)
    return HashedImage(replace(item, problem=problem), np.zeros((2, 64), np.float32), False)


def _similar(hashes: Bits, most_bits: int) -> Iterator[list[tuple[int, int, bool]]]:
    """Yield for each row of hashes (N, 2, 64) the later rows that differ in few bits: row, bits, whether mirrored."""
    least = 64 - 2 * most_bits  # product of two hashes
    for start in range(0, len(hashes), _ROWS):
        block = hashes[start : start + _ROWS]
        later = hashes[start:, 0].T
        plain_products = block[:, 0] @ later
        mirrored_products = block[:, 1] @ later
        for row, (plain, mirrored) in enumerate(zip(plain_products, mirrored_products, strict=True)):
            is_similar = np.maximum(plain, mirrored) >= least
            is_similar[: row + 1] = False
            rows = np.flatnonzero(is_similar)
            is_mirrored = plain[rows] < least
            products = np.where(is_mirrored, mirrored[rows], plain[rows])
            bits = (64 - products).astype(int) // 2
            columns = (start + rows).tolist(), bits.tolist(), is_mirrored.tolist()
            yield list(zip(*columns, strict=True))


def _row(
    item: Item,
    reason: str,
    relative: bool,
    bits: int = 0,
    mirrored: bool = False,
) -> Record:
    row = {"keep": reason in ("kept", FIRST_FRAME), "reason": reason, **row_of(item, relative)}
    return {**row, "bytes": item.size, "bits": bits, "mirrored": mirrored}
