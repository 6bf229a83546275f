"""Queries against a gallery: the measures of each query, and the scores of pairs, in blocks that bound memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.same_image import image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.ranking import per_query
from idmetric.protocols.common.arrays import Array, Ints, Truths
from idmetric.protocols.common.columns import listed
from idmetric.protocols.common.intervals import codes, owners
from idmetric.protocols.common.scorers import Scorer, slices

Measure = Callable[[Array, Truths], float]  # scores and relevance of one query's gallery
WRONG = 3  # images of other identities that are noted for a query
_CELLS = 2**24  # similarities held at once (128 MB)
PAIRS = 1_000_000  # of two identities that are scored at most; of more, a random sample of this size
OWN_PAIRS = 5_000_000  # of one identity, likewise; only identities with hundreds of images have more


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

    def only(self, chosen: Truths) -> Search:
        """The search of some of the queries; chosen is (Q,)."""
        return replace(self, queries=self.queries[chosen])

    def truth(self, part: slice) -> tuple[Truths, Truths]:
        """For some queries: masks of the gallery images that show their identity, and of those that they search."""
        rows = self.queries[part]
        relevant = self.identity[rows][:, None] == self.identity[self.gallery]
        relevant &= self.identity[rows][:, None] >= 0  # two images of unknown identity do not match
        valid = self.image[rows][:, None] != self.image[self.gallery]
        for at, row in enumerate(rows.tolist()):
            if row in self.ignored:
                valid[at] &= ~np.isin(self.gallery, self.ignored[row])
        return relevant, valid

    def blocks(self) -> list[slice]:
        """Slices of the queries of bounded memory."""
        return slices(len(self.queries), max(1, _CELLS // max(1, len(self.gallery))))


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


@dataclass(frozen=True)
class Nearest:
    """The images that a query finds first: three of other identities, and the nearest one of its own.

    Attributes:
        wrong, wrong_score: (Q, 3), rows of the manifest and similarities, nearest first; -1 and NaN where there are
            fewer.
        right, right_score, right_rank: (Q,), of the nearest positive; its rank is 1 more than the number of images
            that are more similar.
    """

    wrong: Ints
    wrong_score: Array
    right: Ints
    right_score: Array
    right_rank: Ints

    @classmethod
    def empty(cls, count: int) -> Nearest:
        """Room for `count` queries."""
        none, nan = np.full((count, WRONG), -1), np.full((count, WRONG), np.nan)
        return cls(none, nan, none[:, 0].copy(), nan[:, 0].copy(), none[:, 0].copy())

    def columns(self, ids: NDArray[Any]) -> dict[str, list[Any]]:
        """Columns of a table of queries, with the ids of the manifest's rows in place of numbers."""

        def named(rows: Ints) -> list[Any]:
            return [ids[row] if row >= 0 else None for row in rows.tolist()]

        def known(scores: Array) -> list[float | None]:
            return [None if np.isnan(score) else score for score in scores.tolist()]

        found: dict[str, list[Any]] = {
            "right": named(self.right),
            "right_score": known(self.right_score),
            "right_rank": self.right_rank.tolist(),
        }
        for k in range(WRONG):
            found[f"wrong_{k + 1}"] = named(self.wrong[:, k])
            found[f"wrong_{k + 1}_score"] = known(self.wrong_score[:, k])
        return found


def measure(scorer: HasMatrix, search: Search, measures: Mapping[str, Measure]) -> tuple[dict[str, Array], Nearest]:
    """Measures (Q,) of each query, all of which must have a positive, and what it finds first."""
    found, near = {name: np.empty(len(search.queries)) for name in measures}, Nearest.empty(len(search.queries))
    for block in _blocks(scorer, search):
        _measure(block, measures, found)
        _find(block, search.gallery, near)
    return found, near


@dataclass(frozen=True)
class _Block:
    """Similarities of some queries to the gallery, and what `Search.truth` says of them."""

    part: slice
    scores: Array
    relevant: Truths
    valid: Truths


