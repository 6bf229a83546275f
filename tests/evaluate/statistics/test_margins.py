from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmetric.evaluate.statistics.margins import (
    directed_margins,
    margin_rates,
    oracle_agreement,
)
from tests.reference import statistics_loop as slow


def samples(seed: int, views: int, count: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    """Similarities so coarse that ties happen, with missing views and missing distractors.

    Multiples of an eighth, whose sums are exact in any order: a mean margin of 0 is 0 for the slow loop too.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        positives = np.round(rng.uniform(-8, 8, (views, views))) / 8
        distractors = np.round(rng.uniform(-8, 8, views)) / 8
        missing = rng.random(views) < 0.2
        positives[missing] = positives[:, missing] = np.nan
        distractors[missing | (rng.random(views) < 0.2)] = np.nan
        found.append((positives, distractors))
    return found


# SSR and PA


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.booleans())
def test_rates_agree_with_a_loop_over_pairs(seed: int, views: int, count_mean: bool) -> None:
    data = samples(seed, views)
    margins = [directed_margins(*sample) for sample in data]
    counted = [slow.margins(*sample) for sample in data]
    if not any(counted):
        with pytest.raises(ValueError, match="no sample has a valid margin"):
            margin_rates(margins)
        return
    assert [sorted(m[~np.isnan(m)]) for m in margins] == [sorted(m) for m in counted]
    rates = margin_rates(margins, count_mean=count_mean)
    found = rates.ssr, rates.pa, len(rates.samples), rates.trials.sum()
    assert found == pytest.approx(slow.success(counted, count_mean))


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_stacked_samples_and_those_of_different_size_give_the_same(seed: int) -> None:
    data = [*samples(seed, 3), (np.eye(3), np.zeros(3))]
    positives, distractors = (np.stack(x) for x in zip(*data, strict=True))
    together = directed_margins(positives, distractors)
    one_by_one = [directed_margins(*sample) for sample in data]
    assert np.array_equal(together, np.stack(one_by_one), equal_nan=True)
    valid = [m[~np.isnan(m)] for m in one_by_one]
    for rates in (margin_rates(one_by_one), margin_rates(valid)):
        assert (rates.ssr, rates.pa) == (margin_rates(together).ssr, margin_rates(together).pa)


def test_a_pair_has_one_similarity_that_of_the_earlier_view_with_the_later() -> None:
    positives = np.array([[np.nan, 0.6], [-9.0, np.nan]])
    assert directed_margins(positives, np.array([0.5, 0.7])) == pytest.approx([0.1, -0.1])


def test_samples_without_a_margin_are_refused() -> None:
    for nothing in ([], [np.array([])], [np.full(2, np.nan)], np.zeros((0, 2))):
        with pytest.raises(ValueError, match="no sample has a valid margin"):
            margin_rates(nothing)


# M-O


@pytest.mark.parametrize("seed", range(10))
def test_oracle_agreement_is_the_mean_of_four_correlations_and_of_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    oracle = rng.uniform(0, 1, (30, 2)).round(1)
    similarity = rng.normal(size=(30, 2, 2)) + 2 * oracle[:, None]
    if seed % 2:
        oracle[rng.random((30, 2)) < 0.2] = np.nan
        similarity[rng.random((30, 2, 2)) < 0.2] = np.nan
    found = oracle_agreement(similarity, oracle)
    assert (found.whole, found.pair) == pytest.approx(slow.oracle(similarity, oracle))
    there = ~np.isnan(similarity) & ~np.isnan(oracle)[:, None]
    assert found.pairs == (there.sum(), there[:, 0, 0].sum() + there[:, 1, 1].sum())


def test_an_edit_is_compared_with_its_own_oracle_score() -> None:
    oracle = np.array([[0.1, 0.9], [0.5, 0.4], [0.8, 0.6]])
    similarity = np.stack([oracle, oracle], 1)  # [s, i, j] = oracle of edit j
    found = oracle_agreement(similarity, oracle)
    assert (found.whole, found.pair) == pytest.approx((0.999, 0.999))  # perfect agreement is finite
    assert oracle_agreement(similarity[..., ::-1], oracle).pair < 0.5
    assert oracle_agreement(np.ones((3, 2, 2)), oracle).whole == 0  # what does not vary correlates with nothing


def test_without_another_views_edits_there_is_only_the_pair() -> None:
    oracle = np.array([[0.1, np.nan], [0.5, np.nan], [0.2, np.nan]])
    similarity = np.full((3, 2, 2), np.nan)
    similarity[:, 0, 0] = 0.3, 0.6, 0.1
    found = oracle_agreement(similarity, oracle)
    assert found.whole is None
    assert found.pairs == (3, 3)
    similarity[:, 0, 0] = 0.3, np.nan, np.nan
    with pytest.raises(ValueError, match="two samples with a view, its part-edit"):
        oracle_agreement(similarity, oracle)
