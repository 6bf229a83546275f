"""The k nearest vectors by cosine, exact whatever finds them, in memory that does not grow with the table.

A search goes over the table a block at a time (a matrix product for each, or FAISS's flat index) and keeps a shortlist
by float32 similarity. The shortlist is measured again in float64, each pair on its own, and counts only once it
provably beats all that was left out, or else is made twice as long. So both searches give the same rows and the same
distances, and of equals the row that comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from idmetric.io.hints import install

Single = NDArray[np.float32]
Double = NDArray[np.float64]
Ints = NDArray[np.int64]
Index = Literal["auto", "exact", "faiss"]

EXACT_ROWS = 200_000  # up to here "auto" searches by matrix product
_CELLS = 2**24  # similarities held at once (64 MB)
_SHORTLISTED = 2**16  # vectors measured at once
_SPARE = 8  # a shortlist is at least so much longer than what is asked for
# queries (Q, D) and a length -> rows (Q, length), and a similarity (Q,) that no row left out exceeds
Search = Callable[[Single, int], tuple[Ints, Single]]


class Table(Protocol):
    """Vectors that may lie in files. Rows are numbered from 0."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[tuple[Ints, Single]]:
        """All rows, a part at a time: their numbers (B,) and unit vectors (B, D)."""

    def rows(self, numbers: Ints) -> Single:
        """The unit vectors (N, D) of some."""


def unit(vectors: NDArray[np.floating]) -> Single:
    """Vectors (N, D) of length 1.

    Raises:
        ValueError: for one that is zero or not finite.
    """
    wide = vectors.astype(np.float64)
    norm = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (np.isfinite(norm).all() and (norm > 0).all()):
        raise ValueError("an embedding is zero or not finite: it has no direction")
    found: Single = (wide / norm).astype(np.float32)
    return found


def nearest(queries: NDArray[np.floating], table: Table, k: int, *, index: Index = "auto") -> tuple[Ints, Double]:
    """The k rows of the table nearest to each query, nearest first; of equal ones the first row first.

    Args:
        queries: (Q, D). table: at least one row.
        k: at least 1; all rows where the table has fewer.
        index: "exact" (matrix products), "faiss" (`IndexFlatIP`, which holds the table in memory), or "auto": exact up
            to 200,000 rows, then FAISS where it is installed.

    Returns:
        Rows (Q, k) and distances 1 - cos (Q, k), in [0, 2].

    Raises:
        ImportError: if FAISS is asked for and missing.
        ValueError: for k below 1, an unknown index, an empty table, or vectors without direction.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not len(table):
        raise ValueError("there is nothing to search in")
    wanted, k = unit(queries), min(k, len(table))
    search = _faiss(table) if _by_faiss(index, len(table)) else _exact(table)
    rows, far = np.empty((len(wanted), k), np.int64), np.empty((len(wanted), k))
    open_, length = np.arange(len(wanted)), min(2 * k + _SPARE, len(table))
    while len(open_):
        step = max(1, _SHORTLISTED // length)
        again = []
        for start in range(0, len(open_), step):
            part = open_[start : start + step]
            shortlist, bound = search(wanted[part], length)
            found, distance = _measured(wanted[part], table, shortlist, k)
            # float32 similarities may be off by this much, at most
            sure = (1 - distance[:, -1] > bound.astype(np.float64) + wanted.shape[1] * 2.0**-23) | (
                length == len(table)
            )
            rows[part[sure]], far[part[sure]] = found[sure], distance[sure]
            again.append(part[~sure])
        open_, length = np.concatenate(again), min(2 * length, len(table))
    return rows, far


def distances(queries: Single, vectors: Single) -> Double:
    """1 - cos of unit vectors (N, D) and (N, D), row by row, in float64: 0 for equal ones."""
    found: Double = np.square(queries.astype(np.float64) - vectors).sum(1) / 2
    return found


def _measured(queries: Single, table: Table, shortlist: Ints, k: int) -> tuple[Ints, Double]:
    """The k best of each shortlist, in float64."""
    different, at = np.unique(shortlist, return_inverse=True)
    vectors, at = table.rows(different), at.reshape(shortlist.shape)
    far = np.stack([distances(np.broadcast_to(q, (len(a), len(q))), vectors[a])
                    for q, a in zip(queries, at, strict=True)])  # fmt: skip
    order = np.lexsort((shortlist, far))[:, :k]
    return np.take_along_axis(shortlist, order, 1), np.take_along_axis(far, order, 1)


def _exact(table: Table) -> Search:
    def search(queries: Single, length: int) -> tuple[Ints, Single]:
        rows = np.empty((len(queries), 0), np.int64)
        best = np.empty((len(queries), 0), np.float32)
        out = np.full(len(queries), -np.inf, np.float32)
        for numbers, block in _pieces(table, max(1, _CELLS // max(1, len(queries)))):
            rows = np.concatenate([rows, np.broadcast_to(numbers, (len(queries), len(numbers)))], 1)
            best = np.concatenate([best, queries @ block.T], 1)
            if best.shape[1] > length:
                order = np.argpartition(-best, length - 1, 1)
                dropped = np.take_along_axis(best, order[:, length:], 1).max(1)
                out = np.maximum(out, dropped)
                rows = np.take_along_axis(rows, order[:, :length], 1)
                best = np.take_along_axis(best, order[:, :length], 1)
        return rows, out

    return search


def _pieces(table: Table, size: int) -> Iterator[tuple[Ints, Single]]:
    for numbers, block in table.blocks():
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size], block[start : start + size]


def _by_faiss(index: Index, rows: int) -> bool:
    if index not in ("auto", "exact", "faiss"):
        raise ValueError(f"unknown index {index!r}: choose auto, exact or faiss")
    if index == "exact" or (index == "auto" and rows <= EXACT_ROWS):
        return False
    try:
        import faiss  # noqa: F401
    except ImportError as error:
        if index == "auto":
            return False
        raise ImportError(f"index='faiss' needs FAISS: {install('scale')} (or index='exact')") from error
    return True


def _faiss(table: Table) -> Search:
    if not hasattr(table, "_flat"):  # built once: it copies the table
        import faiss

        flat: Any = None
        order = []
        for numbers, block in table.blocks():
            flat = faiss.IndexFlatIP(block.shape[1]) if flat is None else flat
            flat.add(np.ascontiguousarray(block))
            order.append(numbers)
        table._flat = (flat, np.concatenate(order))  # type: ignore[attr-defined]  # lives as long as the table
    index, of = table._flat  # type: ignore[attr-defined]  # set above

    def search(queries: Single, length: int) -> tuple[Ints, Single]:
        similarity, found = index.search(np.ascontiguousarray(queries), length)
        return of[found], similarity[:, -1]  # sorted: nothing left out exceeds the last

    return search
