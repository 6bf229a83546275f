from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from idmetric.evaluate.statistics.bootstrap import FEW, Interval, bootstrap, draw, student
from idmetric.evaluate.statistics.ranking import roc_auc
from tests.reference import statistics_loop as slow


def test_the_interval_of_a_mean_is_scipys() -> None:
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

    bootstrap(statistic, groups, samples=50)
    assert drawn[0] == dict.fromkeys(range(13), 1)  # the data itself
    seen = set()
    for k, times in enumerate(drawn[1:]):
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

    bootstrap(statistic, pairs, samples=30, seed=9)
    for k, rows in enumerate(samples[1:]):
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
    scores, same = np.arange(12.0), np.arange(12) % 3 == 0
    found = bootstrap(lambda rows: roc_auc(scores[rows], same[rows]), np.arange(12), samples=1000)
    assert found.low < found.value < found.high
    rare = np.arange(12) == 0
    with pytest.raises(ValueError, match=r"is defined in \d+ of 200 bootstrap samples of 12 identities: too few"):
        bootstrap(lambda rows: roc_auc(scores[rows], rare[rows]), np.arange(12), samples=200)
    with pytest.raises(ValueError, match="undefined without one of the 2 identities: too few"):  # no pair is left
        bootstrap(lambda rows: 1.0, [["a", "b"]], samples=200)


@pytest.mark.parametrize("count", [2, 5, FEW - 1])
def test_the_interval_of_few_identities_is_students_and_as_wide_as_it_must_be(count: int) -> None:
    """Percentiles of three identities' samples miss the mean in 27 % of cases."""
    values = np.random.default_rng(count).normal(size=count)
    found = bootstrap(lambda rows: values[rows].mean(), np.arange(count))
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


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
