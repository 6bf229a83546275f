"""Scores that differ by rounding noise are equal: scikit-learn and SciPy on rounded scores are the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from threadpoolctl import threadpool_limits

from idmetric.data.nearest import nearest, nearest_other, unit
from idmetric.evaluate.protocols import openset
from idmetric.evaluate.protocols.common import ranked
from idmetric.evaluate.protocols.common.ranked import Search
from idmetric.evaluate.report.plots import on_front
from idmetric.evaluate.statistics import open_set, ranking
from idmetric.evaluate.statistics.agreement import kendall, spearman
from idmetric.evaluate.statistics.checks import first_highest
from idmetric.evaluate.statistics.margins import margin_rates
from idmetric.evaluate.statistics.resampled import resampled_auc
from idmetric.evaluate.statistics.segmentation import mask_map
from idmetric.metric.ties import comparable

SEEDS = pytest.mark.parametrize("seed", range(8))


def noisy(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of eight levels, exact and with the noise of float32, and labels; in an order of their own."""
    rng = np.random.default_rng(seed)
    exact, relevant = rng.integers(0, 8, count) / 10, rng.random(count) < 0.4
    relevant[:2] = True, False
    return exact, exact + rng.uniform(-1e-7, 1e-7, count), relevant


@SEEDS
def test_measures_of_noisy_scores_are_scikit_learns_of_rounded_ones(seed: int) -> None:
    exact, scores, relevant = noisy(seed)
    assert ranking.average_precision(scores, relevant) == pytest.approx(
        metrics.average_precision_score(relevant, exact)
    )
    assert ranking.roc_auc(scores, relevant) == pytest.approx(metrics.roc_auc_score(relevant, exact))
    assert ranking.ndcg(scores, relevant) == pytest.approx(metrics.ndcg_score([relevant], [exact]))

    own = np.sort(exact[relevant])[::-1]
    places = [1 + k + (exact[~relevant] >= one).sum() for k, one in enumerate(own)]  # a tie loses
    for k in (1, 5, 20):
        assert ranking.recall_at_k(scores, relevant, k) == np.mean(np.array(places) <= k)
        assert ranking.hit_at_k(scores, relevant, k) == (places[0] <= k)
    assert ranking.precision_at_1(scores, relevant) == (places[0] == 1)


@SEEDS
def test_pairs_of_noisy_scores_are_compared_as_rounded_ones(seed: int) -> None:
    (a, x, r), (b, y, _) = noisy(seed), noisy(seed + 100)
    rates = margin_rates(np.stack([x - y, y - x], 1))
    assert rates.pa == np.mean(np.stack([a > b, b > a]))
    assert rates.ssr == 0
    assert spearman(x, y) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert kendall(x, y) == pytest.approx(stats.kendalltau(a, b).statistic)
    ends = np.random.default_rng(seed).integers(0, 9, (len(x), 2))
    np.testing.assert_array_equal(resampled_auc(x, r, ends, samples=9), resampled_auc(a, r, ends, samples=9))
    exact = list(zip(a, b, strict=True))
    for point, is_on_front in zip(exact, on_front(x, y), strict=True):
        no_worse = [other for other in exact if other[0] >= point[0] and other[1] >= point[1]]
        assert is_on_front == all(other == point for other in no_worse)


@SEEDS
def test_decisions_on_noisy_scores_are_those_on_rounded_ones(seed: int) -> None:
    exact, scores, right = noisy(seed)
    known = right | (np.random.default_rng(seed).random(len(right)) < 0.3)
    both = [open_set.Answers.of(s, right, known, np.arange(len(right))) for s in (exact, scores)]
    assert open_set.known_auc(both[1]) == pytest.approx(metrics.roc_auc_score(known, exact))
    assert open_set.oscr_area(both[0]) == open_set.oscr_area(both[1])
    assert open_set.best_threshold(both[0]) == open_set.best_threshold(both[1])
    taus, baks, baus = open_set.curve(both[1])
    assert len(taus) == len(np.unique(exact)) + 1
    for tau, known_share, unknown_share in zip(taus, baks, baus, strict=True):
        assert open_set.known_accuracy(both[1], tau) == pytest.approx(known_share, abs=1e-12)
        assert open_set.unknown_accuracy(both[1], tau) == pytest.approx(unknown_share, abs=1e-12)
    ious = np.random.default_rng(seed).random(len(right)) * right
    assert mask_map(ious, scores, right) == mask_map(ious, exact, right)


