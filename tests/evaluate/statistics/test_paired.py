"""The test behind every verdict: against SciPy, and how often it finds a winner where there is none."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from idmetric.evaluate.statistics.bootstrap import student
from idmetric.evaluate.statistics.paired import (
    LEVEL,
    compare,
    family,
    holm,
    sign_flip,
    smallest_p,
    subjects_needed,
    too_few,
)


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
    assert (found.low, found.high) == (None, None)  # of two subjects
    assert (found.p, found.p_holm) == (0.5, 0.5)
    assert [(c.a, c.b) for c in compare(scores, against="a")] == [("b", "a")]


def test_intervals_of_differences_need_three_subjects_and_stay_in_their_range() -> None:
    three = {"a": {(s, "x"): v for s, v in (("cat", 0.9), ("dog", -0.9), ("mug", 0.5))}, "b": {}}
    three["b"] = {place: -value for place, value in three["a"].items()}
    [found] = compare(three, limits=(-2, 2))
    half = 4.3027 * np.std([1.8, -1.8, 1.0], ddof=1) / 3**0.5  # Student's t with two degrees of freedom
    assert 1 / 3 + half > 2
    assert (found.low, found.high) == (-2, 2)
    [free] = compare(three)
    assert (free.low, free.high) == pytest.approx((1 / 3 - half, 1 / 3 + half), abs=1e-3)


def same_sign(methods: int, subjects: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Methods whose differences have one sign for all subjects: no smaller p is possible."""
    return {f"m{m}": {(f"s{s}", "x"): m * (1.0 + s) for s in range(subjects)} for m in range(methods)}


@pytest.mark.parametrize(
    ("methods", "subjects", "remedy"),
    [
        (2, 5, "6 subjects would do"),
        (3, 5, "7 subjects would do"),
        (3, 6, "7 subjects would do"),  # two comparisons with 6 subjects: 2 * 2 / 2^6 = .0625
        (4, 7, "8 subjects or 3 comparisons (--against METHOD) would do"),
        (6, 8, "10 subjects or 5 comparisons (--against METHOD) would do"),
        (6, 7, "10 subjects would do"),  # 5 * 2 / 2^7 = .078
    ],
)
def test_a_hint_is_given_only_if_following_it_can_show_a_difference(methods: int, subjects: int, remedy: str) -> None:
    comparisons = compare(same_sign(methods, subjects))
    assert min(test.p_holm for test in comparisons) > LEVEL
    assert too_few(comparisons).partition("; ")[2] == remedy
    more = int(remedy.split()[0])
    assert min(test.p_holm for test in compare(same_sign(methods, more))) <= LEVEL
    against = min(test.p_holm for test in compare(same_sign(methods, subjects), against="m0"))
    assert (against <= LEVEL) == ("--against" in remedy)


def test_no_hint_where_a_difference_can_be_clear_or_nothing_would_help() -> None:
    assert too_few(compare(same_sign(2, 6))) == ""
    few = too_few(compare(same_sign(2, 1)))
    assert few.startswith("no winner can be shown: the smallest p of 1 subject in 1 comparison is 1.000")


def test_the_family_of_tests_in_words() -> None:
    assert family(compare(same_sign(2, 3))) == "1 comparison, of m0 with m1"
    assert family(compare(same_sign(4, 3))) == "6 comparisons, each two of m0, m1, m2, m3"
    assert family(compare(same_sign(4, 3), against="m2")) == "3 comparisons, of m0, m1, m3 with m2"
    chain = {"a": {("s", "x"): 1.0}, "b": {("s", "x"): 1.0, ("s", "y"): 1.0}, "c": {("s", "y"): 1.0}}
    assert family(compare(chain)) == "2 comparisons: a - b, b - c"


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
