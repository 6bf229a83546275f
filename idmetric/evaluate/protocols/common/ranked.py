"""Queries against a gallery: the measures of each query, and the scores of pairs, in blocks that bound memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.split import image_keys
from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, known, listed
from idmetric.evaluate.protocols.common.intervals import codes
from idmetric.evaluate.protocols.common.scorers import Scorer, slices
from idmetric.evaluate.statistics.checks import first_highest
from idmetric.metric.ties import STEP, comparable

if TYPE_CHECKING:
    from pandas import DataFrame

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
    def of(cls, manifest: DataFrame, queries: Ints, gallery: Ints) -> Search:
        """A search with the manifest's identities and images."""
        identity = codes(manifest["identity"])
        image = codes(image_keys(manifest))
        return cls(queries, gallery, identity, image)

    def positives(self) -> Ints:
        """How many positives (Q,) each query has in the gallery."""
        counts = [np.count_nonzero(is_positive) for is_positive, _ in self.relevance()]
        return np.array(counts, dtype=np.int64)

    def only(self, chosen: Truths) -> Search:
        """The search of some of the queries; chosen is (Q,)."""
        return replace(self, queries=self.queries[chosen])

    def relevance(self, part: slice = slice(None)) -> Iterator[tuple[Truths, Truths]]:
        """For some queries: which gallery images (G,) are positives, and which are of other identities."""
        gallery_identity = self.identity[self.gallery]
        gallery_image = self.image[self.gallery]
        for row in self.queries[part].tolist():
            is_searched = gallery_image != self.image[row]
            if row in self.ignored:
                is_searched &= ~np.isin(self.gallery, self.ignored[row])
            is_named = self.identity[row] >= 0  # two unknown ones do not match
            is_same = gallery_identity == self.identity[row]
            yield is_searched & is_same & is_named, is_searched & ~(is_same & is_named)

    def blocks(self) -> list[slice]:
        """Slices of the queries of bounded memory."""
        width = max(1, len(self.gallery))
        return slices(len(self.queries), max(_FEWEST, _CELLS // width))


def answerable(
    search: Search,
    where: str,
    names: Sequence[str],
    *,
    skip: bool = False,
) -> tuple[Search, list[str]]:
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
        columns = [column[chosen] for column in vars(self).values()]
        return Nearest(*columns)

    def columns(self, ids: NDArray[Any]) -> dict[str, list[Any]]:
        """Columns of a table of queries, with the ids of the manifest's rows in place of numbers."""
        names = {-1: None, **dict(enumerate(ids))}
        ranks = self.right_rank.astype(object)
        ranks[self.right_rank < 0] = None
        columns: dict[str, list[Any]] = {
            "right": [names[row] for row in self.right.tolist()],
            "right_score": known(self.right_score),
            "right_rank": ranks.tolist(),
        }
        for k, rows in enumerate(self.wrong.T.tolist()):
            column = f"wrong_{k + 1}"
            columns[column] = [names[row] for row in rows]
            columns[f"{column}_score"] = known(self.wrong_score[:, k])
        return columns


def query_items(
    data: DataFrame,
    search: Search,
    values: Mapping[str, Array],
    nearest: Nearest,
    **labels: str,
) -> dict[str, Any]:
    """Columns of a table of queries: labels that all of them share, their measures, and what they find first."""
    ids = data["id"].to_numpy()
    columns: dict[str, Any] = {name: [label] * len(search.queries) for name, label in labels.items()}
    columns["id"] = ids[search.queries]
    columns["identity"] = data["identity"].to_numpy()[search.queries]
    return {**columns, **values, **nearest.columns(ids)}


@dataclass(frozen=True)
class Block:
    """Similarities (B, G) of some queries to the gallery.

    Attributes:
        same, other: bool (B, G), the positives of each query, and its images of other identities; neither are the
            images that it does not search.
    """

    part: slice
    scores: Array
    same: Truths
    other: Truths


def blocks(scorer: Scorer, search: Search) -> Iterator[Block]:
    """All queries of a search, some at a time."""
    for part in search.blocks():
        same, other = zip(*search.relevance(part), strict=True)
        scores = scorer.matrix(search.queries[part], search.gallery)
        yield Block(part, scores, np.stack(same), np.stack(other))


def ranking(scores: Array, positives: Ints, is_other: Truths) -> tuple[Array, Truths]:
    """Scores and relevance of a query's positives, and of the others that rank no lower than the last of them.

    Nothing below changes a measure. NaN stays, for the measures to refuse, and so do scores that may equal the last
    positive's: measures round them.
    """
    positive_scores = scores[positives]
    is_below = scores < positive_scores.min() - 2 * STEP
    ranked = np.concatenate([positive_scores, scores[is_other & ~is_below]])
    is_positive = np.arange(len(ranked)) < len(positives)
    return ranked, is_positive


class Found:
    """Measures (Q,) of queries, NaN without a positive, and what they find first; filled block by block."""

    def __init__(self, search: Search, measures: Mapping[str, Measure]) -> None:
        count = len(search.queries)
        shape = count, WRONG
        self.gallery = search.gallery
        self.measures = measures
        self.values = {name: np.full(count, np.nan) for name in measures}
        self.near = Nearest(
            wrong=np.full(shape, -1),
            wrong_score=np.full(shape, np.nan),
            right=np.full(count, -1),
            right_score=np.full(count, np.nan),
            right_rank=np.full(count, -1),
        )

    def add(self, block: Block) -> None:
        """Fill in the queries of a block."""
        for row, scores in enumerate(block.scores):
            query = block.part.start + row
            positives = np.flatnonzero(block.same[row])
            is_other = block.other[row]
            answered = np.fmax(scores, -np.inf)  # NaN: a judge gave no score
            if len(positives):
                ranked, relevant = ranking(scores, positives, is_other)
                for name, measure_of in self.measures.items():
                    self.values[name][query] = measure_of(ranked, relevant)
                best = positives[first_highest(answered[positives])]
                self.near.right[query] = self.gallery[best]
                self.near.right_score[query] = answered[best]
                is_higher = comparable(ranked[~relevant]) > comparable(answered[best])
                self.near.right_rank[query] = 1 + np.count_nonzero(is_higher)

            # the nearest images of other identities
            answered[~is_other] = -np.inf
            for k in range(min(WRONG, len(answered))):
                nearest = first_highest(answered)
                if answered[nearest] == -np.inf:
                    break
                self.near.wrong[query, k] = self.gallery[nearest]
                self.near.wrong_score[query, k] = answered[nearest]
                answered[nearest] = -np.inf


def measure(
    scorer: Scorer,
    search: Search,
    measures: Mapping[str, Measure],
) -> tuple[dict[str, Array], Nearest]:
    """Measures (Q,) of each query, NaN without a positive, and what it finds first."""
    answers = Found(search, measures)
    for block in blocks(scorer, search):
        answers.add(block)
    return answers.values, answers.near


@dataclass(frozen=True)
class RankedPairs:
    """Pairs of images: rows a and b (P,), their similarity, and whether they show one identity."""

    a: Ints
    b: Ints
    score: Array
    same: Truths


def searched(
    scorer: Scorer,
    search: Search,
    measures: Mapping[str, Measure],
    seed: int = 0,
) -> tuple[dict[str, Array], Nearest, RankedPairs]:
    """`measure`, and the pairs of queries with gallery images, each similarity computed once.

    If the queries are the gallery, (a, b) and (b, a) are one pair. Pairs of one identity are kept up to `OWN_PAIRS`; of
    more than `PAIRS` of two, a random sample is, which leaves the ROC curve unbiased.
    """
    answers = Found(search, measures)
    is_within = np.array_equal(search.queries, search.gallery)
    positive_pairs = int(search.positives().sum())
    all_pairs = len(search.gallery) * (len(search.queries) - is_within)
    negative_pairs = all_pairs - positive_pairs
    times = 1 + is_within  # that each pair occurs
    positive_share = min(1.0, OWN_PAIRS / max(1, positive_pairs // times))
    negative_share = min(1.0, PAIRS / max(1, negative_pairs // times))

    parts = []
    for number, block in enumerate(blocks(scorer, search)):
        answers.add(block)
        rng = np.random.default_rng((seed, number))
        positive_cells = _drawn(block.same, positive_share, rng)
        negative_cells = _drawn(block.other, negative_share, rng)
        cells = np.sort(np.concatenate([positive_cells, negative_cells]))
        query, target = np.unravel_index(cells, block.same.shape)
        if is_within:
            is_first = query + block.part.start < target
            query, target = query[is_first], target[is_first]

        queries = search.queries[block.part][query]
        targets = search.gallery[target]
        scores = block.scores[query, target]
        parts.append((queries, targets, scores, block.same[query, target]))

    columns = map(np.concatenate, zip(*parts, strict=True))
    return answers.values, answers.near, RankedPairs(*columns)


def _drawn(
    mask: NDArray[np.bool_],
    share: float,
    rng: np.random.Generator,
) -> Ints:
    """The cells of a mask, or a random share of them."""
    if share == 1:
        return np.flatnonzero(mask)
    count = rng.binomial(mask.size, share)
    cells = rng.choice(mask.size, count, replace=False, shuffle=False)
    return cells[mask.ravel()[cells]]
