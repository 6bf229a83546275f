from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idmetric.evaluate.margins import directed_margins, margin_rates


def slow(positives: np.ndarray, distractors: np.ndarray) -> list[float]:
    found = []
    for i in range(len(distractors)):
        for j in range(len(distractors)):
            if i != j:
                found.append(positives[i, j] - distractors[i])
    return found


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_rates_agree_with_a_loop_over_pairs(seed: int, views: int) -> None:
    rng = np.random.default_rng(seed)
    samples = []
    wins, trials, whole, valid = 0, 0, 0, 0
    for _ in range(6):
        positives = np.round(rng.uniform(-1, 1, (views, views)), 1)  # coarse: ties happen
        positives = (positives + positives.T) / 2
        distractors = np.round(rng.uniform(-1, 1, views), 1)
        missing = rng.random(views) < 0.2
        positives[missing] = positives[:, missing] = np.nan
        distractors[missing | (rng.random(views) < 0.2)] = np.nan
        margins = [m for m in slow(positives, distractors) if not np.isnan(m)]
        trials += len(margins)
        wins += sum(m > 0 for m in margins)
        if margins:
            valid += 1
            whole += all(m > 0 for m in margins)
        samples.append(directed_margins(positives, distractors))
    if not valid:
        with pytest.raises(ValueError, match="no sample has a valid margin"):
            margin_rates(samples)
        return
    rates = margin_rates(samples)
    assert rates.ssr == pytest.approx(whole / valid)
    assert rates.pa == pytest.approx(wins / trials)
    assert (rates.samples, rates.trials) == (valid, trials)


def test_three_views_give_six_margins_and_a_tie_loses() -> None:
    margins = directed_margins(np.full((3, 3), 0.5), np.array([0.4, 0.5, 0.4]))
    assert len(margins) == 6
    rates = margin_rates([margins])
    assert rates.ssr == 0
    assert rates.pa == pytest.approx(4 / 6)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 3\) of 2 views"):
        directed_margins(np.zeros((3, 3)), np.zeros(2))
