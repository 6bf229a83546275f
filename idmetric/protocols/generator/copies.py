"""Agreement of generated images with references, pixel by pixel; values are kept, and each pair is compared once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np

from idmetric.data.embed import Look, content_keys
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.copies import compare
from idmetric.images.read import read_image
from idmetric.protocols.common.arrays import Array, Ints
from idmetric.protocols.common.pair_store import PairStore, cell_of
from idmetric.protocols.common.scorers import Progress
from idmetric.scoring.copies import Prints, small_picture

_FOLDER = "copies-1"  # the number is the detector's version
_SAVE_SECONDS = 20.0
_CHUNK = 64  # images read ahead


def agreements(
    data: Manifest,
    images: Ints,
    references: Ints,
    store: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Array:
    """Agreement (P,) of each image with a reference, see `idmetric.evaluate.copies`.

    Args:
        images, references: rows (P,) of pairs; pairs of one reference are best next to each other.
        store: the folder that keeps embeddings; known pairs are not read again.
        progress: called with (pairs compared, pairs to compare).

    Raises:
        UnreadableError, ImageReadError: for images that cannot be read.
    """
    kept = None if store is None else PairStore(store / _FOLDER)
    with ThreadPoolExecutor(workers or 8) as pool:
        rows = sorted({*images.tolist(), *references.tolist()})
        content = content_keys(data, rows, Look(), pool)
        keys = list(dict.fromkeys(content.values()))
        number = {key: k for k, key in enumerate(keys)}
        a, b = (np.array([number[content[int(row)]] for row in side], np.int64) for side in (images, references))
        cells = cell_of(np.minimum(a, b), np.maximum(a, b))
        known, values = (np.empty(0, np.int64), np.empty(0)) if kept is None else kept.read(keys)
        first = np.unique(cells, return_index=True)[1]
        todo = np.sort(first[~np.isin(cells[first], known)])  # in the order of the pairs
        found, saved, since = np.empty(len(todo)), 0, time.monotonic()
        prints = Prints()

        try:
            done = 0
            for start in range(0, len(todo), _CHUNK):
                part = todo[start : start + _CHUNK]
                wanted = dict.fromkeys([*images[part].tolist(), *references[part].tolist()])
                sources = [cast("str | bytes", data.source(row)) for row in wanted]
                small = dict(zip(wanted, pool.map(lambda s: small_picture(read_image(s)), sources), strict=True))
                for k, pair in enumerate(part, start):
                    one, other = int(references[pair]), int(images[pair])
                    reference, image = prints.of(keys[b[pair]], small[one]), prints.of(keys[a[pair]], small[other])
                    assert reference is not None
                    assert image is not None
                    found[k] = compare(reference, image).agreement
                done = start + len(part)
                if progress is not None:
                    progress(done, len(todo))
                if kept is not None and time.monotonic() - since > _SAVE_SECONDS:
                    kept.add(keys, cells[todo[saved:done]], found[saved:done])
                    saved, since = done, time.monotonic()
        finally:
            if kept is not None and done > saved:
                kept.add(keys, cells[todo[saved:done]], found[saved:done])

    every, values = np.append(known, cells[todo]), np.append(values, found)
    order = np.argsort(every)
    agreed: Array = values[order][np.searchsorted(every[order], cells)]
    return agreed
