"""Searches block by block, against loops over all images."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from idmetric.evaluate.protocols.common import ranked
from idmetric.evaluate.protocols.common.ranked import Search
from idmetric.evaluate.statistics.ranking import average_precision, precision_at_1, recall_at_k

MEASURES = {"AP": average_precision, "P@1": precision_at_1, "recall": partial(recall_at_k, k=4)}


class Table:
    """Similarities of all rows."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores

    def matrix(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return self.scores[np.ix_(rows, columns)]


def drawn(seed: int, size: int = 40, ties: int = 1) -> tuple[Table, Search]:
    """Rows of a few identities and of none, some of which show one image, and queries that leave some images out."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(size, size)).round(ties)
    identity, image = rng.integers(-1, 5, size), rng.integers(0, size - 5, size)
    queries, ignored = np.arange(0, size, 2), {2: [5, 9, 11], 4: [4]}
    search = Search(queries, np.sort(rng.choice(size, size - 6, replace=False)), identity, image, ignored)
    return Table((scores + scores.T).round(6)), search.only(search.positives() > 0)


def searches(search: Search, query: int) -> tuple[list[int], list[int]]:
    """Gallery rows of the query's identity, and all others, except images that the query does not search."""
    rows = [g for g in search.gallery.tolist() if search.image[g] != search.image[query]]
    rows = [g for g in rows if g not in search.ignored.get(query, ())]
    own = [g for g in rows if search.identity[g] == search.identity[query] >= 0]
    return own, [g for g in rows if g not in own]


@pytest.mark.parametrize("cells", [2**24, 100])
@pytest.mark.parametrize("seed", range(6))
def test_tables_are_those_of_loops(seed: int, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "_CELLS", cells)
    monkeypatch.setattr(ranked, "_FEWEST", 1)
    table, search = drawn(seed, ties=seed % 3)
    own_first = seed % 2  # a good model: the nearest images of others lie below the last positive
    for query in search.queries.tolist():
        own, _ = searches(search, query)
        table.scores[query, own] += 9 * own_first
    table.scores = table.scores.round(6)  # equal scores without noise, which the loops below would rank

    for values, near, pairs in (
        (*ranked.measure(table, search, MEASURES), None),
        ranked.searched(table, search, MEASURES),
    ):
        expected = []
        for number, query in enumerate(search.queries.tolist()):
            own, others = searches(search, query)
            scores, relevant = table.scores[query, own + others], np.arange(len(own + others)) < len(own)
            for name, one in MEASURES.items():
                assert values[name][number] == pytest.approx(one(scores, relevant), abs=1e-12)

            right, *_ = sorted(own, key=lambda g: (-table.scores[query, g], g))
            assert near.right[number] == right
            assert near.right_rank[number] == 1 + (table.scores[query, others] > table.scores[query, right]).sum()
            wrong = sorted(others, key=lambda g: (-table.scores[query, g], g))[:3]
            assert near.wrong[number].tolist() == wrong
            assert near.wrong_score[number].tolist() == table.scores[query, wrong].tolist()
            expected += [(query, g, table.scores[query, g], g in own) for g in sorted(own + others)]
        if pairs is not None:
            assert list(zip(pairs.a, pairs.b, pairs.score, pairs.same, strict=True)) == expected


@pytest.mark.parametrize("cells", [2**24, 100])
def test_pairs_within_a_gallery_are_named_once(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "_CELLS", cells)
    monkeypatch.setattr(ranked, "_FEWEST", 1)
    table, search = drawn(0)
    rows = np.arange(len(search.identity))
    whole = Search(rows, rows, search.identity, search.image)
    values, near, pairs = ranked.searched(table, whole, MEASURES)
    has = whole.positives() > 0
    alone, first = ranked.measure(table, whole.only(has), MEASURES)

    for name in MEASURES:
        np.testing.assert_array_equal(values[name][has], alone[name])
        assert np.isnan(values[name][~has]).all()
    np.testing.assert_array_equal(near.take(has).wrong, first.wrong)
    assert (near.right_rank > 0).tolist() == has.tolist()
    image, identity = search.image, search.identity
    expected = [(a, b) for a in rows for b in rows[a + 1 :] if image[a] != image[b]]
    np.testing.assert_array_equal(np.stack([pairs.a, pairs.b], 1), expected)
    assert pairs.score.tolist() == [table.scores[pair] for pair in expected]
    assert pairs.same.tolist() == [identity[a] == identity[b] >= 0 for a, b in expected]


def test_missing_scores_rank_last_and_are_refused_by_measures() -> None:
    table, search = drawn(1)
    query = int(search.queries[3])
    own, others = searches(search, query)
    table.scores[query, [own[0], *others[2:]]] = np.nan
    _, near = ranked.measure(table, search, {})
    wrong = sorted(others[:2], key=lambda g: (-table.scores[query, g], g))
    assert near.wrong[3].tolist() == [*wrong, -1]
    right = max(own[1:], key=lambda g: (table.scores[query, g], -g))
    assert near.right[3] == right
    assert near.right_rank[3] == 1 + (table.scores[query, others[:2]] > table.scores[query, right]).sum()
    with pytest.raises(ValueError, match="finite"):
        ranked.measure(table, search, MEASURES)
