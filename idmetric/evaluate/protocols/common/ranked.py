"""Queries against a gallery: the measures of each query, and the scores of pairs, in blocks that bound memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import image_keys
from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, known, listed
from idmetric.evaluate.protocols.common.intervals import codes
from idmetric.evaluate.protocols.common.scorers import Scorer, slices
from idmetric.metric.distance.ties import STEP, comparable, first_highest

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

# of one query's ranking: scores and relevance of the images that rank no lower than its last positive
Measure = Callable[[Array, Truths], float]
WRONG = 3  # images of other identities that are noted for a query
_CELLS, _FEWEST = 2**24, 16  # similarities held at once (128 MB), though not fewer queries
PAIRS = 1_000_000  # of two identities that are scored at most; of more, a random sample of this size
OWN_PAIRS = 5_000_000  # of one identity, likewise; only identities with hundreds of images have more


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
        return np.array([len(positives) for positives, _ in self.places()], dtype=np.int64)

    def only(self, chosen: Truths) -> Search:
        """The search of some of the queries; chosen is (Q,)."""
        return replace(self, queries=self.queries[chosen])

    def places(self, part: slice = slice(None)) -> Iterator[tuple[Ints, Ints]]:
        """For some queries: places in the gallery of their positives, and of the images that they do not search."""
        nowhere = np.empty(0, np.int64)
        for row in self.queries[part].tolist():
            identity, image = int(self.identity[row]), int(self.image[row])
            hidden = self._places_of_images.get(image, nowhere)
            if row in self.ignored:
                ignored = np.flatnonzero(np.isin(self.gallery, self.ignored[row]))
                hidden = np.union1d(hidden, ignored)
            positives = nowhere
            if identity >= 0:  # two unknown ones do not match
                positives = self._places_of_identities.get(identity, nowhere)
            yield np.setdiff1d(positives, hidden, assume_unique=True), hidden

    @cached_property
    def _places_of_identities(self) -> dict[int, Ints]:
        return _places(self.identity[self.gallery])

    @cached_property
    def _places_of_images(self) -> dict[int, Ints]:
        return _places(self.image[self.gallery])

    def blocks(self) -> list[slice]:
        """Slices of the queries of bounded memory."""
        return slices(len(self.queries), max(_FEWEST, _CELLS // max(1, len(self.gallery))))


def _places(values: Ints) -> dict[int, Ints]:
    """Value -> its places, ascending."""
    order = np.argsort(values, kind="stable")
    different, starts = np.unique(values[order], return_index=True)
    return dict(zip(different.tolist(), np.split(order, starts[1:]), strict=True))


def answerable(search: Search, where: str, names: Sequence[str], *, skip: bool = False) -> tuple[Search, list[str]]:
    """The search over the queries with a positive, and a note on those without.

    Args:
        where: start of messages. names: of the manifest's rows, which messages list.

    Raises:
        ValueError: if no query has a positive, or one has none and `skip` is False.
    """
    has_positive = search.positives() > 0
    if len(has_positive) and has_positive.all():
        return search, []
    without = [names[row] for row in search.queries[~has_positive]]
    text = f"{where}: {len(without)} queries have no positive in the gallery: {listed(without)}"
    if not has_positive.any() or not skip:
        raise ValueError(f"{text}; correct the manifest, or leave them out (--on-error skip)")
    return search.only(has_positive), [f"{text}: left out"]


@dataclass(frozen=True)
class Nearest:
    """The images that a query finds first: three of other identities, and the nearest one of its own.

    Attributes:
        wrong, wrong_score: (Q, 3), rows of the manifest and similarities, nearest first; -1 and NaN where there are
            fewer.
        right, right_score, right_rank: (Q,), of the nearest positive, -1 and NaN without one; its rank is 1 more than
            the number of images that are more similar.
    """

    wrong: Ints
    wrong_score: Array
    right: Ints
    right_score: Array
    right_rank: Ints

    def take(self, chosen: Truths) -> Nearest:
        """Of some of the queries."""
        return Nearest(*(column[chosen] for column in vars(self).values()))

    def columns(self, ids: NDArray[Any]) -> dict[str, list[Any]]:
        """Columns of a table of queries, with the ids of the manifest's rows in place of numbers."""
        names = {-1: None, **dict(enumerate(ids))}
        columns: dict[str, list[Any]] = {
            "right": [names[row] for row in self.right.tolist()],
            "right_score": known(self.right_score),
            "right_rank": [rank if rank >= 0 else None for rank in self.right_rank.tolist()],
        }
        for k in range(WRONG):
            columns[f"wrong_{k + 1}"] = [names[row] for row in self.wrong[:, k].tolist()]
            columns[f"wrong_{k + 1}_score"] = known(self.wrong_score[:, k])
        return columns


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


def blocks(scorer: Scorer, search: Search) -> Iterator[Block]:
    """All queries of a search, some at a time."""
    for part in search.blocks():
        positives, hidden = zip(*search.places(part), strict=True)
        scores = scorer.matrix(search.queries[part], search.gallery)
        yield Block(part, scores, list(positives), list(hidden))


