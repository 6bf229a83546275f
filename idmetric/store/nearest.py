"""Exact nearest neighbours by cosine.

`nearest` searches a table, which may lie in files; `nearest_other` finds the nearest images of other identities.

Both go over the table a block at a time (by matrix products, or with FAISS's flat index) and keep a shortlist by
float32 similarity. They measure each pair of the shortlist again in float64, and accept the answer once it provably
beats all rows left out; otherwise they double the shortlist. FAISS and matrix products therefore give the same rows and
the same numbers. Rows that are equally near in six decimals (`evaluate.arrays.comparable`) come in the order of the
table. With matrix products, memory does not grow with the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.arrays import STEP, comparable
from idmetric.io.hints import install

Single = NDArray[np.float32]
Double = NDArray[np.float64]
Ints = NDArray[np.int64]
Index = Literal["auto", "exact", "faiss"]

EXACT_ROWS = 200_000  # up to here `nearest` with "auto" searches by matrix product,
EXACT_POOL = 50_000  # and up to here `nearest_other`
_CELLS = 2**24  # similarities held at once (64 MB)
_SHORTLISTED = 2**16  # vectors measured at once
_FIRST = 1024  # rows that are compared first: most others fall below the shortlist of these
_SPARE = 8  # a shortlist is at least this much longer than the answer
# queries (Q, D) and a length -> rows (Q, length), and a similarity (Q,) that no row left out exceeds
Search = Callable[[Single, int], tuple[Ints, Single]]
Measure = Callable[[Single, Single], Double]  # a unit vector (D,) and some (N, D) -> float64 (N,)


class Table(Protocol):
    """Vectors that may lie in files. Rows are numbered from 0."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[tuple[Ints, Single]]:
        """Yield all rows, a part at a time: their numbers (B,) and unit vectors (B, D)."""

    def rows(self, numbers: Ints) -> Single:
        """Return the unit vectors (N, D) of some rows."""


class Held:
    """A `Table` in memory."""

    def __init__(self, vectors: Single) -> None:
        self.vectors = vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def blocks(self) -> Iterator[tuple[Ints, Single]]:
        """See `Table`."""
        yield np.arange(len(self.vectors)), self.vectors

    def rows(self, numbers: Ints) -> Single:
        """See `Table`."""
        return self.vectors[numbers]


def unit(vectors: NDArray[np.floating]) -> Single:
    """Scale vectors (N, D) to length 1.

    Raises:
        ValueError: if a vector is zero or not finite.
    """
    wide = vectors.astype(np.float64)
    norm = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (np.isfinite(norm).all() and (norm > 0).all()):
        raise ValueError("an embedding is zero or not finite: it has no direction")
    found: Single = (wide / norm).astype(np.float32)
    return found


def distances(queries: Single, vectors: Single) -> Double:
    """1 - cos of unit vectors (N, D) or (D,) and (N, D), row by row, in float64: 0 for equal ones."""
    found: Double = np.square(queries.astype(np.float64) - vectors).sum(1) / 2
    return found


def cosines(query: Single, vectors: Single) -> Double:
    """Return the cosines of a unit vector (D,) with unit vectors (N, D), each computed on its own in float64."""
    found: Double = (query.astype(np.float64) * vectors).sum(1)
    return found


