"""Paired tests against enumeration and a loop."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from idmetric.evaluate.paired import holm, signed_rank


def enumerated(d: np.ndarray) -> float:
    """Two-sided p over all signs of the ranks."""
    ranks = np.argsort(np.argsort(np.abs(d))) + 1
    seen = ranks[d > 0].sum()
    sums = np.array([ranks[np.array(signs)].sum() for signs in product([False, True], repeat=len(d))])
    return min(1.0, 2 * min((sums <= seen).mean(), (sums >= seen).mean()))


def test_signed_rank_of_identities_is_that_of_an_enumeration() -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(0.4, 1, 8)
    spread = np.array([-0.1, 0.1])
    items, identity = (means[:, None] + spread).ravel(), np.repeat([f"s{k}" for k in range(8)], 2)
    assert signed_rank(items, identity) == pytest.approx(enumerated(means))
    assert signed_rank(np.arange(1, 7), np.arange(6)) == pytest.approx(2 / 2**6)
    assert signed_rank([0.1, -0.1], ["a", "a"]) == 1


def test_more_images_of_few_subjects_do_not_make_a_difference_significant() -> None:
    assert signed_rank(np.ones(300), np.repeat(["a", "b", "c"], 100)) == pytest.approx(2 / 2**3)


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