def test_rounding_is_idempotent_and_the_first_of_equal_scores_is_the_highest() -> None:
    x = np.random.default_rng(0).normal(size=10_000) * 10.0 ** np.arange(-3, 2)[:, None]
    np.testing.assert_array_equal(comparable(comparable(x)), comparable(x))
    assert np.abs(comparable(x) - x).max() <= 5.000001e-7
    assert first_highest(np.array([0.1, 0.5 - 1e-7, 0.5, -np.inf])) == 1
    assert first_highest(np.full(3, -np.inf)) == 0


# Copies under several orders, blocks and threads


# eight pictures with cosines that lie far enough from where rounding turns for float32's noise, about 1e-8 here
PICTURES = np.random.default_rng(15693).normal(0.4, 1, (8, 48))


def copies(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of eight pictures with seven copies each, with the noise of float32, and the number of each's picture."""
    rng = np.random.default_rng(seed)
    shown = rng.permutation(np.repeat(np.arange(8), 7))
    scale = rng.uniform(0.3, 3, (len(shown), 1))  # of one direction, but for the last bits
    return unit((PICTURES[shown] * scale).astype(np.float32)), shown


def exact(shown: np.ndarray) -> np.ndarray:
    """Rounded cosines of the pictures, without noise."""
    pictures = PICTURES / np.linalg.norm(PICTURES, axis=1, keepdims=True)
    return (pictures @ pictures.T).round(6)[np.ix_(shown, shown)]


class Vectors:
    """Cosines by a product of matrices."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors

    def matrix(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return self.vectors[rows].astype(np.float64) @ self.vectors[columns].astype(np.float64).T


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    with threadpool_limits(request.param):
        yield


@pytest.mark.parametrize("cells", [2**24, 300, 60])
@pytest.mark.parametrize("seed", range(4))
def test_searches_rank_copies_equally(seed: int, cells: int, threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "_CELLS", cells)
    monkeypatch.setattr(ranked, "_FEWEST", 1)
    vectors, shown = copies(seed)
    identity, at = np.random.default_rng(seed).integers(0, 6, len(shown)), np.arange(len(shown))
    search = Search(at, at, identity, at)
    measures: dict[str, Callable[..., float]] = {
        "AP": ranking.average_precision,
        "hit": lambda s, r: ranking.hit_at_k(s, r, 3),
    }
    values, near, pairs = ranked.searched(Vectors(vectors), search, measures)

    cosines = exact(shown)
    for query in at:
        others = at[at != query]
        relevant, scores = identity[others] == identity[query], cosines[query, others]
        assert values["AP"][query] == pytest.approx(metrics.average_precision_score(relevant, scores))
        best = scores[relevant].max()
        assert values["hit"][query] == ((scores[~relevant] >= best).sum() < 3)
        order = np.lexsort((others, -scores))  # of equal ones the first
        assert near.right[query] == others[order][relevant[order]][0]
        assert near.wrong[query].tolist() == others[order][~relevant[order]][:3].tolist()
        assert near.right_rank[query] == 1 + (scores[~relevant] > best).sum()

    once = np.triu_indices(len(at), 1)
    wanted = metrics.roc_auc_score((identity[:, None] == identity)[once], cosines[once])
    assert ranking.roc_auc(pairs.score, pairs.same) == pytest.approx(wanted)

    rows, _ = openset.nearest(Vectors(vectors), search)
    np.fill_diagonal(cosines, -2)
    np.testing.assert_array_equal(rows, cosines.argmax(1))


@pytest.mark.parametrize("cells", [2**22, 400, 1])
@pytest.mark.parametrize("seed", range(3))
def test_galleries_and_mining_take_copies_in_their_order(
    seed: int, cells: int, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idmetric.data.nearest._CELLS", cells)
    vectors, shown = copies(seed)
    cosines, at = exact(shown), np.arange(len(shown))
    found, far = nearest(vectors, vectors, 12)
    wanted = np.lexsort((np.broadcast_to(at, cosines.shape), -cosines))[:, :12]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(far, 1 - np.take_along_axis(cosines, wanted, 1), atol=1e-6)

    groups = np.random.default_rng(seed).integers(0, 6, len(shown))
    ceiling = float(np.unique(cosines)[-8])  # the similarity of two pictures: all their copies are left out
    for limit in (None, ceiling):
        rows, _ = nearest_other(vectors, groups, 9, ceiling=limit)
        cut = np.where(groups[:, None] == groups, -2, cosines)
        if limit is not None:
            cut[cosines >= limit] = -2
        order = np.lexsort((np.broadcast_to(at, cut.shape), -cut))[:, :9]
        expected = np.where(np.take_along_axis(cut, order, 1) == -2, -1, order)
        np.testing.assert_array_equal(rows, expected)
