"""Open-set numbers against loops, scikit-learn and the curve's trapezoids."""

from __future__ import annotations

import math

import numpy as np
import pytest

from idmetric.evaluate.statistics import open_set
from idmetric.evaluate.statistics.open_set import Answers

metrics = pytest.importorskip("sklearn.metrics")


def drawn(seed: int, queries: int = 60) -> tuple[Answers, np.ndarray]:
    """Answers with ties, to queries of identities of unequal size."""
    rng = np.random.default_rng(seed)
    identity = rng.choice(12, queries, p=rng.dirichlet(np.ones(12)))
    known = identity % 3 > 0
    score = rng.normal(size=queries).round(1) + 0.5 * known
    right = known & (rng.random(queries) < 0.7)
    return Answers.of(score, right, known, identity), identity


def loop(answers: Answers, identity: np.ndarray, threshold: float) -> tuple[float, float]:
    """BAKS and BAUS, identity by identity."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    for name in set(identity.tolist()):
        own = [k for k in range(len(identity)) if identity[k] == name]
        named = [answers.score[k] >= threshold for k in own]
        if answers.known[own[0]]:
            shares[True].append(np.mean([n and answers.right[k] for n, k in zip(named, own, strict=True)]))
        else:
            shares[False].append(np.mean([not n for n in named]))
    return float(np.mean(shares[True])), float(np.mean(shares[False]))


@pytest.mark.parametrize("seed", range(4))
def test_numbers_are_means_over_identities(seed: int) -> None:
    answers, identity = drawn(seed)
    for threshold in (-0.5, 0.3, float(answers.score[0]), 9.0):
        baks, baus = loop(answers, identity, threshold)
        assert open_set.known_accuracy(answers, threshold) == pytest.approx(baks)
        assert open_set.unknown_accuracy(answers, threshold) == pytest.approx(baus)
        assert open_set.open_set_score(answers, threshold) == pytest.approx(math.sqrt(baks * baus))
    assert open_set.known_accuracy(answers) == pytest.approx(loop(answers, identity, -99)[0])


@pytest.mark.parametrize("seed", range(4))
def test_auc_is_that_of_scikit_learn_with_equal_identities(seed: int) -> None:
    answers, identity = drawn(seed)
    weight = [1 / (identity == name).sum() for name in identity]
    expected = metrics.roc_auc_score(answers.known, answers.score, sample_weight=weight)
    assert open_set.known_auc(answers) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_oscr_is_the_area_under_the_curve_of_loops(seed: int) -> None:
    answers, identity = drawn(seed)
    points = [loop(answers, identity, t) for t in [math.inf, *sorted(set(answers.score.tolist()), reverse=True)]]
    area = metrics.auc([1 - baus for _, baus in points], [baks for baks, _ in points])
    assert open_set.oscr_area(answers) == pytest.approx(area)
    assert open_set.oscr_area(answers) <= open_set.known_accuracy(answers)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_threshold_is_the_best_of_all(seed: int) -> None:
    answers, identity = drawn(seed)
    thresholds, baks, baus = open_set.curve(answers)
    for k, threshold in enumerate(thresholds):
        assert (baks[k], baus[k]) == pytest.approx(loop(answers, identity, threshold))
    found = open_set.open_set_score(answers, open_set.best_threshold(answers))
    assert found == pytest.approx(max(math.sqrt(math.prod(loop(answers, identity, t))) for t in thresholds))
    assert baus[-1] == 1


def test_an_identity_drawn_twice_counts_twice() -> None:
    answers = Answers.of([0.9, 0.1, 0.8], [True, True, False], [True, True, True], ["a", "a", "b"])
    assert open_set.known_accuracy(answers, 0.5) == pytest.approx((0.5 + 0) / 2)
    twice = answers.rows(np.array([0, 1, 0, 1, 2]))
    assert open_set.known_accuracy(twice, 0.5) == pytest.approx((0.5 + 0.5 + 0) / 3)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        Answers.of([np.nan], [True], [True], ["a"])
    one = Answers.of([0.5], [True], [True], ["a"])
    for measure in (open_set.known_auc, open_set.oscr_area, open_set.best_threshold):
        with pytest.raises(ValueError, match="queries of known identities, and of unknown ones"):
            measure(one)