def nearest(queries: NDArray[np.floating], table: Table, k: int, *, index: Index = "auto") -> tuple[Ints, Double]:
    """Find the k rows of the table nearest to each query, nearest first; of equally near ones the first row first.

    Args:
        queries: (Q, D). table: at least one row.
        k: at least 1; all rows if the table has fewer.
        index: "exact" (matrix products), "faiss" (`IndexFlatIP`, which holds the table in memory), or "auto": exact up
            to 200,000 rows, then FAISS if it is installed.

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

    work = _Work(wanted, table, k, search, lambda query, vectors: -distances(query, vectors), similarity_at_0=1)
    rows, score = work.run(np.full(len(wanted), min(2 * k + _SPARE, len(table))))
    return rows, -score


@dataclass(frozen=True)
class Neighbours:
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
    index: Index = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Neighbours:
    """Find the k rows of the pool nearest to each anchor by cosine, among the rows of other groups.

    Args:
        vectors: embeddings (N, D), of any length.
        groups: (N,), identities or families of them; rows of equal group are never neighbours of each other. Values
            must be sortable within anchors and pool.
        k: number of neighbours, at least 1.
        anchors, pool: row numbers; default all. Rows in neither of them may hold anything.
        ceiling: leave out rows at least this similar, because they likely show the same object under another name.
        index: "exact" (matrix product), "faiss" (`IndexFlatIP`), or "auto": exact up to 50,000 rows in the pool.
        progress: called with (anchors done, all anchors).

    Raises:
        ValueError: if k is below 1, or a vector is zero or not finite; the message names the first one.
        ImportError: if FAISS is needed and missing.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    anchors = np.arange(len(vectors)) if anchors is None else np.asarray(anchors, dtype=np.int64)
    pool = np.arange(len(vectors)) if pool is None else np.unique(np.asarray(pool, dtype=np.int64))
    if not len(anchors) or not len(pool):
        return Neighbours(np.full((len(anchors), k), -1), np.full((len(anchors), k), np.nan))

    used = np.union1d(anchors, pool)
    units = _unit_rows(vectors, used)
    at, inside = np.searchsorted(used, anchors), np.searchsorted(used, pool)
    codes = np.unique(groups[used], return_inverse=True)[1]  # only of used rows: a pool may be tiny, the manifest huge
    own, theirs = codes[at], codes[inside]

    def allowed(queries: Ints, rows: Ints, similarity: Double) -> NDArray[np.bool_]:
        others: NDArray[np.bool_] = theirs[rows] != own[queries, None]
        return others if ceiling is None else others & (similarity < comparable(ceiling))

    # its own group, k others, and one more to prove that none was missed; rounded up, so that few lengths differ
    need = np.bincount(theirs, minlength=len(used))[own] + k + 1
    need = np.minimum(2 ** np.ceil(np.log2(need)).astype(np.int64), len(pool))

    table = Held(units[inside])
    search = _faiss(table) if needs_faiss(index, len(pool)) else _exact(table)
    work = _Work(units[at], table, k, search, cosines, 0, allowed, progress)
    rows, similarity = work.run(need)
    return Neighbours(np.where(rows < 0, -1, pool[rows]), np.where(rows < 0, np.nan, similarity))


def needs_faiss(index: Index, pool: int) -> bool:
    """Whether `nearest_other` searches a pool of this many rows with FAISS."""
    return index == "faiss" or (index == "auto" and pool > EXACT_POOL)


def check_index(index: Index, pool: int) -> None:
    """Check that `nearest_other` can search a pool of this size, before images are embedded.

    Raises:
        ImportError: if FAISS is needed and missing.
    """
    if needs_faiss(index, pool):
        _import_faiss(pool)


