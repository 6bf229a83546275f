from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from idmetric.evaluate.statistics.bootstrap import Interval, bootstrap, draw, in_samples, percentiles, student
from idmetric.evaluate.statistics.ranking import roc_auc
from tests.reference import statistics_loop as slow


def test_the_interval_of_a_mean_is_scipys() -> None:
    pytest.importorskip("scipy", minversion="1.15", reason="SciPy 1.15 names the argument rng")
    values = np.random.default_rng(0).exponential(size=60)
    found = bootstrap(lambda rows: values[rows].mean(), np.arange(60), samples=4000, seed=1)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=4000, rng=2)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.05 * width)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.05 * width)


def test_all_items_of_an_identity_are_drawn_together() -> None:
    groups = [*"abaca", *"bdefghij"]
    drawn: list[Counter[int]] = []

    def statistic(rows: np.ndarray) -> float:
        drawn.append(Counter(rows.tolist()))
        return float(len(rows))

    in_samples(statistic, groups, samples=50)
    seen = set()
    for k, times in enumerate(drawn):
        a, b, c, *others = draw(10, 0, k)
        assert a + b + c + sum(others) == 10
        assert [times[row] for row in range(13)] == [a, b, a, c, a, b, *others]
        seen.add((a, b, c))
    assert len(seen) > 5


def test_pairs_are_drawn_by_both_of_their_identities() -> None:
    rng = np.random.default_rng(4)
    pairs = rng.choice(list("abcdefghij"), (30, 2))
    samples: list[list[int]] = []

    def statistic(rows: np.ndarray) -> float:
        samples.append(rows.tolist())
        return 0.0

    in_samples(statistic, pairs, samples=30, seed=9)
    for k, rows in enumerate(samples):
        names = [name for name, times in zip("abcdefghij", draw(10, 9, k), strict=True) for _ in range(times)]
        assert rows == slow.cluster_sample(pairs.tolist(), names)


def test_a_seed_gives_the_same_interval_and_more_samples_go_on_where_fewer_ended() -> None:
    values = np.random.default_rng(6).normal(size=30)

    def interval(**options: int) -> tuple[Interval, list[float]]:
        means: list[float] = []

        def statistic(rows: np.ndarray) -> float:
            means.append(float(values[rows].mean()))
            return means[-1]

        return bootstrap(statistic, np.arange(30), **options), means

    first, means = interval(samples=40, seed=3)
    assert interval(samples=40, seed=3) == (first, means)
    assert interval(samples=80, seed=3)[1][:41] == means
    assert interval(samples=40, seed=4)[1][1:] != means[1:]
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    interval(samples=5)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_samples_without_a_defined_value_are_left_out_unless_they_are_many() -> None:
    scores, same = np.arange(24.0), np.arange(24) % 6 == 0
    found = bootstrap(lambda rows: roc_auc(scores[rows], same[rows]), np.arange(24), samples=1000)
    assert found.low < found.value < found.high
    rare = np.arange(24) == 0
    with pytest.raises(ValueError, match=r"is defined in \d+ of 200 bootstrap samples of 24 identities: too few"):
        bootstrap(lambda rows: roc_auc(scores[rows], rare[rows]), np.arange(24), samples=200)
    with pytest.raises(ValueError, match="undefined without one of the 2 identities: too few"):  # no pair is left
        bootstrap(lambda rows: 1.0, [["a", "b"]], samples=200)


# The choice of the interval


@pytest.mark.parametrize("count", [2, 5, 10, 20])
def test_the_interval_of_up_to_20_identities_is_students(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    found = bootstrap(lambda rows: values[rows].mean(), np.arange(count))
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_the_interval_of_21_identities_is_of_percentiles() -> None:
    values = np.random.default_rng(0).normal(size=21)

    def mean(rows: np.ndarray) -> float:
        return float(values[rows].mean())

    found = bootstrap(mean, np.arange(21), samples=500, seed=2)
    means = in_samples(mean, np.arange(21), samples=500, seed=2)
    assert (found.low, found.high) == pytest.approx(np.quantile(means, [0.025, 0.975]))


TRIALS = 2000


@pytest.mark.parametrize("count", [3, 10, 20])
def test_the_interval_of_few_identities_covers_the_mean_in_95_percent_of_trials(count: int) -> None:
    data = np.random.default_rng(5).normal(size=(TRIALS, count))
    hits = 0
    for values in data:
        found = bootstrap(lambda rows, values=values: values[rows].mean(), np.arange(count), samples=200)
        hits += found.low <= 0 <= found.high
    assert hits / TRIALS == pytest.approx(0.95, abs=0.011)  # 2.2 standard errors


@pytest.mark.parametrize(("count", "coverage"), [(3, 0.73), (10, 0.90), (20, 0.93)])
def test_percentiles_would_cover_it_less_often(count: int, coverage: float) -> None:
    rng = np.random.default_rng(6)
    hits = 0
    for values in rng.normal(size=(TRIALS, count)):
        means = values[rng.integers(count, size=(500, count))].mean(1)
        low, high = percentiles(means, 500) or (0, 0)
        hits += low <= 0 <= high
    assert hits / TRIALS == pytest.approx(coverage, abs=0.02)


# Student's


def test_the_jackknife_of_a_ratio_and_of_pairs_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(8)
    parts, wholes, identity = rng.random(12), 1 + rng.random(12), np.repeat([*"abcd"], 3)
    found = student(lambda rows: parts[rows].sum() / wholes[rows].sum(), identity)
    without = [parts[identity != name].sum() / wholes[identity != name].sum() for name in "abcd"]
    half = stats.t.ppf(0.975, 3) * np.sqrt(3 / 4 * np.sum((without - np.mean(without)) ** 2))
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))

    pairs = np.array([[a, b] for a in "abcd" for b in "abcd"])
    scores = rng.random(16)
    seen: list[int] = []
    student(lambda rows: float(seen.append(len(rows)) or scores[rows].mean()), pairs)
    assert seen == [16, 9, 9, 9, 9]  # a pair counts without either member only


def test_what_has_no_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="two identities at least, got 1"):
        bootstrap(lambda rows: 0.0, ["a", "a"])
    with pytest.raises(ValueError, match="both relevant and irrelevant"):
        bootstrap(lambda rows: roc_auc([1.0, 2.0], [True, True]), ["a", "b"])
