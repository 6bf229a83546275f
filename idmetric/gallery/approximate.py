"""Approximate search by FAISS, for galleries of millions: an inverted file of vectors of 8 bits a number.

The index takes a quarter of the vectors' size. It gives candidates alone, whose distances are measured exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.nearest import Ints, Single
from idmetric.gallery.files import Vectors
from idmetric.metric.files import need, replacing

Candidates = Callable[[Single, int], Ints]  # the rows that are probably nearest to a unit vector (D,), so many or more
_FACTOR = 10  # candidates for each image that is asked for
_TRAINED = 40  # vectors to train with, for each list; FAISS asks for 39
_LEAST = 16  # lists that are searched, at least
_PROBED = 0.4  # share of the lists that are searched: finds 96 % of the 10 nearest even among vectors without clusters
_BLOCK = 2**15  # vectors added at once


def open_index(vectors: Vectors, path: Path | None) -> Candidates:
    """Read the index of a gallery, or make it.

    Args:
        path: keeps the index, and is named by the version of the gallery; None: it is made each time.

    Raises:
        ImportError: without FAISS. OutputError: if the index cannot be written.
    """
    need("faiss", "index='faiss'", faiss="faiss-cpu")
    import faiss

    if path is not None and path.is_file():
        index = faiss.read_index(str(path))
    else:
        index = _make(vectors)
        if path is not None:
            for old in path.parent.glob(f"*{path.suffix}"):
                old.unlink()
            with replacing(path) as temporary:
                faiss.write_index(index, str(temporary))
    index.nprobe = max(_LEAST, round(_PROBED * index.nlist))
    return partial(_candidates, index)


def _make(vectors: Vectors) -> Any:
    """An inverted file with about as many lists as vectors in each."""
    import faiss

    count = len(vectors)
    lists = max(1, round(count**0.5))
    sample = np.random.default_rng(0).permutation(count)[: _TRAINED * lists]
    width = vectors.arrays[0].shape[1]
    index = faiss.index_factory(width, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors.unit(np.sort(sample)))
    for start in range(0, count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, count))
        index.add(vectors.unit(rows))
    return index


def _candidates(index: Any, query: Single, count: int) -> Ints:
    _, rows = index.search(query[None], min(_FACTOR * count, index.ntotal))
    nearest: Ints = rows[0][rows[0] >= 0]
    return nearest