@dataclass(frozen=True)
class _Work:
    """One search.

    Attributes:
        measure: gives the score by which rows rank, higher = nearer; similarity_at_0: the cosine of a score of 0.
        allowed: which rows (Q, L), of these scores as they are compared, count for these queries (Q,).
    """

    queries: Single
    table: Table
    k: int
    search: Search
    measure: Measure
    similarity_at_0: int
    allowed: Callable[[Ints, Ints, Double], NDArray[np.bool_]] | None = None
    progress: Callable[[int, int], None] | None = None

    def run(self, need: Ints) -> tuple[Ints, Double]:
        """Return rows (Q, k), -1 if there are fewer, and scores (Q, k); `need`: lengths of the first shortlists."""
        rows, best = np.full((len(self.queries), self.k), -1), np.full((len(self.queries), self.k), -np.inf)
        # float32 similarities may be off by this much, at most, and rounded ones by a step
        slack = self.queries.shape[1] * 2.0**-23 + STEP
        open_ = np.ones(len(self.queries), dtype=bool)

        while open_.any():
            length = int(need[open_].min())
            waiting = np.flatnonzero(open_ & (need == length))
            step = max(1, _SHORTLISTED // length)
            for part in np.split(waiting, range(step, len(waiting), step)):
                shortlist, bound = self.search(self.queries[part], length)
                found, score = self._best(part, shortlist)
                sure = self.similarity_at_0 + comparable(score[:, -1]) > bound.astype(np.float64) + slack
                sure |= length == len(self.table)

                rows[part[sure]], best[part[sure]] = found[sure], score[sure]
                open_[part[sure]] = False
                need[part[~sure]] = min(2 * length, len(self.table))
                if self.progress is not None:
                    self.progress(int((~open_).sum()), len(open_))
        return rows, best

    def _best(self, part: Ints, shortlist: Ints) -> tuple[Ints, Double]:
        """Return the k best rows of each shortlist, and their scores in float64."""
        different, at = np.unique(shortlist, return_inverse=True)
        vectors, at = self.table.rows(different), at.reshape(shortlist.shape)
        score = np.stack([self.measure(q, vectors[a]) for q, a in zip(self.queries[part], at, strict=True)])
        if self.allowed is not None:
            score = np.where(self.allowed(part, shortlist, comparable(score)), score, -np.inf)

        order = np.lexsort((shortlist, -comparable(score)))[:, : self.k]
        best = np.take_along_axis(score, order, 1)
        rows = np.where(best == -np.inf, -1, np.take_along_axis(shortlist, order, 1))
        short = ((0, 0), (0, self.k - order.shape[1]))  # a table of fewer than k
        return np.pad(rows, short, constant_values=-1), np.pad(best, short, constant_values=-np.inf)


def _unit_rows(vectors: NDArray[np.floating], rows: Ints) -> Single:
    """Scale some rows to length 1, a part at a time."""
    out = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
    step = max(1, _CELLS // 8 // vectors.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        try:
            out[start : start + step] = unit(vectors[part])
        except ValueError:
            norm = np.linalg.norm(vectors[part].astype(np.float64), axis=1)
            row = int(part[~(np.isfinite(norm) & (norm > 0))][0]) + 1
            raise ValueError(f"the embedding of row {row} is zero or not finite: it has no direction") from None
    return out


def _exact(table: Table) -> Search:
    def search(queries: Single, length: int) -> tuple[Ints, Single]:
        rows = np.empty((len(queries), 0), np.int64)
        best = np.empty((len(queries), 0), np.float32)
        for numbers, block in _pieces(table, max(_FIRST, length), max(1, _CELLS // max(1, len(queries)))):
            similarity = queries @ block.T
            at: Ints = np.broadcast_to(numbers, similarity.shape)
            if best.shape[1] == length:  # sorting all of them would take longer than the product
                at, similarity = _above(similarity, best.min(1), numbers)
            rows, best = np.concatenate([rows, at], 1), np.concatenate([best, similarity], 1)
            if best.shape[1] > length:
                order = np.argpartition(-best, length - 1, 1)[:, :length]
                rows, best = np.take_along_axis(rows, order, 1), np.take_along_axis(best, order, 1)
        return rows, best.min(1)

    return search


def _above(similarity: Single, least: Single, numbers: Ints) -> tuple[Ints, Single]:
    """The rows (Q, W) and similarities (Q, W) above the least of each query, in front of 0 and -inf."""
    query, column = np.divmod(np.flatnonzero(similarity > least[:, None]), len(numbers))
    counts = np.bincount(query, minlength=len(similarity))
    place = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.zeros((len(similarity), counts.max()), np.int64)
    above = np.full(rows.shape, -np.inf, np.float32)
    rows[query, place], above[query, place] = numbers[column], similarity[query, column]
    return rows, above


def _pieces(table: Table, first: int, size: int) -> Iterator[tuple[Ints, Single]]:
    """All rows of a table, a part at a time: about `first` rows, and after that `size` rows at most."""
    step = min(first, size)
    for numbers, block in table.blocks():
        start = 0
        while start < len(numbers):
            yield numbers[start : start + step], block[start : start + step]
            start, step = start + step, size


def _by_faiss(index: Index, rows: int) -> bool:
    """Whether `nearest` searches a table of this many rows with FAISS."""
    if index not in get_args(Index):
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


def _import_faiss(pool: int) -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            f"a pool of {pool} images is searched with FAISS: {install('scale')} "
            "(or ask for the exact index, which is slower)"
        ) from error
    return faiss


def _faiss(table: Table) -> Search:
    if not hasattr(table, "_flat"):  # built once: it copies the table
        faiss = _import_faiss(len(table))
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
