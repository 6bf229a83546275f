"""The nearest of several groups of references: against all draws, one by one."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from idmetric.evaluate.statistics.nearest_group import nearest_groups

GROUP = [0, 0, 0, 0, 1, 1, 2, 2, 2]


def by_all_draws(similarities: np.ndarray, right: list[int], size: int) -> np.ndarray:
    """The share of all combinations of `size` references of each group in which each group is the nearest."""
    shares = np.zeros((len(similarities), 3))
    for k, row in enumerate(similarities):
        members = [[r for r in range(9) if GROUP[r] == g and not np.isnan(row[r])] for g in range(3)]
        draws = list(product(*(combinations(of, size) for of in members)))
        for draw in draws:
            means = [row[list(chosen)].mean() for chosen in draw]
            tied = [g for g in range(3) if np.isclose(means[g], max(means))]
            for g in tied:
                share = 1 / len(tied)
                if right[k] in tied and len(tied) > 1:
                    share = 0.5 if g == right[k] else 0.5 / (len(tied) - 1)
                shares[k, g] += share / len(draws)
    return shares


def test_shares_are_those_of_all_draws() -> None:
    rng = np.random.default_rng(0)
    similarities, right = rng.normal(size=(30, 9)), rng.integers(0, 3, 30)
    for size in (1, 2):
        found = nearest_groups(similarities, GROUP, right, size, draws=4000)
        assert found == pytest.approx(by_all_draws(similarities, right.tolist(), size), abs=0.04)
        assert found.sum(1) == pytest.approx(1)


def test_a_reference_that_is_left_out_is_never_drawn() -> None:
    rng = np.random.default_rng(1)
    similarities = rng.normal(size=(9, 9))
    np.fill_diagonal(similarities, np.nan)  # references, each left out of its own group
    found = nearest_groups(similarities, GROUP, GROUP, 1, draws=4000)
    assert found == pytest.approx(by_all_draws(similarities, GROUP, 1), abs=0.04)
    similarities[0, :4] = np.nan  # a group without references does not compete
    assert nearest_groups(similarities, GROUP, [1] * 9, 1)[0, 0] == 0


def test_ties_count_half() -> None:
    similarities = [[0.5, 0.5, 0.1], [0.5, 0.5 + 1e-9, 0.1], [0.2, 0.5, 0.5], [0.3, 0.3, 0.3]]
    found = nearest_groups(similarities, [0, 1, 2], [0, 0, 0, 0], 1)
    assert found.tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0.25, 0.25]]


def test_a_group_with_few_references_does_not_win_more_often() -> None:
    """Means over all references would: those over one vary most."""
    rng = np.random.default_rng(2)
    group = np.repeat([0, 1, 2], [9, 9, 1])
    similarities = rng.normal(size=(4000, 19))
    shares = nearest_groups(similarities, group, [0] * 4000, 1).mean(0)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.02)
    means = np.stack([similarities[:, group == g].mean(1) for g in range(3)], 1)
    assert (means.argmax(1) == 2).mean() > 0.4
