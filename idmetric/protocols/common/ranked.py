"""Queries against a gallery: the measures of each query, and the scores of pairs, in blocks that bound memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.same_image import image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.ranking import per_query
from idmetric.protocols.common.columns import listed
from idmetric.protocols.common.intervals import codes, owners
from idmetric.protocols.common.scorers import Scorer

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Measure = Callable[[Array, NDArray[np.bool_]], float]  # scores and relevance of one query's gallery
_CELLS = 2**24  # similarities held at once (128 MB)
PAIRS = 1_000_000  # of two identities, up to which all are looked at; of more, so many by chance
OWN_PAIRS = 5_000_000  # of one identity, likewise: some are met only where identities have hundreds of images


class HasMatrix(Protocol):
    """Anything with a matrix of similarities."""

    def matrix(self, rows: Sequence[int] | NDArray[np.integer], columns: Sequence[int] | NDArray[np.integer]) -> Array:
        """See `Scorer`."""


@dataclass(frozen=True)
class Search:
    """A search, as rows of a manifest.

    Attributes:
        queries, gallery: row numbers. A query never finds its own image, under whatever row.
        identity, image: (N,), numbers of the identity and the image of each row of the manifest.
        ignored: query row -> rows that are left out of its ranking.
    """

    queries: Ints
    gallery: Ints
    identity: Ints
    image: Ints
    ignored: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, queries: Ints, gallery: Ints) -> Search:
        """A search with the manifest's identities and images."""
        return cls(queries, gallery, codes(manifest.column("identity")), codes(image_keys(manifest)))

    def positives(self) -> Ints:
        """How many positives (Q,) each query has in the gallery."""
        found = np.zeros(len(self.queries), dtype=np.int64)
        for part in self.blocks():
            relevant, valid = self.truth(part)
            found[part] = (relevant & valid).sum(1)
        return found

    def only(self, chosen: NDArray[np.bool_]) -> Search:
        """The search of some of the queries; chosen is (Q,)."""
        return replace(self, queries=self.queries[chosen])

    def truth(self, part: slice) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For some queries: which gallery images show their identity, and which they search."""
        rows = self.queries[part]
        relevant = self.identity[rows][:, None] == self.identity[self.gallery]
        relevant &= self.identity[rows][:, None] >= 0  # two that nobody named are not the same
        valid = self.image[rows][:, None] != self.image[self.gallery]
        for at, row in enumerate(rows.tolist()):
            if row in self.ignored:
                valid[at] &= ~np.isin(self.gallery, self.ignored[row])
        return relevant, valid

    def blocks(self) -> list[slice]:
        """Slices of the queries of bounded memory."""
        size = max(1, _CELLS // max(1, len(self.gallery)))
        return [slice(s, min(s + size, len(self.queries))) for s in range(0, len(self.queries), size)]


def answerable(search: Search, where: str, names: Sequence[str], *, skip: bool = False) -> tuple[Search, list[str]]:
    """The search over the queries with a positive, and a note on those without.

    Args:
        where: start of messages. names: of the manifest's rows, which messages list.

    Raises:
        ValueError: if no query has a positive, or one has none and `skip` is False.
    """
    has = search.positives() > 0
    if len(has) and has.all():
        return search, []
    lone = search.queries[~has]
    text = f"{where}: {len(lone)} queries have no positive in the gallery: {listed(names[row] for row in lone)}"
    if not has.any() or not skip:
        raise ValueError(f"{text}; correct the manifest, or leave them out (--on-error skip)")
    return search.only(has), [f"{text}: left out"]


def measure(scorer: HasMatrix, search: Search, measures: Mapping[str, Measure]) -> dict[str, Array]:
    """Measures (Q,) of each query, all of which must have a positive."""
    found = {name: np.empty(len(search.queries)) for name in measures}
    for part in search.blocks():
        scores = scorer.matrix(search.queries[part], search.gallery)
        relevant, valid = search.truth(part)
        for name, one in measures.items():
            found[name][part] = per_query(one, scores, relevant & valid, valid=valid)
    return found


class Remembered:
    """A scorer that compares all images of a small gallery once, in advance."""

    def __init__(self, scorer: Scorer, rows: Ints) -> None:
        self._rows = np.sort(rows)
        self._matrix = scorer.matrix(self._rows, self._rows)

    def matrix(self, rows: Sequence[int] | NDArray[np.integer], columns: Sequence[int] | NDArray[np.integer]) -> Array:
        """See `Scorer`."""
        i, j = (np.searchsorted(self._rows, np.asarray(x)) for x in (rows, columns))
        found: Array = self._matrix[np.ix_(i, j)]
        return found


def remembered(scorer: Scorer, rows: Ints) -> HasMatrix:
    """The scorer, or for few rows one with all their similarities in memory."""
    return Remembered(scorer, rows) if len(rows) ** 2 <= _CELLS else scorer


@dataclass(frozen=True)
class Pairs:
    """Pairs of images: rows a and b (P,), their similarity, and whether they show one identity."""

    a: Ints
    b: Ints
    score: Array
    same: NDArray[np.bool_]


def score_pairs(scorer: HasMatrix, rows: Ints, identity: Ints, image: Ints, seed: int = 0) -> Pairs:
    """All unordered pairs of different images among rows; of more than `PAIRS` of two identities, so many by chance.

    All pairs of one identity are looked at, up to `OWN_PAIRS`; the ROC curve keeps its meaning.
    """
    whole = Search(rows, rows, identity, image)
    counts = np.unique(owners(identity, rows), return_counts=True)[1].astype(np.int64)
    own = int((counts**2).sum())
    shares = _shares((own - len(rows)) // 2, (len(rows) ** 2 - own) // 2)
    parts: list[tuple[Ints, Ints, Array, NDArray[np.bool_]]] = []

    for number, part in enumerate(whole.blocks()):
        relevant, valid = whole.truth(part)
        wanted = _drawn(valid & (np.arange(len(rows))[part, None] < np.arange(len(rows))), relevant, shares,
                        (seed, number))  # fmt: skip
        i, j = np.nonzero(wanted)
        scores = scorer.matrix(rows[part], rows)
        parts.append((rows[part][i], rows[j], scores[i, j], relevant[i, j]))

    return _joined(parts)


def searched(
    scorer: HasMatrix, search: Search, measures: Mapping[str, Measure], seed: int = 0
) -> tuple[dict[str, Array], Pairs]:
    """`measure`, and the pairs of queries with gallery images, each similarity computed once.

    Pairs of one identity are kept up to `OWN_PAIRS`; of more than `PAIRS` of two, so many by chance.
    """
    found = {name: np.empty(len(search.queries)) for name in measures}
    own = int(search.positives().sum())
    shares = _shares(own, len(search.queries) * len(search.gallery) - own)
    parts: list[tuple[Ints, Ints, Array, NDArray[np.bool_]]] = []

    for number, part in enumerate(search.blocks()):
        scores = scorer.matrix(search.queries[part], search.gallery)
        relevant, valid = search.truth(part)
        for name, one in measures.items():
            found[name][part] = per_query(one, scores, relevant & valid, valid=valid)
        i, j = np.nonzero(_drawn(valid, relevant, shares, (seed, number)))
        parts.append((search.queries[part][i], search.gallery[j], scores[i, j], relevant[i, j]))

    return found, _joined(parts)


def _shares(own: int, strangers: int) -> tuple[float, float]:
    """Which shares of the pairs of one identity and of two are looked at."""
    return min(1.0, OWN_PAIRS / max(1, own)), min(1.0, PAIRS / max(1, strangers))


def _drawn(
    wanted: NDArray[np.bool_], relevant: NDArray[np.bool_], shares: tuple[float, float], seed: tuple[int, int]
) -> NDArray[np.bool_]:
    if min(shares) == 1:
        return wanted
    chance = np.random.default_rng(seed).random(wanted.shape)
    kept: NDArray[np.bool_] = wanted & (chance < np.where(relevant, *shares))
    return kept


def _joined(parts: Sequence[tuple[Ints, Ints, Array, NDArray[np.bool_]]]) -> Pairs:
    a, b, score, same = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Pairs(a, b, score, same)