def ranking(scores: Array, own: Ints, others: Truths) -> tuple[Array, Truths]:
    """Scores and relevance of a query's positives, and of the others that rank no lower than the last of them.

    Nothing below changes a measure. NaN stays, for the measures to refuse, and so do scores that may equal the last
    positive's: measures round them.
    """
    may_rank_higher = others & ~(scores < scores[own].min() - 2 * STEP)
    ranked = np.concatenate([scores[own], scores[may_rank_higher]])
    return ranked, np.arange(len(ranked)) < len(own)


class Found:
    """Measures (Q,) of queries, NaN without a positive, and what they find first; filled block by block."""

    def __init__(self, search: Search, measures: Mapping[str, Measure]) -> None:
        count = len(search.queries)
        self.gallery, self.measures = search.gallery, measures
        self.values = {name: np.full(count, np.nan) for name in measures}
        self.near = Nearest(
            wrong=np.full((count, WRONG), -1),
            wrong_score=np.full((count, WRONG), np.nan),
            right=np.full(count, -1),
            right_score=np.full(count, np.nan),
            right_rank=np.full(count, -1),
        )

    def add(self, block: Block) -> None:
        """Fill in the queries of a block."""
        lines = zip(block.scores, block.own, block.hidden, strict=True)
        for number, (scores, positives, hidden) in enumerate(lines, block.part.start):
            is_other = np.ones(len(scores), dtype=bool)
            is_other[positives] = is_other[hidden] = False
            answered = np.fmax(scores, -np.inf)  # NaN: a judge gave no score
            if len(positives):
                self._add_positives(number, scores, positives, is_other, answered)

            answered[~is_other] = -np.inf
            for k in range(min(WRONG, len(answered))):
                place = first_highest(answered)
                if answered[place] == -np.inf:
                    break
                self.near.wrong[number, k] = self.gallery[place]
                self.near.wrong_score[number, k] = answered[place]
                answered[place] = -np.inf

    def _add_positives(self, number: int, scores: Array, positives: Ints, is_other: Truths, answered: Array) -> None:
        ranked, relevant = ranking(scores, positives, is_other)
        for name, measure_of in self.measures.items():
            self.values[name][number] = measure_of(ranked, relevant)
        best = positives[first_highest(answered[positives])]
        self.near.right[number] = self.gallery[best]
        self.near.right_score[number] = answered[best]
        is_higher = comparable(ranked[~relevant]) > comparable(answered[best])
        self.near.right_rank[number] = 1 + np.count_nonzero(is_higher)


def measure(scorer: Scorer, search: Search, measures: Mapping[str, Measure]) -> tuple[dict[str, Array], Nearest]:
    """Measures (Q,) of each query, NaN without a positive, and what it finds first."""
    found = Found(search, measures)
    for block in blocks(scorer, search):
        found.add(block)
    return found.values, found.near


@dataclass(frozen=True)
class Pairs:
    """Pairs of images: rows a and b (P,), their similarity, and whether they show one identity."""

    a: Ints
    b: Ints
    score: Array
    same: Truths


def searched(
    scorer: Scorer, search: Search, measures: Mapping[str, Measure], seed: int = 0
) -> tuple[dict[str, Array], Nearest, Pairs]:
    """`measure`, and the pairs of queries with gallery images, each similarity computed once.

    If the queries are the gallery, (a, b) and (b, a) are one pair. Pairs of one identity are kept up to `OWN_PAIRS`; of
    more than `PAIRS` of two, a random sample is, which leaves the ROC curve unbiased.
    """
    found = Found(search, measures)
    is_within = np.array_equal(search.queries, search.gallery)
    own_pairs = int(search.positives().sum())
    all_pairs = len(search.gallery) * (len(search.queries) - is_within)
    times = 1 + is_within  # that each pair occurs
    own_share = min(1.0, OWN_PAIRS / max(1, own_pairs // times))
    other_share = min(1.0, PAIRS / max(1, (all_pairs - own_pairs) // times))

    parts = []
    for number, block in enumerate(blocks(scorer, search)):
        found.add(block)
        same = np.zeros(block.scores.shape, bool)
        different = np.ones(block.scores.shape, bool)
        for row, (positives, hidden) in enumerate(zip(block.own, block.hidden, strict=True)):
            same[row, positives] = True
            different[row, positives] = different[row, hidden] = False

        rng = np.random.default_rng((seed, number))
        own_cells, other_cells = _drawn(same, own_share, rng), _drawn(different, other_share, rng)
        cells = np.sort(np.concatenate([own_cells, other_cells]))
        query, target = np.unravel_index(cells, same.shape)
        if is_within:
            is_first = query + block.part.start < target
            query, target = query[is_first], target[is_first]
        queries = search.queries[block.part]
        parts.append((queries[query], search.gallery[target], block.scores[query, target], same[query, target]))

    a, b, scores, are_same = (np.concatenate(column) for column in zip(*parts, strict=True))
    return found.values, found.near, Pairs(a, b, scores, are_same)


def _drawn(mask: NDArray[np.bool_], share: float, rng: np.random.Generator) -> Ints:
    """The cells of a mask, or a random share of them."""
    if share == 1:
        return np.flatnonzero(mask)
    cells = rng.choice(mask.size, rng.binomial(mask.size, share), replace=False, shuffle=False)
    return cells[mask.ravel()[cells]]
