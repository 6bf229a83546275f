from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, stats
from sklearn.linear_model import LinearRegression

from idmetric.evaluate.statistics.sensitivity import fit, fits, trend

STRENGTHS, LEVELS = np.array([0.0, 0.4, 0.7, 1.0]), np.array([0.0, 0.5, 1.0])


def grid(seed: int, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    identity, factor = (x.ravel() for x in np.meshgrid(STRENGTHS, LEVELS))
    similarity = 0.9 - 0.5 * identity - 0.2 * factor + noise * rng.normal(size=len(identity))
    return similarity, identity, factor


# One instance


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 30))
def test_the_regression_equals_scipys_and_scikit_learns(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    identity, factor, similarity = rng.normal(size=(3, count)) * [[1], [30], [0.1]] + [[0], [5], [0.7]]
    found = fit(similarity, identity, factor)
    design = np.stack([np.ones(count), factor, identity], 1)
    beta = linalg.lstsq(design, similarity)[0]
    assert (found.intercept, -found.factor, -found.identity) == pytest.approx(beta, rel=1e-6, abs=1e-9)
    x = np.stack([identity, factor], 1)
    assert found.r2 == pytest.approx(LinearRegression().fit(x, similarity).score(x, similarity), abs=1e-8)


def test_a_plane_is_found_exactly_and_sensitivity_is_similarity_lost_per_unit() -> None:
    found = fit(*grid(0, noise=0))
    assert (found.identity, found.factor, found.intercept, found.r2) == pytest.approx((0.5, 0.2, 0.9, 1.0))
    similarity, identity, factor = grid(0, noise=0)
    percent = fit(similarity, 100 * identity, factor)
    assert (percent.identity, percent.factor) == pytest.approx((0.005, 0.2))
    three = fit([0.9, 0.4, 0.7], [0, 1, 0], [0, 0, 1])  # as many points as coefficients
    assert (three.identity, three.factor, three.intercept, three.r2) == pytest.approx((0.5, 0.2, 0.9, 1.0))


def test_a_model_that_answers_always_the_same_has_no_sensitivity_and_explains_nothing() -> None:
    _, identity, factor = grid(0)
    found = fit(np.full(len(identity), 0.3), identity, factor)
    assert (found.identity, found.factor, found.intercept, found.r2) == pytest.approx((0, 0, 0.3, 0))
    rounding = np.where(identity > 0.5, np.nextafter(0.3, 1), 0.3)
    assert fit(rounding, identity, factor).r2 == 0


def test_degenerate_grids_are_named() -> None:
    similarity, identity, factor = grid(0)
    for changes in ((np.full_like(identity, 0.4), factor), (identity, np.zeros_like(factor)), (identity, 3 * identity)):
        with pytest.raises(ValueError, match="must both vary, and not together: cross them in a grid"):
            fit(similarity, *changes)
    with pytest.raises(ValueError, match="must both vary, and not together"):  # two points are on one line
        fit([0.1, 0.2], [0, 1], [1, 0])
    with pytest.raises(ValueError, match="factor_change must be finite, but 1 are not, the first nan at 2"):
        fit(similarity, identity, np.where(np.arange(12) == 2, np.nan, factor))
    with pytest.raises(ValueError, match="must be of one shape"):
        fit(similarity[1:], identity, factor)


# Many


def instances(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    grids = [grid(seed + k) for k in range(count)]
    similarity, identity, factor = (np.concatenate(x) for x in zip(*grids, strict=True))
    return similarity, identity, factor, np.repeat([f"thing {k}" for k in range(count)], len(STRENGTHS) * len(LEVELS))


def test_each_instance_has_a_fit_of_its_own_and_r2_is_kept() -> None:
    similarity, identity, factor, instance = instances(9)
    order = np.random.default_rng(1).permutation(len(instance))
    found = fits(similarity[order], identity[order], factor[order], instance[order])
    assert list(found) == list(dict.fromkeys(instance[order].tolist()))
    for k in range(9):
        one, alone = found[f"thing {k}"], fit(*grid(k))
        assert (one.identity, one.factor, one.r2) == pytest.approx((alone.identity, alone.factor, alone.r2))


def test_the_instance_whose_grid_is_degenerate_is_named() -> None:
    similarity, identity, factor, instance = instances(3)
    constant = np.where(instance == "thing 1", 0.5, factor)
    with pytest.raises(ValueError, match="instance 'thing 1': identity_change and factor_change must"):
        fits(similarity, identity, constant, instance)
    keep = (instance != "thing 2") | (np.arange(len(instance)) % 12 < 2)
    with pytest.raises(ValueError, match="instance 'thing 2': identity_change and factor_change must"):
        fits(similarity[keep], identity[keep], factor[keep], instance[keep])
    assert list(fits(*grid(0), ["one"] * 12)) == ["one"]


# Curves


def test_the_trend_is_the_mean_over_instances_at_each_level() -> None:
    similarity, identity, _, instance = instances(5)
    twice = np.r_[np.arange(len(instance)), 0]  # one point of the first instance, again
    found = trend(similarity[twice], identity[twice], instance[twice])
    assert list(found) == STRENGTHS.tolist()
    for level, interval in found.items():
        means = []
        for k in range(5):
            rows = (instance[twice] == f"thing {k}") & (identity[twice] == level)
            means.append(similarity[twice][rows].mean())
        assert interval.value == pytest.approx(np.mean(means))
        expected = stats.ttest_1samp(means, 0).confidence_interval(0.95)
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_a_trend_leaves_levels_of_one_instance_out() -> None:
    similarity, identity, _, instance = instances(2)
    alone = (instance == "thing 0") | (identity < 1)
    assert list(trend(similarity[alone], identity[alone], instance[alone])) == STRENGTHS[:-1].tolist()
    with pytest.raises(ValueError, match="similarity and change must be of one shape"):
        trend(similarity, identity[1:], instance)
