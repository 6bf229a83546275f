"""Intervals of a table's values: none of fewer than three identities, and none outside the range of the number."""

from __future__ import annotations

import numpy as np
import pytest

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.statistics.agreement import spearman

SETTINGS = EvalSettings(bootstrap=50)
NAMES = np.array(["a", "b", "c"], dtype=object)


@pytest.mark.parametrize(
    ("values", "limits", "expected"),
    [
        # the mean and 4.3027 standard errors, cut
        ([0.1, 0.5, 0.9], intervals.SHARE, (0, 1)),
        ([0.1, 0.5, 0.9], intervals.COSINE, (0.5 - 4.3027 * 0.4 / 3**0.5, 1)),
        ([-0.9, 0.1, 0.9], intervals.COSINE, (-1, 1)),
        ([0.1, 0.5, 0.9], (-np.inf, np.inf), (0.5 - 4.3027 * 0.4 / 3**0.5, 0.5 + 4.3027 * 0.4 / 3**0.5)),
        ([1.0, 1.0, 1.9], (1.0, np.inf), (1, 1.3 + 4.3027 * 0.3)),
    ],
)
def test_an_interval_stays_in_the_range_of_its_number(
    values: list[float], limits: tuple[float, float], expected: tuple[float, float]
) -> None:
    value = intervals.mean(np.array(values), NAMES, SETTINGS, limits=limits)
    assert (value.low, value.high) == pytest.approx(expected, abs=1e-3)


def test_a_number_that_rounding_moves_out_of_its_range_lies_in_its_interval() -> None:
    value = intervals.mean(np.full(3, 1 + 1e-12), NAMES, SETTINGS)
    assert value.low <= value.value <= value.high  # type: ignore[operator]


def test_two_identities_have_no_interval() -> None:
    names, numbers = np.array(["a", "a", "b", "b"], dtype=object), np.array([0.1, 0.2, 0.7, 0.9])
    same = np.array([True, False, True, False])
    for value in (
        intervals.mean(numbers, names, SETTINGS),
        intervals.student_mean(numbers, names, SETTINGS),
        intervals.auc(numbers, same, names, SETTINGS)["AUC"],
        intervals.any_statistic(spearman, (numbers, numbers), names, SETTINGS, limits=intervals.COSINE),
    ):
        assert (value.low, value.high) == (None, None)
