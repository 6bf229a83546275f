"""Near-duplicates by a perceptual hash of 64 bits, without a model: `idmetric gallery dedupe --fast`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from idmetric.gallery.clusters import FIRST_FRAME, numbered
from idmetric.gallery.index import Item, shown
from idmetric.gallery.sources import Entry, Source, entries
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.opening import Named, is_animated, open_file
from idmetric.metric.images.read import ImageReadError, read_image
from idmetric.metric.scoring.keys import content_key
from idmetric.metric.scoring.pipeline import threads
from idmetric.metric.scoring.records import Record, Records

Bits = NDArray[np.float32]
HASHED = ("group", "size", "keep", "reason", "image", "name", "identity", "width", "height", "bytes", "bits",
          "mirrored")  # fmt: skip
MOST_BITS = 6  # of 64 that copies differ in, at most; benchmarks/copies.py
_SIDE = 32
_FLAT = 1.0  # root mean square of an image's coefficients, of gray values 0-255, below which it shows too little
_ROWS = 256  # compared with all others at once


def fast_duplicates(
    sources: Sequence[str | os.PathLike[str]],
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
    wanted = list(entries([Source(os.path.abspath(source)) for source in sources], masked=False))
    read = []
    for one in in_order(_read, wanted, threads=threads(None), waiting=64):
        read.append(one)
        if progress is not None:
            progress(len(read), len(wanted))
    usable = [one for one in read if not one[0].problem]
    usable.sort(key=lambda one: (-one[0].width * one[0].height, -one[0].size, one[0].place))

    hashes = np.array([bits for _, bits, _ in usable]).reshape(-1, 2, 64)
    relative, taken, groups = not any(map(os.path.isabs, sources)), set[int](), []
    for k, near in enumerate(_near(hashes, most_bits)):
        if k in taken:
            continue
        kept, _, kept_moves = usable[k]
        rows = {k: _row(kept, "kept", relative)}
        for j, bits, mirrored in near:
            if j in taken:
                continue
            item, _, moves = usable[j]
            reason = "hash"
            if item.key == kept.key:
                reason = "same bytes"
            elif moves or kept_moves:
                reason = FIRST_FRAME
            rows[j] = _row(item, reason, relative, bits, mirrored)
        if len(rows) > 1:
            taken |= rows.keys()
            groups.append(list(rows.values()))
    return numbered(groups, HASHED), {item.place: item.problem for item, _, _ in read if item.problem}


def perceptual_hash(gray: NDArray[np.floating]) -> Bits | None:
    """The hash of grays (32, 32), 0-255, and of the mirrored image: (2, 64) of -1 and 1; None for a plain image.

    The signs of the 64 DCT coefficients of frequencies 1 to 8, less their median (Zauner, "Implementation and
    Benchmarking of Perceptual Image Hash Functions", 2010, section 3.2.1). Of two hashes, (64 - a @ b) / 2 bits differ.
    """
    n, k = np.arange(_SIDE), np.arange(1, 9)
    cosines = np.cos(np.pi * k[:, None] * (2 * n + 1) / (2 * _SIDE)) / 4  # DCT-II, orthonormal
    coefficients = cosines @ gray @ cosines.T
    if np.sqrt(np.square(coefficients).mean()) < _FLAT:
        return None
    both = np.stack([coefficients, coefficients * (-1.0) ** k]).reshape(2, -1)  # mirrored, odd columns change signs
    return np.where(both > np.median(both, axis=1, keepdims=True), 1, -1).astype(np.float32)


def _read(entry: Entry) -> tuple[Item, Bits, bool]:
    """Return an image, its hash (for plain images, random bits of its content) and whether it has several frames."""
    try:
        data = entry.image()
        key = content_key(data, None)
        small = read_image(Named(data, entry.place), needed=lambda *_: (_SIDE, _SIDE)).convert("L")
        bits = perceptual_hash(np.asarray(small.resize((_SIDE, _SIDE)), np.float64))
        if bits is None:
            bits = np.random.default_rng(int(key[:16], 16)).choice(np.array([-1, 1], np.float32), (2, 64))
        with open_file(io.BytesIO(data)) as file:
            item = Item(entry.name, entry.place, entry.files, key, entry.identity, *file.size, len(data))
            return item, bits, is_animated(file)
    except (OSError, ImageReadError) as error:
        problem = error.reason if isinstance(error, ImageReadError) else str(error)
        return Item(entry.name, entry.place, entry.files, "", problem=problem), np.zeros((2, 64), np.float32), False


def _near(hashes: Bits, most_bits: int) -> Iterator[Iterable[tuple[int, int, bool]]]:
    """Yield for each row of hashes (N, 2, 64) the later rows that differ in few bits: row, bits, whether mirrored."""
    least = 64 - 2 * most_bits
    for start in range(0, len(hashes), _ROWS):
        plain, mirrored = (hashes[start : start + _ROWS, k] @ hashes[start:, 0].T for k in (0, 1))
        for a in range(len(plain)):
            rows = a + 1 + np.flatnonzero(np.maximum(plain[a, a + 1 :], mirrored[a, a + 1 :]) >= least)
            turned = plain[a, rows] < least
            bits = (64 - np.where(turned, mirrored[a, rows], plain[a, rows])).astype(int) // 2
            yield zip((start + rows).tolist(), bits.tolist(), turned.tolist(), strict=True)


def _row(item: Item, reason: str, relative: bool, bits: int = 0, mirrored: bool = False) -> Record:
    return {"keep": reason in ("kept", FIRST_FRAME), "reason": reason, "image": shown(item, relative),
            "name": item.name, "identity": item.identity, "width": item.width, "height": item.height,
            "bytes": item.size, "bits": bits, "mirrored": mirrored}  # fmt: skip
