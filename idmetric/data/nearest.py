"""Exact nearest neighbors by cosine: all pairs are compared, a block of queries at a time.

Similarities in float32 give a shortlist, which is measured in float64. Rows that are equally near in six decimals
(`metric.ties.comparable`) come in the order of the table.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from idmetric.metric.ties import comparable

Single = NDArray[np.float32]
Double = NDArray[np.float64]
Ints = NDArray[np.int64]
Measure = Callable[[Single, Single], Double]

_CELLS = 2**23  # similarities held at once (32 MB)
_MEASURED = 2**8  # pairs measured at once: more do not fit into a processor's cache
_NOISE = 1e-5  # of a similarity in float32, at most


def unit(vectors: NDArray[np.floating], rows: Ints | None = None) -> Single:
    """Scale vectors (N, D), or some rows of them, to length 1; ValueError names one that is zero or not finite."""
    if rows is None:
        rows = np.arange(len(vectors))
    chosen = vectors[rows]
    square = np.einsum("nd,nd->n", chosen, chosen, dtype=np.float64)
    norm = np.sqrt(square)
    has_direction = np.isfinite(norm) & (norm > 0)
    if not has_direction.all():
        row = rows[has_direction.argmin()]
        raise ValueError(f"the embedding of row {row + 1} is zero or not finite: no direction")

    units = np.empty(chosen.shape, dtype=np.float32)
    np.divide(chosen, norm[:, None], out=units, casting="same_kind")  # in float64
    return units


def distances(queries: Single, vectors: Single) -> Double:
    """1 - cos of unit vectors (N, D) or (D,) and (N, D), row by row, in float64: 0 for equal ones."""
    difference = queries.astype(np.float64) - vectors
    result: Double = np.square(difference).sum(1) / 2
    return result


def cosines(queries: Single, vectors: Single) -> Double:
    """Cosines of unit vectors (N, D) and (N, D), row by row, in float64."""
    products = queries.astype(np.float64) * vectors
    result: Double = products.sum(1)
    return result


def nearest(queries: NDArray[np.floating], vectors: Single, k: int) -> tuple[Ints, Double]:
    """Find the k vectors nearest to each query, nearest first; of equally near ones the first row first.

    Args:
        queries: (Q, D). vectors: unit vectors (N, D), at least one.
        k: at least 1; all rows if there are fewer.

    Returns:
        Rows (Q, k) and distances 1 - cos (Q, k), in [0, 2].
    """
    if not len(vectors):
        raise ValueError("there is nothing to search in")

    def nearness(queries: Single, vectors: Single) -> Double:
        return -distances(queries, vectors)

    units = unit(queries)
    k = min(k, len(vectors))
    rows, score = _search(units, vectors, k, nearness)
    return rows, -score


def nearest_other(
    vectors: NDArray[np.floating],
    groups: Ints,
    k: int = 1,
    *,
    anchors: Ints | None = None,
    pool: Ints | None = None,
    ceiling: float | None = None,
) -> tuple[Ints, Double]:
    """Find the k rows of the pool nearest to each anchor by cosine, among the rows of other groups.

    Args:
        vectors: embeddings (N, D), of any length.
        groups: (N,), numbers of identities or families; rows of one group are never neighbors of each other.
        k: number of neighbors, at least 1.
        anchors, pool: row numbers; default all. Rows in neither of them may hold anything.
        ceiling: leave out rows at least this similar, because they likely show the same object under another name.

    Returns:
        Rows (A, k), nearest first, and their cosines (A, k); -1 and NaN if there are fewer.

    Raises:
        ValueError: if k is below 1, or a vector is zero or not finite; the message names the first one.
    """
    all_rows = np.arange(len(vectors))
    if anchors is None:
        anchors = all_rows
    if pool is None:
        pool = all_rows
    pool = np.unique(pool)
    queries = unit(vectors, anchors)
    candidates = unit(vectors, pool)
    anchor_groups = groups[anchors, None]
    pool_groups = groups[pool]

    def excluded(block: slice, similarity: Single) -> NDArray[np.bool_]:
        is_excluded: NDArray[np.bool_] = anchor_groups[block] == pool_groups
        if ceiling is not None:
            reaches = _reaches(ceiling, similarity, queries[block], candidates)
            is_excluded |= reaches
        return is_excluded

    rows, similarity = _search(queries, candidates, k, cosines, excluded)
    is_row = rows >= 0
    rows[is_row] = pool[rows[is_row]]
    return rows, similarity


def _search(
    queries: Single,
    vectors: Single,
    k: int,
    measure: Measure,
    excluded: Callable[[slice, Single], NDArray[np.bool_]] | None = None,
) -> tuple[Ints, Double]:
    """Return rows (Q, k), nearest first, and scores (Q, k); -1 and NaN if there are fewer.

    Args:
        measure: the score of unit vectors (N, D) and (N, D), row by row, by which rows rank; higher = nearer.
        excluded: a block of queries and its similarities (B, N) -> which of them do not count.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    shape = len(queries), k
    rows = np.full(shape, -1)
    scores = np.full(shape, np.nan)
    if not len(vectors):
        return rows, scores
    step = max(1, _CELLS // len(vectors))
    for start in range(0, len(queries), step):
        block = slice(start, start + step)
        similarity = queries[block] @ vectors.T
        if excluded is not None:
            is_excluded = excluded(block, similarity)
            similarity[is_excluded] = -np.inf

        query, row = _shortlist(similarity, k)
        score = _measured(measure, queries[block], vectors, query, row)
        badness = -comparable(score)
        order = np.lexsort((row, badness, query))
        query = query[order]
        row = row[order]
        score = score[order]

        # pairs are in order of queries, so the first one of a query is where its number begins
        begin = np.searchsorted(query, query)
        rank = np.arange(len(query)) - begin
        is_near = rank < k
        target = start + query[is_near], rank[is_near]
        rows[target] = row[is_near]
        scores[target] = score[is_near]
    return rows, scores


def _shortlist(similarity: Single, k: int) -> tuple[Ints, Ints]:
    """Return the queries and rows that may be among the k best of a query, whatever float32 has lost."""
    count = similarity.shape[1]
    tensor = torch.from_numpy(similarity)
    best = tensor.topk(min(k, count), 1, sorted=False).values
    least = best.amin(1, keepdim=True).numpy() - _NOISE
    lowest = np.finfo(np.float32).min
    least = np.maximum(least, lowest)  # -inf of a query with fewer than k rows
    cells = np.flatnonzero(similarity >= least)
    query, row = np.divmod(cells, count)
    return query, row


def _reaches(ceiling: float, similarity: Single, queries: Single, vectors: Single) -> NDArray[np.bool_]:
    """True (Q, N) where the cosine is at least the ceiling, in six decimals."""
    reaches: NDArray[np.bool_] = similarity > ceiling + _NOISE
    may_reach = similarity > ceiling - _NOISE
    is_open = may_reach & ~reaches  # on either side of it, maybe
    query, row = np.nonzero(is_open)
    cosine = _measured(cosines, queries, vectors, query, row)
    is_enough = comparable(cosine) >= comparable(ceiling)
    reaches[query, row] = is_enough
    return reaches


def _measured(measure: Measure, queries: Single, vectors: Single, query: Ints, row: Ints) -> Double:
    """The scores of pairs of a query and a row."""
    score = np.empty(len(row))
    for start in range(0, len(row), _MEASURED):
        pairs = slice(start, start + _MEASURED)
        pair_queries = queries[query[pairs]]
        pair_vectors = vectors[row[pairs]]
        score[pairs] = measure(pair_queries, pair_vectors)
    return score
