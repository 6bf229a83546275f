from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from idmetric.evaluate.agreement import fisher_mean, kendall, pearson, spearman


def sample(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers with many ties (integers), few or none."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rng.integers(3, 60)) * 3
    y = rng.uniform(-1, 1) * x + rng.normal(size=len(x))
    digits = seed % 3
    x, y = x.round(digits), y.round(2 - digits)
    x[:2], y[:2] = (-9, 9), (5, -9)
    return x, y


@pytest.mark.parametrize("seed", range(40))
def test_correlations_equal_scipys_with_ties(seed: int) -> None:
    x, y = sample(seed)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=2, max_size=12))
def test_kendall_counts_pairs(items: list[tuple[int, int]]) -> None:
    x, y = (np.array(v) for v in zip(*items, strict=True))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return
    upper = np.triu_indices(len(x), 1)
    a, b = (np.sign(v[:, None] - v)[upper] for v in (x, y))
    wanted = (a * b).sum() / np.sqrt((a != 0).sum() * (b != 0).sum())
    assert kendall(x, y) == pytest.approx(wanted)


def test_as_many_pairs_as_dreambench_has_are_quick_and_right() -> None:
    rng = np.random.default_rng(0)
    people = rng.integers(0, 5, 6921)
    metric = (people + rng.normal(size=6921).round(2) * 2).round(6)  # without noise, which SciPy would rank
    assert kendall(people, metric) == pytest.approx(stats.kendalltau(people, metric).statistic)
    assert spearman(people, metric) == pytest.approx(stats.spearmanr(people, metric).statistic)


def test_scale_and_offset_do_not_matter() -> None:
    x, y = sample(1)
    wanted = pearson(x, y)
    for scale in (1e-9, 1e9, -1.0):
        assert pearson(x * scale, y) == pytest.approx(np.sign(scale) * wanted)
    assert pearson(x + 1e4, y) == pytest.approx(wanted)
    assert pearson(x, x) == pytest.approx(1)
    assert pearson(x, -x) == pytest.approx(-1)


def test_a_column_that_does_not_vary_is_an_error_or_the_value_asked_for() -> None:
    for measure in (pearson, spearman, kendall):
        with pytest.raises(ValueError, match="x does not vary over its 3 items"):
            measure([2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
        with pytest.raises(ValueError, match="y does not vary over its 3 items"):
            measure([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
        assert measure([1.0, 2.0, 3.0], [0.3, 0.3, 0.3], constant=0.0) == 0
    rounding = np.array([0.1 + 0.2, 0.3, 0.3])
    assert pearson(rounding, [1.0, 2.0, 3.0], constant=0.0) == 0


def test_broken_input_is_named() -> None:
    for measure in (pearson, spearman, kendall):
        with pytest.raises(ValueError, match="y must be finite, but 1 are not, the first nan at 1"):
            measure([1.0, 2.0], [1.0, np.nan])
        with pytest.raises(ValueError, match="x and y must be of one shape"):
            measure([1.0, 2.0], [1.0])
        with pytest.raises(ValueError, match="x must not be empty"):
            measure([], [])
        with pytest.raises(ValueError, match="two items at least, got 1"):
            measure([1.0], [1.0])


# Fisher's mean


TABLE_2 = {  # NearID, Table 2: seven methods, and the printed last row
    "H-H": ([0.684, 0.731, 0.651, 0.630, 0.763, 0.530, 0.485], 0.648, 0.038),
    "G-H": ([0.625, 0.722, 0.637, 0.466, 0.777, 0.424, 0.401], 0.597, 0.056),
    "D-H": ([0.611, 0.632, 0.446, 0.311, 0.774, 0.212, 0.261], 0.492, 0.081),
    "C-H": ([0.610, 0.623, 0.481, 0.290, 0.744, 0.262, 0.283], 0.493, 0.074),
    "S-H": ([0.660, 0.652, 0.480, 0.363, 0.766, 0.253, 0.248], 0.516, 0.079),
    "NearID-H": ([0.675, 0.655, 0.546, 0.382, 0.768, 0.306, 0.316], 0.545, 0.071),
}


@pytest.mark.parametrize("column", TABLE_2)
def test_the_last_row_of_nearids_table_2_from_its_cells(column: str) -> None:
    cells, mean, error = TABLE_2[column]
    found = fisher_mean(cells)
    assert found.mean == pytest.approx(mean, abs=0.0006)
    assert found.error == pytest.approx(error, abs=0.0006)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9))
def test_fishers_mean_and_its_error_equal_their_formulas(values: list[float]) -> None:
    mean, error = fisher_mean(values)
    assert mean == pytest.approx(np.tanh(np.mean(np.arctanh(np.clip(values, -0.999, 0.999)))))
    assert error == pytest.approx(np.std(values, ddof=1) / np.sqrt(len(values)), abs=1e-9)


def test_one_correlation_has_no_error_and_perfect_ones_are_finite() -> None:
    assert fisher_mean([0.5]) == (pytest.approx(0.5), None)
    assert fisher_mean([1.0, 1.0]).mean == pytest.approx(0.999)
    assert fisher_mean([1.0, 1.0], limit=0.5).mean == pytest.approx(0.5)


def test_what_is_no_correlation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be in \[-1, 1\], got 1.2"):
        fisher_mean([0.1, 1.2])
    with pytest.raises(ValueError, match="must not be empty"):
        fisher_mean([])
    with pytest.raises(ValueError, match="must be finite"):
        fisher_mean([np.nan])
