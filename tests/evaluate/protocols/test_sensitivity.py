"""Selective sensitivity: slopes of every instance again by the normal equations, grids however they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame
from PIL import Image
from scipy import stats

from idmetric.data.manifest import checked, read, take, write
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.sensitivity_idsim_fig6 import SensitivityOptions, cells, run
from idmetric.metric.idsim import IDSim
from tests.evaluate.protocols.parts import PLAIN, Scripted, values
from tests.table_parts import a_row, a_table, where

STRENGTHS, LEVELS = (0.0, 0.5, 1.0), (0.5, 1.0)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Four instances: a square (identity = its color) before a background (one factor) in a light (another)."""
    root, rows = tmp_path_factory.mktemp("grid"), []
    for thing in range(4):
        rng = np.random.default_rng(thing)
        ground, other_ground, color, other = rng.integers(20, 230, (4, 3))
        steps = [("none", 0.0), *((f, level) for f in ("background", "light") for level in LEVELS)]
        for factor, level in steps:
            for strength in STRENGTHS:
                behind = ground + (other_ground - ground) * level * (factor == "background")
                array = np.broadcast_to(behind, (32, 32, 3)).copy()
                array[8:24, 8:24] = color + (other - color) * strength
                array *= 1 - 0.5 * level * (factor == "light")
                name = f"{thing}-{factor}-{level}-{strength}.png"
                Image.fromarray(array.astype(np.uint8)).save(root / name)
                anchor = factor == "none" and strength == 0
                rows.append(
                    a_row(f"thing{thing}" + (f"~{strength}" if strength else ""), name, group=f"thing{thing}",
                          slot="anchor" if anchor else "candidate", factor=factor, factor_change=level,
                          identity_change=strength)
                )  # fmt: skip
    return a_table(rows, root)


def value(result: Result, which: str, column: str) -> Value:
    return values(result, which=which)[column]


def slow(model: IDSim, grid: DataFrame, factor: str) -> dict[str, tuple[float, float, float]]:
    """Instance -> sensitivity to identity, to the factor, and R^2, by the normal equations."""
    vectors = model.embed(grid["path"].tolist(), patches=False).cls.double().numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = {}
    for instance in grid["group"].unique():
        own = grid[grid["group"] == instance]
        [anchor] = own.index[own["slot"] == "anchor"]
        points = own.index[own["factor"].isin((factor, "none"))]
        design = np.array([[1, grid["factor_change"][r], grid["identity_change"][r]] for r in points])
        target = np.array([vectors[r] @ vectors[anchor] for r in points])
        beta = np.linalg.solve(design.T @ design, design.T @ target)
        left, whole = ((target - design @ beta) ** 2).sum(), ((target - target.mean()) ** 2).sum()
        found[instance] = (-beta[2], -beta[1], 1 - left / whole)
    return found


def test_slopes_are_those_of_the_normal_equations(model: IDSim, grid: DataFrame) -> None:
    [result] = run(grid, {"m": model}, PLAIN)
    identities = []
    for factor in ("background", "light"):
        found = slow(model, grid, factor)
        for k, column in enumerate(("identity", "context", "R^2")):
            own = value(result, factor, column)
            assert own.value == pytest.approx(np.mean([f[k] for f in found.values()]), abs=1e-6)
            assert (own.low, own.high, own.count) == (None, None, 4)
        identities.append([f[0] for f in found.values()])
        kept = result.items["fits"]
        row = next(k for k in range(8) if (kept["instance"][k], kept["factor"][k]) == ("thing2", factor))
        own_fit = [kept[column][row] for column in ("identity", "context", "r2")]
        assert own_fit == pytest.approx(found["thing2"], abs=1e-6)
    assert value(result, "all", "identity").value == pytest.approx(np.mean(identities), abs=1e-6)
    assert value(result, "background", "identity").value > 0  # other colors are less alike


def test_an_anchor_need_not_say_that_nothing_was_changed(grid: DataFrame) -> None:
    names = ["factor", "factor_change", "identity_change"]
    silent = grid.assign(**grid[names].astype(object).where(grid["slot"] != "anchor", None))
    assert cells(silent) == cells(grid)


