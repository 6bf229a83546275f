"""Exact nearest neighbors by cosine: all pairs are compared, a block of queries at a time.

Similarities in float32 give a shortlist, which is measured again in float64. Rows that are equally near in six decimals
(`distance.ties.comparable`) come in the order of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idmetric.metric.ties import comparable

Single = NDArray[np.float32]
Double = NDArray[np.float64]
Ints = NDArray[np.int64]
Progress = Callable[[int, int], None]

_CELLS = 2**23  # similarities held at once (32 MB)
_SCALED = 2**12  # vectors scaled at once
_MEASURED = 2**8  # pairs measured at once: more do not fit into a processor's cache
_NOISE = 1e-5  # of a similarity in float32, at most


def unit(vectors: NDArray[np.floating], rows: Ints | None = None) -> Single:
    """Scale vectors (N, D), or some rows of them, to length 1; ValueError names one that is zero or not finite."""
    if rows is None:
        rows = np.arange(len(vectors))
    units = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
    for start in range(0, len(rows), _SCALED):
        part = rows[start : start + _SCALED]
        exact = vectors[part].astype(np.float64)
        norm = np.linalg.norm(exact, axis=1, keepdims=True)
        has_direction = np.isfinite(norm) & (norm > 0)
        if not has_direction.all():
            row = part[has_direction.argmin()]
            raise ValueError(f"the embedding of row {row + 1} is zero or not finite: no direction")
        units[start : start + _SCALED] = exact / norm
    return units


def distances(queries: Single, vectors: Single) -> Double:
    """1 - cos of unit vectors (N, D) or (D,) and (N, D), row by row, in float64: 0 for equal ones."""
    result: Double = np.square(queries.astype(np.float64) - vectors).sum(1) / 2
    return result


def cosines(queries: Single, vectors: Single) -> Double:
    """Return the cosines of unit vectors (N, D) or (D,) and (N, D), row by row, in float64."""
    result: Double = (queries.astype(np.float64) * vectors).sum(1)
    return result


def nearest(queries: NDArray[np.floating], vectors: Single, k: int) -> tuple[Ints, Double]:
    """Find the k vectors nearest to each query, nearest first; of equally near ones the first row first.

    Args:
        queries: (Q, D). vectors: unit vectors (N, D), at least one.
        k: at least 1; all rows if there are fewer.

    Returns:
        Rows (Q, k) and distances 1 - cos (Q, k), in [0, 2].
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not len(vectors):
        raise ValueError("there is nothing to search in")
    count = min(k, len(vectors))
    rows, score = _search(unit(queries), vectors, count, lambda a, b: -distances(a, b))
    return rows, -score


@dataclass(frozen=True)
class Neighbors:
    """The nearest rows of each anchor, nearest first.

    Attributes:
        rows: row numbers (A, k); -1 if there are fewer.
        similarity: cosine (A, k); NaN if there are fewer.
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
    progress: Progress | None = None,
) -> Neighbors:
    """Find the k rows of the pool nearest to each anchor by cosine, among the rows of other groups.

    Args:
        vectors: embeddings (N, D), of any length.
        groups: (N,), identities or families of them; rows of equal group are never neighbors of each other. Values
            must be sortable within anchors and pool.
        k: number of neighbors, at least 1.
        anchors, pool: row numbers; default all. Rows in neither of them may hold anything.
        ceiling: leave out rows at least this similar, because they likely show the same object under another name.
        progress: called with (anchors done, all anchors).

    Raises:
        ValueError: if k is below 1, or a vector is zero or not finite; the message names the first one.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    anchor_rows = np.arange(len(vectors)) if anchors is None else anchors
    pool_rows = np.arange(len(vectors)) if pool is None else np.unique(pool)
    if not len(anchor_rows) or not len(pool_rows):
        shape = len(anchor_rows), k
        return Neighbors(np.full(shape, -1), np.full(shape, np.nan))

    used = np.union1d(anchor_rows, pool_rows)  # a pool may be tiny, the manifest huge
    units = unit(vectors, used)
    codes = np.unique(groups[used], return_inverse=True)[1]
    from_anchors = np.searchsorted(used, anchor_rows)
    from_pool = np.searchsorted(used, pool_rows)

    rows, similarity = _search(
        units[from_anchors],
        units[from_pool],
        k,
        cosines,
        groups=(codes[from_anchors], codes[from_pool]),
        ceiling=ceiling,
        progress=progress,
    )
    is_missing = rows < 0
    return Neighbors(np.where(is_missing, -1, pool_rows[rows]), np.where(is_missing, np.nan, similarity))


def _search(
    queries: Single,
    vectors: Single,
    k: int,
    measure: Callable[[Single, Single], Double],
    groups: tuple[Ints, Ints] | None = None,
    ceiling: float | None = None,
    progress: Progress | None = None,
) -> tuple[Ints, Double]:
    """Return rows (Q, k), -1 if there are fewer, and scores (Q, k); arguments as for `nearest_other`.

    Args:
        measure: the score of unit vectors (N, D) and (N, D), row by row, by which rows rank; higher = nearer.
        groups: of queries (Q,) and of vectors (N,).
    """
    rows = np.full((len(queries), k), -1)
    scores = np.full((len(queries), k), -np.inf)
    step = max(1, _CELLS // len(vectors))
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        similarity = part @ vectors.T
        if groups is not None:
            query_groups, vector_groups = groups
            similarity[query_groups[start : start + step, None] == vector_groups] = -np.inf
        query, row = _shortlist(similarity, k, ceiling)

        # measured exactly
        score = np.empty(len(row))
        for begin in range(0, len(row), _MEASURED):
            pairs = slice(begin, begin + _MEASURED)
            score[pairs] = measure(part[query[pairs]], vectors[row[pairs]])
        if ceiling is not None:
            below = comparable(score) < comparable(ceiling)
            query, row, score = query[below], row[below], score[below]

        # the k best of each query
        order = np.lexsort((row, -comparable(score), query))
        query, row, score = query[order], row[order], score[order]
        rank = np.arange(len(query)) - np.searchsorted(query, query)
        is_near = rank < k
        target = start + query[is_near], rank[is_near]
        rows[target] = row[is_near]
        scores[target] = score[is_near]
        if progress is not None:
            progress(min(start + step, len(queries)), len(queries))
    return rows, scores


def _shortlist(similarity: Single, k: int, ceiling: float | None) -> tuple[Ints, Ints]:
    """Return the queries and rows that may be among the k best of a query, whatever float32 has lost."""
    if ceiling is not None:
        similarity[similarity >= ceiling + _NOISE] = -np.inf
        k += int(np.count_nonzero(similarity > ceiling - _NOISE, axis=1).max())  # on either side of it, maybe
    count = similarity.shape[1]
    best = torch.from_numpy(similarity).topk(min(k, count), 1, sorted=False).values
    least = best.amin(1, keepdim=True).numpy() - _NOISE
    least = np.maximum(least, np.finfo(np.float32).min)  # -inf of a query with fewer than k rows
    query, row = np.divmod(np.flatnonzero(similarity >= least), count)
    return query, row
