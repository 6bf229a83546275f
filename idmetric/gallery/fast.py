"""Near-duplicates by a perceptual hash of 64 bits, without a model: `idmetric gallery dedupe --fast`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from idmetric.embed.keys import content_key
from idmetric.embed.pipeline import threads
from idmetric.gallery.clusters import FIRST_FRAME, Links, grouped
from idmetric.gallery.index import Item, by_key, shown
from idmetric.gallery.sources import Entry, Source, entries
from idmetric.images.opening import Named, frames_of, open_file
from idmetric.images.read import ImageReadError, read_image
from idmetric.io.threads import in_order
from idmetric.scoring.records import Record, Records

Bits = NDArray[np.float32]
HASHED = ("group", "size", "keep", "reason", "image", "name", "identity", "width", "height", "bytes", "bits",
          "mirrored")  # fmt: skip
MOST_BITS = 6  # of 64 that copies differ in, at most; benchmarks/copies.py
_SIDE, _FREQUENCIES = 32, 8
_FLAT = 1.0  # root mean square of an image's coefficients, of gray values 0-255, below which it shows too little
_ROWS = 1024  # compared with all others at once


def fast_duplicates(
    sources: Sequence[str | os.PathLike[str]],
    *,
    most_bits: int = MOST_BITS,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Records, dict[str, str]]:
    """Find groups of images with the same bytes, or whose hashes differ in few bits, also mirrored.

    Faster than `near_duplicates` and less sure: crops are missed, and similar pictures may be linked. Look at each
    group before you remove files.

    Args:
        sources: folders, files or manifests. progress: called with (images read, all images).

    Returns:
        A row for each image of a group, as by `near_duplicates`: the largest image is kept, `bits` are those in which a
        hash differs from the kept image's, and `reason` is "kept", "same bytes", "hash" or "first frame only". Also the
        places of unreadable images, and the reasons.

    Raises:
        GalleryError: if a source is missing or holds no image.
    """
    given = {os.path.abspath(source): os.fspath(source) for source in sources}
    wanted = list(entries([Source(path) for path in given], masked=False))
    relative = not any(map(os.path.isabs, given.values()))
    items: list[Item] = []
    hashes: dict[str, tuple[Bits, int]] = {}
    problems: dict[str, str] = {}
    for done, (item, bits, frames) in enumerate(in_order(_read, wanted, threads=threads(None), waiting=64), 1):
        if item.problem:
            problems[item.place] = item.problem
        else:
            items.append(item)
            hashes[item.key] = bits, frames
        if progress is not None:
            progress(done, len(wanted))
    table = np.stack([bits for bits, _ in hashes.values()]) if hashes else np.empty((0, 2, 64), np.float32)
    links = Links(len(table))
    for a, b in _alike(table, most_bits):
        links.join(a, b)
    keys, same = list(hashes), by_key(items)
    linked = [[item for row in rows for item in same[keys[row]]] for rows in links.groups()]
    compared = partial(_compared, hashes=hashes, most_bits=most_bits, relative=relative)
    return grouped(linked, _largest, compared, HASHED), problems


def perceptual_hash(gray: NDArray[np.floating]) -> Bits:
    """The hash of grays (32, 32), 0-255, and of the mirrored image: (2, 64) of -1 and 1; zeros for a plain image.

    The signs of the 64 DCT coefficients of frequencies 1 to 8, less their median (Zauner, "Implementation and
    Benchmarking of Perceptual Image Hash Functions", 2010, section 3.2.1). Of two hashes, (64 - a @ b) / 2 bits differ.
    """
    n, k = np.arange(_SIDE), np.arange(1, _FREQUENCIES + 1)
    cosines = np.cos(np.pi * k[:, None] * (2 * n + 1) / (2 * _SIDE)) / 4  # DCT-II, orthonormal
    coefficients = cosines @ gray @ cosines.T
    both = np.stack([coefficients, coefficients * (-1.0) ** k]).reshape(2, -1)  # mirrored, odd columns change signs
    if np.sqrt(np.square(coefficients).mean()) < _FLAT:
        return np.zeros((2, _FREQUENCIES**2), np.float32)
    return np.where(both > np.median(both, axis=1, keepdims=True), 1, -1).astype(np.float32)


def _read(entry: Entry) -> tuple[Item, Bits, int]:
    item, nothing = Item(entry.name, entry.place, entry.files, "", entry.identity), np.zeros((2, 64), np.float32)
    try:
        data = entry.image()
        with open_file(io.BytesIO(data)) as file:
            item = Item(entry.name, entry.place, entry.files, content_key(data, None), entry.identity, *file.size,
                        len(data))  # fmt: skip
            frames = frames_of(file)
        small = read_image(Named(data, entry.place), needed=lambda *_: (_SIDE, _SIDE)).convert("L")
        return item, perceptual_hash(np.asarray(small.resize((_SIDE, _SIDE)), np.float64)), frames
    except (OSError, ImageReadError) as error:
        reason = error.reason if isinstance(error, ImageReadError) else str(error)
        return Item(entry.name, entry.place, entry.files, "", problem=reason), nothing, 0


def _alike(hashes: Bits, most_bits: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of hashes (N, 2, 64) that differ in few bits, also mirrored."""
    plain = np.ascontiguousarray(hashes[:, 0])
    for start in range(0, len(hashes), _ROWS):
        for turn in (0, 1):
            product = hashes[start : start + _ROWS, turn] @ plain[start:].T
            a, b = np.nonzero(product >= 64 - 2 * most_bits)
            yield from ((i + start, j + start) for i, j in zip(a.tolist(), b.tolist(), strict=True) if i < j)


def _largest(items: Sequence[Item]) -> Item:
    return min(items, key=lambda item: (-item.width * item.height, -item.size, item.place))


def _compared(
    items: Sequence[Item], hashes: dict[str, tuple[Bits, int]], most_bits: int, relative: bool
) -> list[Record]:
    """Rows of images, compared with the first; see `grouped`."""
    (own, frames), found = hashes[items[0].key], []
    for item in items:
        bits, others = hashes[item.key]
        differing = (64 - bits @ own[0]) / 2 if item.key != items[0].key else np.zeros(2)
        reason = "hash" if differing.min() <= most_bits else ""
        if item.key == items[0].key:
            reason = "kept" if item is items[0] else "same bytes"
        elif reason and (frames, others) != (1, 1):
            reason = FIRST_FRAME
        found.append({
            "keep": reason in ("kept", FIRST_FRAME), "reason": reason, "image": shown(item, relative),
            "name": item.name, "identity": item.identity, "width": item.width, "height": item.height,
            "bytes": item.size, "bits": int(differing.min()), "mirrored": bool(differing[1] < differing[0]),
        })  # fmt: skip
    return found