def test_intervals_are_students_over_instances(model: IDSim, grid: DataFrame) -> None:
    [result] = run(grid, {"m": model}, EvalSettings())
    lines = result.items["fits"]
    for which in ("light", "all"):
        slopes: list[list[float]] = [[] for _ in range(4)]
        for name, factor, slope in zip(lines["instance"], lines["factor"], lines["identity"], strict=True):
            slopes[int(name.removeprefix("thing"))] += [slope] * (which in (factor, "all"))
        expected = stats.ttest_1samp([np.mean(own) for own in slopes], 0).confidence_interval(0.95)
        found = value(result, which, "identity")
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def hundred_instances(folder: Path) -> tuple[DataFrame, np.ndarray]:
    """Smallest grids of 100 instances, and the score of each picture, whose slopes vary between instances."""
    rng = np.random.default_rng(7)
    rows, scores = [], []
    Image.new("RGB", (8, 8)).save(folder / "any.png")
    for thing in range(100):
        slope, context_slope = rng.normal(0.6, 0.2), rng.normal(0.1, 0.05)
        for identity in (0.0, 1.0):
            for change in (0.0, 1.0):
                slot = "candidate" if identity or change else "anchor"
                rows.append(
                    a_row(f"{thing}", "any.png", id=f"{thing}-{identity}-{change}", group=f"{thing}", slot=slot,
                          factor="light", factor_change=change, identity_change=identity)
                )  # fmt: skip
                scores.append(1 - slope * identity - context_slope * change)
    return a_table(rows, folder), np.array(scores)


def test_the_papers_uncertainty_is_that_of_100_instances_resampled_1000_times(tmp_path: Path) -> None:
    """Supplement F: mean, standard deviation and 2.5th to 97.5th percentile of the samples, by SciPy's bootstrap."""
    data, scores = hundred_instances(tmp_path)
    [result] = run(data, {"m": Scripted(lambda _, a, b: scores[a])}, EvalSettings())
    for column in ("identity", "context"):
        slopes = np.array(result.items["fits"][column])
        assert slopes.shape == (100,)
        theirs = stats.bootstrap((slopes,), np.mean, method="percentile", n_resamples=100_000, rng=1, batch=1000)
        interval, deviation = theirs.confidence_interval, theirs.standard_error
        found = value(result, "light", f"{column} resampled")
        assert found.value == pytest.approx(slopes.mean(), abs=4 * deviation / np.sqrt(1000))
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.25 * deviation)
        spread = value(result, "light", f"{column} SD")
        assert spread.value == pytest.approx(deviation, rel=0.1)
        assert (found.count, spread.count, spread.low) == (100, 100, None)


def test_the_papers_uncertainty_of_two_instances_is_that_of_their_four_draws(model: IDSim, grid: DataFrame) -> None:
    """Twice the lower, the mean twice, twice the higher: a standard deviation of their distance over the root of 8."""
    two = where(grid, group=("thing0", "thing1"))
    [result] = run(two, {"m": model}, EvalSettings(bootstrap=4000))
    lines = result.items["fits"]
    for which in ("light", "all"):
        slopes: dict[str, list[float]] = {"thing0": [], "thing1": []}
        for name, factor, slope in zip(lines["instance"], lines["factor"], lines["identity"], strict=True):
            slopes[name] += [slope] * (which in (factor, "all"))
        low, high = sorted(np.mean(own) for own in slopes.values())
        found = value(result, which, "identity resampled")
        assert (found.low, found.high) == pytest.approx((low, high))
        assert found.value == pytest.approx((low + high) / 2, abs=0.03 * (high - low))
        assert value(result, which, "identity SD").value == pytest.approx((high - low) / np.sqrt(8), rel=0.05)


def test_without_samples_the_papers_uncertainty_is_left_out(model: IDSim, grid: DataFrame) -> None:
    [result] = run(grid, {"m": model}, PLAIN)
    assert not any("SD" in name or "resampled" in name for row in result.rows for name in row)


