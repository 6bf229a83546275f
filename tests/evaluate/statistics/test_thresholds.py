from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from idmetric.evaluate.statistics.calibration.thresholds import (
    OperatingPoint,
    accepted,
    threshold_at_false_accept,
)
from tests.reference import statistics_loop as slow


def pairs(seed: int, digits: int, count: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    same = rng.random(count) < 0.4
    same[:2] = True, False
    return ((rng.normal(size=count) + same).round(digits) - 1).round(6), same  # equal scores without noise


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 2))
def test_rates_at_a_threshold_equal_counts(seed: int, digits: int) -> None:
    scores, same = pairs(seed, digits, 20)
    for threshold in (*scores[:4], scores.min() - 1, scores.max() + 1):
        shares = accepted(scores[same], threshold), accepted(scores[~same], threshold)
        assert shares == pytest.approx(slow.rates(scores, same, threshold)[1:])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.29, 0.5, 1.0])
def test_the_threshold_at_a_false_accept_rate_is_the_lowest_of_scikit_learns_curve(seed: int, rate: float) -> None:
    scores, same = pairs(seed, seed % 3)
    false, true, thresholds = metrics.roc_curve(same, scores, drop_intermediate=False)
    allowed = false <= rate
    found = threshold_at_false_accept(scores, same, rate)
    assert found.true_accept == pytest.approx(true[allowed].max())
    assert found.false_accept == pytest.approx(false[allowed].max())
    if np.isfinite(thresholds[allowed]).any():
        assert found.threshold == thresholds[allowed].min()
    else:
        assert found.true_accept == 0


def test_a_rate_that_rounding_would_miss_is_reached() -> None:
    """0.29 * 100 is a little less than 29 in floating point."""
    scores = np.r_[np.arange(100), 200.0]
    assert threshold_at_false_accept(scores, scores == 200, 0.29).false_accept == 0.29


def test_scores_that_agree_in_six_decimals_are_decided_alike() -> None:
    scores = np.array([0.7, 0.7 - 1e-7, 0.1])
    same = [False, True, True]
    for these in (scores, scores.astype(np.float32)):
        found = threshold_at_false_accept(these, same, 0)
        assert found == OperatingPoint(pytest.approx(0.700001, abs=1e-12), 0.0, 0.0)
        assert not (these >= found.threshold).any()
        assert accepted(these, 0.7) == pytest.approx(2 / 3)


def test_pairs_of_one_kind_and_broken_numbers_are_errors() -> None:
    def at(scores: object, same: object, rate: float = 0.1) -> object:
        return threshold_at_false_accept(scores, same, rate)  # type: ignore[arg-type]

    for same in ([True, True], [False, False]):
        with pytest.raises(ValueError, match="pairs of one identity and pairs of two"):
            at([0.1, 0.2], same)
    with pytest.raises(ValueError, match="scores must be finite"):
        at([0.1, np.nan], [True, False])
    with pytest.raises(ValueError, match="same must be booleans"):
        at([0.1, 0.2], [1, 2])
    for rate in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match=r"rate must be in \[0, 1\]"):
            at([0.1, 0.2], [True, False], rate)
