"""The test behind every verdict: against SciPy, and how often it finds a winner where there is none."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from idmetric.evaluate.statistics.bootstrap import student
from idmetric.evaluate.statistics.paired import LEVEL, compare, holm, sign_flip, smallest_p, subjects_needed


@pytest.mark.parametrize("count", [2, 5, 11])
def test_the_sign_flip_test_is_scipys_exact_permutation_test(count: int) -> None:
    rng = np.random.default_rng(count)
    means = rng.normal(0.4, 1, count).round(3)
    expected = stats.permutation_test((means,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(means, np.arange(count)) == pytest.approx(expected.pvalue)
    spread = np.array([-0.1, 0.1])  # two images of each subject: it is their mean that is flipped
    items, subject = (means[:, None] + spread).ravel(), np.repeat([f"s{k}" for k in range(count)], 2)
    assert sign_flip(items, subject) == pytest.approx(expected.pvalue)


def test_many_subjects_are_flipped_at_random_and_p_is_near_that_of_all_flips() -> None:
    values = np.random.default_rng(1).normal(0.5, 1, 17)
    sums = np.array(list(product([-1, 1], repeat=17))) @ values
    exact = (np.abs(sums) >= abs(values.sum()) - 1e-9).mean()
    assert 0.001 < exact < 0.2
    assert sign_flip(values, np.arange(17)) == pytest.approx(exact, abs=4 * np.sqrt(exact / 10_000))
    assert sign_flip(values, np.arange(17)) == sign_flip(values, np.arange(17))
    assert sign_flip(np.full(50, 0.1), np.arange(50)) == pytest.approx(smallest_p(50))


def test_more_images_of_few_subjects_do_not_make_a_difference_significant() -> None:
    assert sign_flip(np.ones(300), np.repeat(["a", "b", "c"], 100)) == pytest.approx(2 / 2**3)
    assert sign_flip([0.1, -0.1], ["a", "a"]) == 1
    assert sign_flip([1e-8, 2e-8, 1e-8], ["a", "b", "c"]) == 1  # rounding of float32


@pytest.mark.parametrize("tests", [1, 3, 6, 15, 45])
def test_the_number_of_subjects_that_would_do_is_the_smallest(tests: int) -> None:
    count = subjects_needed(tests)
    assert smallest_p(count, tests) <= LEVEL < smallest_p(count - 1, tests)
    assert sign_flip(np.ones(count), np.arange(count)) == pytest.approx(smallest_p(count))


def test_methods_are_compared_on_the_places_that_both_have() -> None:
    scores = {
        "a": {("cat", "x"): 0.9, ("cat", "y"): 0.5, ("dog", "x"): 0.3},
        "b": {("cat", "x"): 0.5, ("dog", "x"): 0.2, ("mug", "x"): 0.9},
        "c": {("sofa", "x"): 0.1},
    }
    [found] = compare(scores)
    assert (found.a, found.b, found.subjects, found.pairs) == ("a", "b", 2, 2)
    assert found.difference == pytest.approx(0.25)
    half = 12.706 * 0.15  # Student's t with one degree of freedom
    assert (found.low, found.high) == pytest.approx((0.25 - half, 0.25 + half), abs=1e-3)
    assert (found.p, found.p_holm) == (0.5, 0.5)
    assert [(c.a, c.b) for c in compare(scores, against="a")] == [("b", "a")]


def test_the_interval_of_few_identities_is_students() -> None:
    values = np.random.default_rng(3).normal(size=6)
    found = student(lambda rows: values[rows].mean(), np.arange(6))
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def false_winners(subjects: int, methods: int, trials: int) -> tuple[float, float, float]:
    """How often equal methods get a winner, an interval of a difference without 0, or a late training step.

    The best is the method that is clearly above all others; a step is kept over the first one if that one is clearly
    below the step of the highest identity.
    """
    rng = np.random.default_rng([subjects, methods])
    winners = excluded = late = 0
    for _ in range(trials):
        subject = rng.normal(0, 0.2, subjects)  # subjects differ, methods do not
        scores = {
            f"m{m}": {(f"s{s}", str(k)): subject[s] + 0.1 * rng.standard_gamma(1.0) for s in range(subjects)
                      for k in range(2)}
            for m in range(methods)
        }  # fmt: skip
        means = {name: np.mean(list(places.values())) for name, places in scores.items()}
        best = max(means, key=lambda name: means[name])
        comparisons = compare(scores)
        winners += all(c.is_clear for c in comparisons if best in (c.a, c.b))
        first = comparisons[0]
        assert first.low is not None
        assert first.high is not None
        excluded += not first.low <= 0 <= first.high
        below = [c.a for c in compare(scores, against=best) if c.is_clear]
        late += "m0" in below
    return winners / trials, excluded / trials, late / trials


@pytest.mark.parametrize("methods", [2, 4])
@pytest.mark.parametrize("subjects", [3, 5, 8, 20])
def test_equal_methods_get_a_winner_in_6_percent_of_cases_at_most(subjects: int, methods: int) -> None:
    """Tables, pages, training steps and sensitivities declare winners by these numbers alone."""
    rates = false_winners(subjects, methods, trials=300 if subjects * methods == 80 else 1000)  # seconds each
    assert max(rates) <= 0.06, rates


def test_holm_is_the_step_down_procedure() -> None:
    rng = np.random.default_rng(1)
    p = rng.random(9) ** 3
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for k, i in enumerate(np.argsort(p)):
            if p[i] > level / (len(p) - k):
                break
            rejected.add(i)
        assert set(np.flatnonzero(holm(p) <= level)) == rejected
