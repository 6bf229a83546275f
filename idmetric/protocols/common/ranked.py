"""Queries against a gallery: the measures of each query, and the scores of pairs, in blocks that bound memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import DIGITS, STEP, comparable, first_highest
from idmetric.protocols.common.columns import Array, Ints, Truths, known, listed
from idmetric.protocols.common.intervals import auc, codes, owners
from idmetric.protocols.common.remembered import Arrays, remembered
from idmetric.protocols.common.result import Value, slug
from idmetric.protocols.common.scorers import Scorer, Settings, VectorScorer, slices

# of one query's ranking: scores and relevance of the images that rank no lower than its last positive
Measure = Callable[[Array, Truths], float]
WRONG = 3  # images of other identities that are noted for a query
_LONG = 1000  # images of a search that is kept
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
        identity, image = self.identity.astype(np.int64) + 1, self.image.astype(np.int64)
        both = identity * (1 + image.max(initial=0)) + image
        found = _Equal(identity[self.gallery]).counts(identity[self.queries])
        found -= _Equal(both[self.gallery]).counts(both[self.queries])
        found[identity[self.queries] < 1] = 0  # two images of unknown identity do not match

        for at in np.flatnonzero(np.isin(self.queries, list(self.ignored))):
            row = self.queries[at]
            gone = self.gallery[np.isin(self.gallery, self.ignored[int(row)])]
            found[at] -= ((identity[gone] == identity[row]) & (image[gone] != image[row])).sum() * (identity[row] > 0)
        return found

    def only(self, chosen: Truths) -> Search:
        """The search of some of the queries; chosen is (Q,)."""
        return replace(self, queries=self.queries[chosen])

    def places(self, part: slice) -> Iterator[tuple[Ints, Ints]]:
        """For some queries: places in the gallery of their positives, and of the images that they do not search."""
        rows = self.queries[part]
        sides = (self._identities.places(self.identity[rows]), self._images.places(self.image[rows]))
        for row, own, hidden in zip(rows.tolist(), *sides, strict=True):
            if self.identity[row] < 0:
                own = own[:0]  # two images of unknown identity do not match
            own = own[self.image[self.gallery[own]] != self.image[row]]
            if row in self.ignored:
                hidden = np.union1d(hidden, np.flatnonzero(np.isin(self.gallery, self.ignored[row])))
                own = np.setdiff1d(own, hidden, assume_unique=True)
            yield own, hidden

    @cached_property
    def _identities(self) -> _Equal:
        return _Equal(self.identity[self.gallery])

    @cached_property
    def _images(self) -> _Equal:
        return _Equal(self.image[self.gallery])

    def blocks(self) -> list[slice]:
        """Slices of the queries of bounded memory."""
        return slices(len(self.queries), max(1, _CELLS // max(1, len(self.gallery))))


class _Equal:
    """Finds equal numbers among some values (N,)."""

    def __init__(self, values: Ints) -> None:
        self.order = np.argsort(values, kind="stable")
        self.ordered = values[self.order]

    def counts(self, of: Ints) -> Ints:
        """How many values equal each of `of`."""
        start, stop = self._spans(of)
        return stop - start

    def places(self, of: Ints) -> Iterator[Ints]:
        """The places of the values that equal each of `of`, in order."""
        for start, stop in zip(*(ends.tolist() for ends in self._spans(of)), strict=True):
            yield self.order[start:stop]

    def _spans(self, of: Ints) -> tuple[Ints, Ints]:
        return np.searchsorted(self.ordered, of, "left"), np.searchsorted(self.ordered, of, "right")


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
    found = Found(search, measures)
    for block in blocks(scorer, search):
        found.add(block, np.arange(block.part.start, block.part.stop))
    return found.values, found.near


@dataclass(frozen=True)
class Block:
    """Similarities (B, G) of some queries to the gallery.

    Attributes:
        own, hidden: of each query, places in the gallery of its positives, and of the images that it does not search.
    """

    part: slice
    scores: Array
    own: list[Ints]
    hidden: list[Ints]


def blocks(scorer: HasMatrix, search: Search) -> Iterator[Block]:
    """All queries of a search, some at a time."""
    for part in search.blocks():
        own, hidden = zip(*search.places(part), strict=True)
        yield Block(part, scorer.matrix(search.queries[part], search.gallery), list(own), list(hidden))


class Found:
    """Measures of queries and what they find first, filled block by block."""

    def __init__(self, search: Search, measures: Mapping[str, Measure]) -> None:
        self.gallery, self.measures = search.gallery, measures
        self.values = {name: np.empty(len(search.queries)) for name in measures}
        self.near = Nearest.empty(len(search.queries))

    def add(self, block: Block, numbers: Ints) -> None:
        """Fill in the queries of a block; numbers (B,) are their places in the search, -1 for rows that do not ask."""
        for at in np.flatnonzero(numbers >= 0).tolist():
            self._add(int(numbers[at]), block.scores[at], block.own[at], block.hidden[at])

    def _add(self, number: int, scores: Array, own: Ints, hidden: Ints) -> None:
        right = scores[own]
        least = right.min()
        # nothing below the last positive changes a measure; NaN stays, for the measures to refuse, and so do scores
        # that may equal the last positive's: measures round them
        kept = ~(scores < least - 2 * STEP)
        kept[own] = kept[hidden] = False
        others = np.flatnonzero(kept)
        wrong = scores[others]

        ranked = np.concatenate([right, wrong])
        relevant = np.arange(len(ranked)) < len(right)
        for name, one in self.measures.items():
            self.values[name][number] = one(ranked, relevant)

        right, wrong, rows = _answered(right), _answered(wrong), self.gallery[others]
        self._note_right(number, self.gallery[own], right, wrong)
        if np.count_nonzero(wrong >= least) < WRONG:  # the next ones may lie below the last positive
            wrong, rows = _answered(scores), self.gallery
            wrong[own] = wrong[hidden] = -np.inf
        self._note_wrong(number, rows, wrong)

    def _note_right(self, number: int, rows: Ints, scores: Array, wrong: Array) -> None:
        """Note the positive that a query finds first; of equally similar ones, the first in the gallery."""
        near, best = self.near, first_highest(scores)
        near.right[number], near.right_score[number] = rows[best], scores[best]
        near.right_rank[number] = 1 + np.count_nonzero(comparable(wrong) > comparable(scores[best]))

    def _note_wrong(self, number: int, rows: Ints, scores: Array) -> None:
        """Note the other images that a query finds first, as above; overwrites their scores with -inf."""
        for k in range(min(WRONG, len(scores))):
            first = first_highest(scores)
            if scores[first] == -np.inf:
                break
            self.near.wrong[number, k], self.near.wrong_score[number, k] = rows[first], scores[first]
            scores[first] = -np.inf


def _answered(scores: Array) -> Array:
    """A copy with -inf in place of NaN, where a judge gave no score."""
    return np.fmax(scores, -np.inf)


@dataclass(frozen=True)
class Pairs:
    """Pairs of images: rows a and b (P,), their similarity, and whether they show one identity."""

    a: Ints
    b: Ints
    score: Array
    same: Truths


def within(
    scorer: HasMatrix, search: Search, measures: Mapping[str, Measure], seed: int = 0
) -> tuple[dict[str, Array], Nearest, Pairs]:
    """`measure` of queries that are in the gallery, and all unordered pairs of the gallery's different images.

    Each similarity is computed once. All pairs of one identity are kept, up to `OWN_PAIRS`; of more than `PAIRS` of two
    identities, a random sample is, which leaves the ROC curve unbiased.
    """
    found, rows = Found(search, measures), search.gallery
    whole = replace(search, queries=rows)
    place = np.full(len(search.identity), -1)
    place[search.queries] = np.arange(len(search.queries))
    counts = np.unique(owners(search.identity, rows), return_counts=True)[1].astype(np.int64)
    own = int((counts**2).sum())
    shares = _shares((own - len(rows)) // 2, (len(rows) ** 2 - own) // 2)
    parts = []

    for number, block in enumerate(blocks(scorer, whole)):
        found.add(block, place[rows[block.part]])
        parts.append(_pairs(block, whole, shares, (seed, number), once=True))

    return found.values, found.near, _joined(parts)


def searched(
    scorer: HasMatrix, search: Search, measures: Mapping[str, Measure], seed: int = 0
) -> tuple[dict[str, Array], Nearest, Pairs]:
    """`measure`, and the pairs of queries with gallery images, each similarity computed once.

    Pairs of one identity are kept up to `OWN_PAIRS`; of more than `PAIRS` of two, a random sample is.
    """
    found = Found(search, measures)
    own = int(search.positives().sum())
    shares = _shares(own, len(search.queries) * len(search.gallery) - own)
    parts = []
    for number, block in enumerate(blocks(scorer, search)):
        found.add(block, np.arange(block.part.start, block.part.stop))
        parts.append(_pairs(block, search, shares, (seed, number)))
    return found.values, found.near, _joined(parts)


def _shares(own: int, strangers: int) -> tuple[float, float]:
    """The shares of the pairs of one identity and of two identities that are kept."""
    return min(1.0, OWN_PAIRS / max(1, own)), min(1.0, PAIRS / max(1, strangers))


def _pairs(
    block: Block, search: Search, shares: tuple[float, float], seed: tuple[int, int], *, once: bool = False
) -> Pairs:
    """The pairs of a block, or by chance these shares of them; `once` keeps (a, b) of (a, b) and (b, a)."""
    rng = np.random.default_rng(seed)
    same, others = np.zeros(block.scores.shape, bool), np.ones(block.scores.shape, bool)
    for row, (own, hidden) in enumerate(zip(block.own, block.hidden, strict=True)):
        same[row, own] = True
        others[row, own] = others[row, hidden] = False

    cells = []
    for kind, share in zip((same, others), shares, strict=True):
        if share < 1:  # of few cells, so that the others cost nothing
            drawn = rng.choice(kind.size, rng.binomial(kind.size, share), replace=False, shuffle=False)
            cells.append(drawn[kind.ravel()[drawn]])
        else:
            cells.append(np.flatnonzero(kind))

    i, j = np.unravel_index(np.sort(np.concatenate(cells)), same.shape)
    if once:
        later = i + block.part.start < j
        i, j = i[later], j[later]
    return Pairs(search.queries[block.part][i], search.gallery[j], block.scores[i, j], same[i, j])


def _joined(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Pairs)))


# Kept on disk


def within_kept(
    scorer: Scorer, search: Search, measures: Mapping[str, Measure], settings: Settings, name: str
) -> tuple[dict[str, Array], Nearest, Pairs, dict[str, Value]]:
    """As `within`, with the AUC of the pairs and its interval (`intervals.auc`); a long table is kept for the next run.

    Args:
        name: of the file below `settings.store`; the next result of that name replaces it.
    """

    def compute() -> Arrays:
        values, near, pairs = within(scorer, search, measures, settings.seed)
        area = auc(pairs.score, pairs.same, search.identity[np.stack([pairs.a, pairs.b], 1)], settings)
        numbers = [(v.value, v.low, v.high, v.count) for v in area.values()]
        return {
            **{f"values.{name}": of for name, of in values.items()},
            **{f"near.{f.name}": getattr(near, f.name) for f in fields(Nearest)},
            **{f"pairs.{f.name}": getattr(pairs, f.name) for f in fields(Pairs)},
            "auc": np.array(numbers, dtype=np.float64).reshape(-1, 4),
        }

    short = len(search.gallery) < _LONG or search.ignored
    if short or settings.store is None or not isinstance(scorer, VectorScorer) or scorer.distance != "cls":
        found = compute()
    else:
        inputs: dict[str, NDArray[Any] | str] = {
            "features": scorer.digest(search.gallery), "measures": " ".join(measures),
            "settings": f"{settings.seed} {settings.bootstrap} {PAIRS} {OWN_PAIRS} {_CELLS} {DIGITS}",
            "queries": search.queries, "gallery": search.gallery, "identity": search.identity, "image": search.image,
        }  # fmt: skip
        found = remembered(settings.store / "tables" / f"{slug(name)}.safetensors", inputs, compute)

    area = {}
    for value, low, high, count in found["auc"].tolist():
        interval = (None, None) if np.isnan(low) else (low, high)
        area["AUC"] = Value(value, interval[0], interval[1], int(count))
    near = Nearest(*(found[f"near.{f.name}"] for f in fields(Nearest)))
    pairs = Pairs(*(found[f"pairs.{f.name}"] for f in fields(Pairs)))
    return {name: found[f"values.{name}"] for name in measures}, near, pairs, area