def _blocks(scorer: HasMatrix, search: Search) -> Iterator[_Block]:
    for part in search.blocks():
        yield _Block(part, scorer.matrix(search.queries[part], search.gallery), *search.truth(part))


def _measure(block: _Block, measures: Mapping[str, Measure], found: Mapping[str, Array]) -> None:
    for name, one in measures.items():
        found[name][block.part] = per_query(one, block.scores, block.relevant & block.valid, valid=block.valid)


def _find(block: _Block, gallery: Ints, near: Nearest) -> None:
    """Note what the queries of a block find first; of equally similar images, the first in the gallery."""
    numbers = range(*block.part.indices(len(near.right)))
    compared = np.where(np.isnan(block.scores), -np.inf, block.scores)  # a judge may have given no score
    for number, scores, relevant, valid in zip(numbers, compared, block.relevant, block.valid, strict=True):
        own, others = np.flatnonzero(relevant & valid), np.flatnonzero(valid & ~relevant)
        best = own[scores[own].argmax()]
        near.right[number], near.right_score[number] = gallery[best], scores[best]
        near.right_rank[number] = 1 + int((scores[valid] > scores[best]).sum())
        if len(others) > WRONG:
            least = np.partition(scores[others], -WRONG)[-WRONG]
            others = others[scores[others] >= least]
        first = others[np.argsort(-scores[others], kind="stable")][:WRONG]
        near.wrong[number, : len(first)], near.wrong_score[number, : len(first)] = gallery[first], scores[first]


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
    same: Truths


def score_pairs(scorer: HasMatrix, rows: Ints, identity: Ints, image: Ints, seed: int = 0) -> Pairs:
    """All unordered pairs of different images among rows; of more than `PAIRS` of two identities, a random sample.

    All pairs of one identity are kept, up to `OWN_PAIRS`; sampling leaves the ROC curve unbiased.
    """
    whole = Search(rows, rows, identity, image)
    counts = np.unique(owners(identity, rows), return_counts=True)[1].astype(np.int64)
    own = int((counts**2).sum())
    shares = _shares((own - len(rows)) // 2, (len(rows) ** 2 - own) // 2)
    later = np.arange(len(rows))
    parts = [
        _pairs(block, whole, block.valid & (later[block.part, None] < later), shares, (seed, number))
        for number, block in enumerate(_blocks(scorer, whole))
    ]
    return _joined(parts)


def searched(
    scorer: HasMatrix, search: Search, measures: Mapping[str, Measure], seed: int = 0
) -> tuple[dict[str, Array], Nearest, Pairs]:
    """`measure`, and the pairs of queries with gallery images, each similarity computed once.

    Pairs of one identity are kept up to `OWN_PAIRS`; of more than `PAIRS` of two, a random sample is.
    """
    found, near = {name: np.empty(len(search.queries)) for name in measures}, Nearest.empty(len(search.queries))
    own = int(search.positives().sum())
    shares = _shares(own, len(search.queries) * len(search.gallery) - own)
    parts = []
    for number, block in enumerate(_blocks(scorer, search)):
        _measure(block, measures, found)
        _find(block, search.gallery, near)
        parts.append(_pairs(block, search, block.valid, shares, (seed, number)))
    return found, near, _joined(parts)


def _shares(own: int, strangers: int) -> tuple[float, float]:
    """The shares of the pairs of one identity and of two identities that are kept."""
    return min(1.0, OWN_PAIRS / max(1, own)), min(1.0, PAIRS / max(1, strangers))


def _pairs(block: _Block, search: Search, wanted: Truths, shares: tuple[float, float], seed: tuple[int, int]) -> Pairs:
    """The wanted pairs of a block, or by chance these shares of them."""
    if min(shares) < 1:
        chance = np.random.default_rng(seed).random(wanted.shape)
        wanted = wanted & (chance < np.where(block.relevant, *shares))
    i, j = np.nonzero(wanted)
    return Pairs(search.queries[block.part][i], search.gallery[j], block.scores[i, j], block.relevant[i, j])


def _joined(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Pairs)))
