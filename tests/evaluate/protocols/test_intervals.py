"""Which interval a table's value gets, by the number of its identities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from idmetric.evaluate.protocols.common.intervals import auc
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.statistics.resampled import resampled_auc

SETTINGS = EvalSettings(bootstrap=300, seed=4)


def pairs_of(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and identities (P, 2) of all pairs of two images each of so many identities."""
    rng = np.random.default_rng(count)
    identity = np.repeat(np.arange(count), 2)
    a, b = np.triu_indices(len(identity), 1)
    same = identity[a] == identity[b]
    return rng.normal(size=len(a)) + same, same, np.stack([identity[a], identity[b]], 1)


def test_the_interval_of_an_auc_of_20_identities_is_of_the_jackknife() -> None:
    scores, same, identity = pairs_of(20)
    found = auc(scores, same, identity, SETTINGS)["AUC"]
    without = []
    for name in range(20):
        rest = (identity != name).all(1)
        without.append(roc_auc_score(same[rest], scores[rest]))
    half = stats.t.ppf(0.975, 19) * np.sqrt(19 / 20 * np.sum((without - np.mean(without)) ** 2))
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=1e-6)


def test_the_interval_of_an_auc_of_21_identities_is_of_percentiles() -> None:
    scores, same, identity = pairs_of(21)
    found = auc(scores, same, identity, SETTINGS)["AUC"]
    values = resampled_auc(scores, same, identity, samples=300, seed=4)
    assert (found.low, found.high) == pytest.approx(np.quantile(values, [0.025, 0.975]))