def test_a_metric_that_sees_no_context_is_not_sensitive_to_it(grid: DataFrame) -> None:
    def oracle(slope: float) -> Scripted:
        return Scripted(lambda data, a, b: 1 - slope * data["identity_change"].to_numpy()[a])

    [result] = run(grid, {"o": oracle(0.7)}, PLAIN)
    for factor in ("background", "light"):
        found = [value(result, factor, column).value for column in ("identity", "context", "R^2")]
        assert found == pytest.approx([0.7, 0, 1], abs=1e-9)
    scaled = checked(grid.assign(identity_change=10 * grid["identity_change"]))
    [raw] = run(scaled, {"o": oracle(0.07)}, PLAIN)
    [unit] = run(scaled, {"o": oracle(0.07)}, PLAIN, SensitivityOptions(rescale=True))
    assert value(raw, "light", "identity").value == pytest.approx(0.07)
    assert value(unit, "light", "identity").value == pytest.approx(0.7)
    assert unit.settings["rescale"] is True


def test_comparisons_without_an_answer_are_left_out(grid: DataFrame) -> None:
    judge = Scripted(lambda data, a, b: np.where(np.arange(len(a)) == 3, np.nan, np.arange(len(a)) % 5 / 5))
    [result] = run(grid, {"j": judge}, PLAIN)
    assert result.notes == ["edit grids: 1 of 60 comparisons have no answer and are left out"]
    assert len(result.items["grid"]["score"]) == 59


def test_a_grid_reads_the_same_from_csv_from_parameters_and_with_splits(
    model: IDSim, grid: DataFrame, tmp_path: Path
) -> None:
    [expected] = run(grid, {"m": model}, PLAIN)
    write(grid, tmp_path / "grid.csv")
    [from_csv] = run(read(tmp_path / "grid.csv"), {"m": model}, PLAIN)
    names = ["factor", "factor_change", "identity_change"]
    bare = checked(grid.drop(columns=names).assign(parameters=grid[names].to_dict("records")))
    [from_parameters] = run(bare, {"m": model}, PLAIN)
    assert from_csv.rows == from_parameters.rows == expected.rows
    groups = [f"{group[:-1]}{int(group[-1]) % 2}" for group in grid["group"]]
    twice = checked(grid.assign(group=groups, split=np.where(grid["identity"] < "thing2", "a", "b")))
    [split] = run(twice, {"m": model}, PLAIN)
    assert value(split, "light", "identity") == value(expected, "light", "identity")


def test_instances_may_lack_a_factor(model: IDSim, grid: DataFrame) -> None:
    fewer = take(grid, (grid["group"] != "thing0") | ~grid["path"].str.contains("-light-"))
    [result] = run(fewer, {"m": model}, PLAIN)
    assert value(result, "light", "identity").count == 3
    assert value(result, "background", "identity").count == 4
    assert value(result, "all", "identity").count == 4
    found = slow(model, grid, "light")
    assert value(result, "light", "identity").value == pytest.approx(
        np.mean([found[f"thing{k}"][0] for k in (1, 2, 3)]), abs=1e-6
    )


def test_wrong_grids_are_named(model: IDSim, grid: DataFrame) -> None:
    count = range(len(grid))
    for wrong, reason in (
        (where(grid, slot="anchor"), "no edit grids: rows with slot candidate and factor"),
        (where(grid, slot="candidate"), r"row 1: its instance \(group 'thing0'\) has 0 anchors"),
        (checked(grid.assign(identity_change=["much" if k == 4 else "0.5" for k in count])),
         "row 5: identity_change is 'much': a number says how much was changed"),
        (grid.assign(factor_change=[None if k == 6 else 0.5 for k in count]), "row 7: factor_change is None"),
        (where(grid, factor="none"), "no context factor: all rows are 'none'"),
        (checked(grid.assign(slot=["anchor" if k in (0, 8) else "candidate" for k in count])),
         r"row 9: its instance \(group 'thing0'\) has 2 anchors"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            run(wrong, {"m": model}, PLAIN)
    with pytest.raises(ValueError, match=r"factor 'background': instance 'thing0': .* must both vary"):
        run(checked(grid.assign(identity_change=0.0)), {"m": model}, PLAIN)
