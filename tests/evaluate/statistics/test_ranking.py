from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmetric.evaluate.statistics.ranking import (
    average_precision,
    hit_at_k,
    ndcg,
    precision_at_1,
    recall_at_k,
    roc_auc,
    trapezoid_average_precision,
)
from tests.reference import statistics_loop as slow

metrics = pytest.importorskip("sklearn.metrics")

Items = list[tuple[float, bool]]


def items(most: int = 12) -> st.SearchStrategy[Items]:
    """Scores with many ties and of any sign, each with a label; something is relevant."""
    item = st.tuples(st.integers(-3, 3).map(lambda n: n / 4), st.booleans())
    return st.lists(item, min_size=1, max_size=most).filter(lambda found: any(r for _, r in found))


def split(found: Items) -> tuple[list[float], list[bool]]:
    return [s for s, _ in found], [r for _, r in found]


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_scikit_learn_with_ties_and_negative_scores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    relevant = rng.random(40) < (0.3, 0.8)[seed % 2]
    relevant[:2] = True, False
    scores = rng.normal(size=40).round(seed % 3) - 1
    assert average_precision(scores, relevant) == pytest.approx(metrics.average_precision_score(relevant, scores))
    leads = scores[relevant][:, None].round(6) - scores[~relevant].round(6)
    assert roc_auc(scores, relevant) == pytest.approx((np.sign(leads) / 2 + 0.5).mean())
    gains = rng.integers(0, 4, 40)
    assert ndcg(scores, gains) == pytest.approx(metrics.ndcg_score([gains], [scores]))


def test_few_relevant_items_among_many_rank_as_among_few() -> None:
    """Places are counted where sorting would be slower."""
    rng = np.random.default_rng(0)
    for ties in (0, 1, 2):
        scores = rng.normal(size=800).round(ties)
        relevant = np.isin(np.arange(800), rng.choice(800, 3, replace=False))
        order = slow.losing_order(scores, relevant)
        assert average_precision(scores, relevant) == pytest.approx(metrics.average_precision_score(relevant, scores))
        assert trapezoid_average_precision(scores, relevant) == pytest.approx(slow.trapezoids(order))
        best = max(range(800), key=lambda k: (scores[k], not relevant[k]))
        assert precision_at_1(scores, relevant) == relevant[best]
        assert precision_at_1(np.where(np.arange(800) == relevant.argmax(), 9.0, scores), relevant) == 1
        for k in (1, 20, 400):
            assert recall_at_k(scores, relevant, k) == pytest.approx(sum(order[:k]) / 3)
            assert hit_at_k(scores, relevant, k) == any(order[:k])


# One query


@settings(deadline=None)
@given(items(), st.integers(1, 14))
def test_average_precision_at_k_equals_the_sum_over_places(found: Items, k: int) -> None:
    scores, relevant = split(found)
    total = sum(relevant)
    assert average_precision(scores, relevant, k) == pytest.approx(
        slow.average_precision_at(scores, relevant, k, min(k, total))
    )
    assert average_precision(scores, relevant, len(scores)) == pytest.approx(average_precision(scores, relevant))


@settings(deadline=None)
@given(items())
def test_trapezoids_equal_a_loop_over_places(found: Items) -> None:
    scores, relevant = split(found)
    wanted = slow.trapezoids(slow.losing_order(scores, relevant))
    assert trapezoid_average_precision(scores, relevant) == pytest.approx(wanted)


@settings(deadline=None)
@given(items(), st.integers(1, 14))
def test_places_among_the_first_k_with_ties_losing(found: Items, k: int) -> None:
    scores, relevant = split(found)
    order = slow.losing_order(scores, relevant)
    assert precision_at_1(scores, relevant) == order[0]
    assert hit_at_k(scores, relevant, k) == any(order[:k])
    assert recall_at_k(scores, relevant, k) == pytest.approx(sum(order[:k]) / sum(order))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 3)), min_size=1, max_size=6))
def test_ndcg_is_the_mean_over_the_orders_of_equal_scores(found: list[tuple[int, int]]) -> None:
    scores, gains = [s for s, _ in found], [g for _, g in found]
    if not any(gains):
        return

    def dcg(values: list[float]) -> float:
        return sum(v / np.log2(place + 2) for place, v in enumerate(values))

    wanted = slow.mean_of_orders(scores, gains, dcg) / dcg(sorted(gains, reverse=True))
    assert ndcg(scores, gains) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "measure",
    [average_precision, trapezoid_average_precision, precision_at_1, lambda s, r: recall_at_k(s, r, 1),
     lambda s, r: hit_at_k(s, r, 1)],
)  # fmt: skip
def test_every_measure_of_a_query_refuses_what_it_cannot_rank(measure: object) -> None:
    assert callable(measure)
    for scores, relevant, message in [
        ([], [], "scores must not be empty"),
        ([[1.0]], [[True]], "scores must have 1 dimension, got shape"),
        ([1.0, np.inf], [True, False], "scores must be finite"),
        ([1.0, None], [True, False], "scores must be finite"),
        ([1.0, 2.0], [False, False], "needs at least one relevant item"),
        ([1.0, 2.0], [-1, 1], "relevant must be booleans"),
        ([1.0, 2.0], [np.nan, 1], "relevant must be booleans"),
        ([1.0, 2.0], [True], "one shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            measure(scores, relevant)
    with pytest.raises(ValueError, match="both"):
        roc_auc([1.0, 2.0], [True, True])


def test_gains_that_make_no_sense_are_refused() -> None:
    for gains in ([0, 0], [-1, 1]):
        with pytest.raises(ValueError, match="gains >= 0 with one above 0"):
            ndcg([1.0, 2.0], gains)
