"""The nearest of several groups of references: against all draws, one by one."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from idmetric.evaluate.statistics.nearest_group import confused_shares

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
        found = confused_shares(similarities, GROUP, right, size, draws=4000)
        shares = by_all_draws(similarities, right.tolist(), size)
        assert found == pytest.approx(1 - shares[np.arange(30), right], abs=0.04)


def test_a_reference_that_is_left_out_is_never_drawn() -> None:
    rng = np.random.default_rng(1)
    similarities = rng.normal(size=(9, 9))
    np.fill_diagonal(similarities, np.nan)  # references, each left out of its own group
    found = confused_shares(similarities, GROUP, GROUP, 1, draws=4000)
    assert found == pytest.approx(1 - by_all_draws(similarities, GROUP, 1)[np.arange(9), GROUP], abs=0.04)
    similarities[0, [0, 1, 2, 3, 6, 7, 8]] = np.nan  # groups without references do not compete
    assert confused_shares(similarities, GROUP, [1] * 9, 1)[0] == 0


def test_ties_count_half() -> None:
    similarities = [[0.5, 0.5, 0.1], [0.5, 0.5 + 1e-9, 0.1], [0.2, 0.5, 0.5], [0.3, 0.3, 0.3]]
    found = confused_shares(similarities, [0, 1, 2], [0, 0, 0, 0], 1)
    assert found.tolist() == [0.5, 0.5, 1, 0.5]


def test_a_group_with_few_references_does_not_win_more_often() -> None:
    """Means over all references would: those over one vary most."""
    rng = np.random.default_rng(2)
    group = np.repeat([0, 1, 2], [9, 9, 1])
    similarities = rng.normal(size=(4000, 19))
    for right in range(3):
        confused = confused_shares(similarities, group, [right] * 4000, 1).mean()
        assert confused == pytest.approx(2 / 3, abs=0.02)
    means = np.stack([similarities[:, group == g].mean(1) for g in range(3)], 1)
    assert (means.argmax(1) == 2).mean() > 0.4
