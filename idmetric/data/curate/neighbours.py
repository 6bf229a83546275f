"""Nearest neighbours of another identity, exact whatever finds them.

A search (a matrix product, or FAISS for large pools) gives each anchor a shortlist by float32 similarities. These are
recomputed in float64, the anchor's own kind is struck out, and the answer counts only once it provably beats all that
the shortlist left out; else the shortlist doubles. So a hundred near copies of the anchor cannot crowd the answer out,
and both searches give the same rows to the last tie: of equals, the row that comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.io.hints import install

Single = NDArray[np.float32]
Double = NDArray[np.float64]
Ints = NDArray[np.int64]
Index = Literal["auto", "exact", "faiss"]
# queries (Q, D) and a length -> positions of the nearest (Q, length), and the similarity of the last of them (Q,)
Search = Callable[[Single, int], tuple[Ints, Single]]

EXACT_POOL = 50_000  # up to here "auto" searches by matrix product
_CELLS = 2**24  # similarities held at once (64 MB)


@dataclass(frozen=True)
class Neighbours:
    """The nearest rows of each anchor, nearest first.

    Attributes:
        rows: row numbers (A, k); -1 where there are fewer.
        similarity: cosine (A, k); NaN where there are fewer.
    """

    rows: Ints
    similarity: Double


def nearest_other(
    vectors: NDArray[np.floating],
    groups: NDArray[Any],
    k: int = 1,
    *,
    anchors: NDArray[np.integer] | None = None,
    pool: NDArray[np.integer] | None = None,
    ceiling: float | None = None,
    index: Index = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Neighbours:
    """The k rows of the pool nearest to each anchor by cosine, among those of another group.

    Args:
        vectors: embeddings (N, D), of any length.
        groups: (N,), equal for rows that are never each other's neighbours: identities, or families of them.
            Sortable, within anchors and pool.
        k: neighbours wanted, at least 1.
        anchors, pool: row numbers; default all. Rows that are in neither may hold anything.
        ceiling: leave out rows at least this similar: what is too near is likely the same thing under another name.
        index: "exact" (matrix product), "faiss" (`IndexFlatIP`), or "auto": exact up to 50,000 rows in the pool.
        progress: called with (anchors done, anchors in all).

    Raises:
        ValueError: for vectors that are zero or not finite, naming the first.
        ImportError: if FAISS is needed and missing.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    anchors = np.arange(len(vectors)) if anchors is None else np.asarray(anchors, dtype=np.int64)
    pool = np.arange(len(vectors)) if pool is None else np.unique(np.asarray(pool, dtype=np.int64))
    out = Neighbours(np.full((len(anchors), k), -1), np.full((len(anchors), k), np.nan))
    if not len(anchors) or not len(pool):
        return out
    used = np.union1d(anchors, pool)
    table = _unit(vectors, used)
    at = np.searchsorted(used, anchors)
    inside = np.searchsorted(used, pool)
    gallery = table[inside]
    by_faiss = needs_faiss(index, len(pool))
    search = _faiss(gallery) if by_faiss else _exact(gallery)
    codes = np.unique(groups[used], return_inverse=True)[1]  # of these alone: a pool may be tiny, the manifest huge
    own, theirs = codes[at], codes[inside]
    # its own kind, k others, and one more to prove that nothing was missed; rounded up, so that few lengths differ
    need = np.bincount(theirs, minlength=len(used))[own] + k + 1
    need = np.minimum(2 ** np.ceil(np.log2(need)).astype(np.int64), len(pool))
    open_ = np.ones(len(anchors), dtype=bool)
    while open_.any():
        length = int(need[open_].min())
        waiting = np.flatnonzero(open_ & (need == length))
        step = max(1, min(8192, _CELLS // (length if by_faiss else len(pool))))
        for start in range(0, len(waiting), step):
            rows = waiting[start : start + step]
            shortlist, last = search(table[at[rows]], length)
            barred = theirs[shortlist] == own[rows, None]
            found, similarity = _pick(table[at[rows]], gallery, shortlist, barred, k, ceiling)
            # the float32 similarities that it was drawn up by may be off by this much, at most
            slack = vectors.shape[1] * 2.0**-23
            sure = np.nan_to_num(similarity[:, -1], nan=-np.inf) > last.astype(np.float64) + slack
            sure |= length == len(pool)
            out.rows[rows[sure]] = np.where(found[sure] < 0, -1, pool[found[sure]])
            out.similarity[rows[sure]] = similarity[sure]
            open_[rows[sure]] = False
            need[rows[~sure]] = min(2 * length, len(pool))
            if progress is not None:
                progress(int((~open_).sum()), len(anchors))
    return out


def needs_faiss(index: Index, pool: int) -> bool:
    """Whether a pool of this many rows is searched with FAISS."""
    return index == "faiss" or (index == "auto" and pool > EXACT_POOL)


def check_index(index: Index, pool: int) -> None:
    """Check that a pool of this size can be searched, before images are embedded.

    Raises:
        ImportError: if FAISS is needed and missing.
    """
    if needs_faiss(index, pool):
        _import_faiss(pool)


def _pick(
    queries: Single, gallery: Single, shortlist: Ints, barred: NDArray[np.bool_], k: int, ceiling: float | None
) -> tuple[Ints, Double]:
    """The k best of each shortlist that are not barred: their positions (Q, k), -1 = none, and similarities."""
    similarity = _dots(queries, gallery, shortlist)
    allowed = ~barred
    if ceiling is not None:
        allowed &= similarity < ceiling
    score = np.where(allowed, similarity, -np.inf)
    order = np.lexsort((shortlist, -score))[:, :k]
    best = np.take_along_axis(score, order, axis=1)
    found = np.where(best == -np.inf, -1, np.take_along_axis(shortlist, order, axis=1))
    best = np.where(found < 0, np.nan, best)
    short = k - found.shape[1]  # a pool of fewer than k
    return (np.pad(found, ((0, 0), (0, short)), constant_values=-1),
            np.pad(best, ((0, 0), (0, short)), constant_values=np.nan))  # fmt: skip


def _dots(queries: Single, gallery: Single, shortlist: Ints) -> Double:
    """Similarities (Q, L) in float64, each pair on its own, so that equal vectors give equal numbers."""
    left = np.repeat(np.arange(len(queries)), shortlist.shape[1])
    right = shortlist.ravel()
    out = np.empty(len(right))
    step = max(1, _CELLS // 8 // gallery.shape[1])
    for start in range(0, len(right), step):
        part = slice(start, start + step)
        out[part] = (queries[left[part]].astype(np.float64) * gallery[right[part]]).sum(axis=1)
    return out.reshape(shortlist.shape)


def _unit(vectors: NDArray[np.floating], rows: Ints) -> Single:
    out = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
    step = max(1, _CELLS // 8 // vectors.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        x = vectors[part].astype(np.float64)
        norm = np.linalg.norm(x, axis=1, keepdims=True)
        bad = ~(np.isfinite(norm[:, 0]) & (norm[:, 0] > 0))
        if bad.any():
            raise ValueError(f"the embedding of row {int(part[bad][0]) + 1} is zero or not finite: it has no direction")
        out[start : start + step] = x / norm
    return out


def _exact(gallery: Single) -> Search:
    def search(queries: Single, length: int) -> tuple[Ints, Single]:
        similarity = queries @ gallery.T
        cut = len(gallery) - length
        if cut == 0:
            every = np.broadcast_to(np.arange(len(gallery)), similarity.shape)
            return every, np.full(len(queries), -np.inf, dtype=np.float32)
        nearest = np.argpartition(similarity, cut, axis=1)[:, cut:]
        return nearest, np.take_along_axis(similarity, nearest, axis=1).min(axis=1)

    return search


def _import_faiss(pool: int) -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            f"a pool of {pool} images is searched with FAISS: {install('scale')} "
            "(or ask for the exact index, which is slower)"
        ) from error
    return faiss


def _faiss(gallery: Single) -> Search:
    faiss = _import_faiss(len(gallery))
    flat = faiss.IndexFlatIP(gallery.shape[1])
    flat.add(gallery)

    def search(queries: Single, length: int) -> tuple[Ints, Single]:
        similarity, nearest = flat.search(np.ascontiguousarray(queries), length)
        return nearest.astype(np.int64), similarity[:, -1]

    return search
