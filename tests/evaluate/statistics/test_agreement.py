from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from idmetric.evaluate.statistics.agreement import (
    fisher_mean,
    kendall,
    pearson,
    rating_alpha,
    spearman,
)


def sample(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers with many ties (integers), few or none."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rng.integers(3, 60)) * 3
    y = rng.uniform(-1, 1) * x + rng.normal(size=len(x))
    digits = seed % 3
    x, y = x.round(digits), y.round(2 - digits)
    x[:2], y[:2] = (-9, 9), (5, -9)
    return x, y


@pytest.mark.parametrize("seed", range(12))
def test_correlations_equal_scipys_with_ties(seed: int) -> None:
    x, y = sample(seed)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)


def test_a_column_that_does_not_vary_is_an_error_or_the_value_asked_for() -> None:
    for measure in (pearson, spearman, kendall):
        with pytest.raises(ValueError, match="x does not vary over its 3 items"):
            measure([2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
        with pytest.raises(ValueError, match="y does not vary over its 3 items"):
            measure([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    assert pearson([1.0, 2.0, 3.0], [0.3, 0.3, 0.3], constant=0.0) == 0
    rounding = np.array([0.1 + 0.2, 0.3, 0.3])
    assert pearson(rounding, [1.0, 2.0, 3.0], constant=0.0) == 0


def test_broken_input_is_named() -> None:
    for measure in (pearson, spearman, kendall):
        with pytest.raises(ValueError, match="y must be finite, but 1 are not, the first nan at 1"):
            measure([1.0, 2.0], [1.0, np.nan])
        with pytest.raises(ValueError, match="x and y must be of one shape"):
            measure([1.0, 2.0], [1.0])
        with pytest.raises(ValueError, match="x must not be empty"):
            measure([], [])
        with pytest.raises(ValueError, match="two items at least, got 1"):
            measure([1.0], [1.0])


# Fisher's mean


def test_one_correlation_has_no_error_and_perfect_ones_are_finite() -> None:
    assert fisher_mean([0.5]) == (pytest.approx(0.5), None)
    assert fisher_mean([1.0, 1.0])[0] == pytest.approx(0.999)
    assert fisher_mean([1.0, 1.0], limit=0.5)[0] == pytest.approx(0.5)


def test_what_is_no_correlation_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        fisher_mean([])
    with pytest.raises(ValueError, match="must be finite"):
        fisher_mean([np.nan])


# Krippendorff's alpha


def ratings_of(*observers: str) -> np.ndarray:
    """Ratings (items, observers) of observers' values, one digit for each item; * is missing."""
    rows = [[np.nan if value == "*" else float(value) for value in observer] for observer in observers]
    return np.array(rows).T


def slow_alpha(table: np.ndarray) -> float:
    """Interval level by Krippendorff's coincidences: o_ck over pairs within items, e_ck = n_c n_k over all."""
    items = [[value for value in item if not np.isnan(value)] for item in table]
    items = [item for item in items if len(item) > 1]
    observed, pooled = 0.0, [value for item in items for value in item]
    for item in items:
        for i, a in enumerate(item):
            for j, b in enumerate(item):
                if i != j:
                    observed += (a - b) ** 2 / (len(item) - 1)
    expected = 0.0
    for i, a in enumerate(pooled):
        for j, b in enumerate(pooled):
            if i != j:
                expected += (a - b) ** 2
    return 1 - (len(pooled) - 1) * observed / expected


def test_alpha_of_ratings_is_that_of_the_published_example() -> None:
    """Krippendorff (2011), section E: the data of example C at interval level; nominal level gives 0.743."""
    observers = ("123321412***", "1233224125*3", "*3332342251*", "1233244125" + "1*")
    assert rating_alpha(ratings_of(*observers)) == pytest.approx(0.849, abs=5e-4)


@pytest.mark.parametrize("seed", range(8))
def test_alpha_of_ratings_is_that_of_a_loop_over_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 5, (rng.integers(3, 20), rng.integers(2, 6))).astype(float)
    table[rng.random(table.shape) < 0.2] = np.nan
    table[0, :2] = 0, 3
    assert rating_alpha(table) == pytest.approx(slow_alpha(table))
    assert rating_alpha(100 - 7 * table) == pytest.approx(rating_alpha(table))  # any interval scale


def test_far_ratings_disagree_more_than_near_ones() -> None:
    near, far = [[0, 1], [4, 3], [2, 2]], [[0, 4], [4, 3], [2, 2]]
    assert rating_alpha(near) > rating_alpha(far)
    assert rating_alpha([[0, 0], [4, 4], [1, 1]]) == 1


@pytest.mark.parametrize(
    ("ratings", "message"),
    [
        ([[1, np.nan], [np.nan, 3]], "an item with two ratings"),
        ([[2, 2], [2, 2]], "all ratings are equal"),
        ([[1, np.inf]], "finite, or NaN"),
        ([1, 2], "2 dimensions, items and raters"),
    ],
)
def test_undefined_ratings_are_refused(ratings: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rating_alpha(ratings)
