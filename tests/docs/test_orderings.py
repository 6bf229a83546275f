"""The scripts of benchmarks/orderings run and count seeds correctly; their claims are not tested here."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("vtkmodules", reason="rendering needs VTK: pip install vtk")

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "orderings"
PARTS = ("common", "captions", "pretraining", "encoder", "lite", "lite_items")  # what scripts share
SLOWEST = ("siglip_rank", "visme")  # one to two minutes each; tests of the recipes take the same steps
SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.py")} - {*PARTS, *SLOWEST})


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts' folder on the path, as where one of them is started."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in {path.stem for path in FOLDER.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture
def common(folder: None) -> ModuleType:
    return importlib.import_module("common")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_quick_run_prints_all_rows_and_claims(
    name: str, folder: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module(name)
    tables = [value for value in vars(script).values() if type(value).__name__ == "Table"]
    assert tables
    script.main(["--quick", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    for table in tables:
        lines = shown[shown.index(f"## {table.source}") :].splitlines()
        for row in table.rows:
            [line] = [line for line in lines if line.startswith(f"| {row.name} |")][:1]
            assert line.count("|") == 2 + 2 * len(table.measures)
        for claim in table.claims:
            assert any(f": {claim.low} <" in line and f" {claim.high}: **" in line for line in lines)
    again = list(tmp_path.rglob("scores.json"))
    times = {path: path.stat().st_mtime_ns for path in again}
    script.main(["--quick", "--out", str(tmp_path)])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scores.json")} == times


def table_of(common: ModuleType, equal: bool = False) -> object:
    rows = [common.Row("low", {}, {"ssr": 0.3}), common.Row("high", {}, {"ssr": 0.6})]
    claims = [common.Claim("ssr", "low", "high", equal)]
    return common.Table("Some paper, Table 1", [common.Measure("ssr", "SSR")], rows, claims)


def test_claims_are_judged_seed_by_seed(common: ModuleType) -> None:
    found = {"low": [{"ssr": 0.25}, {"ssr": 0.5}, {"ssr": 0.5}], "high": [{"ssr": 0.5}, {"ssr": 0.75}, {"ssr": 0.25}]}
    # differences 0.25, 0.25, -0.25: mean 0.0833, standard deviation sqrt((0.0278 + 0.0278 + 0.1111) / 2) = 0.2887
    line = common.judged(table_of(common), found)
    assert line == "- SSR: low < high: **holds in 2 of 3 seeds** (difference +8.3 ± 28.9; paper +30.0)"


def test_an_ordering_that_never_shows_is_said_not_to_hold(common: ModuleType) -> None:
    found = {"low": [{"ssr": 0.5}, {"ssr": 0.5}], "high": [{"ssr": 0.5}, {"ssr": 0.4}]}
    assert "**does not hold in any seed**" in common.judged(table_of(common), found)
    assert "**holds in 1 of 2 seeds**" in common.judged(table_of(common, equal=True), found)  # a tie counts there


def test_the_table_shows_mean_and_deviation_beside_the_papers_value(common: ModuleType) -> None:
    found = {"low": [{"ssr": 0.1}, {"ssr": 0.3}], "high": [{"ssr": 0.5}, {"ssr": 0.5}]}
    lines = common.markdown(table_of(common), found).splitlines()
    assert lines[0] == "| | SSR | paper |"
    assert lines[2:] == ["| low | 20.0 ± 14.1 | 30.0 |", "| high | 50.0 ± 0.0 | 60.0 |"]


def test_scores_are_kept_and_other_settings_are_measured_again(common: ModuleType, tmp_path: Path) -> None:
    calls = []

    def measure(row: object, seed: int, folder: Path) -> dict[str, float]:
        calls.append((row.name, seed))  # type: ignore[attr-defined]
        if (row.name, seed) == stop:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return {"ssr": float(seed)}

    rows = [common.Row("a", {"alpha": 1}), common.Row("b", {"alpha": 2})]
    options = common.Options(tmp_path, seeds=2, quick=False)
    stop = ("a", 1)
    with pytest.raises(KeyboardInterrupt):
        common.results(rows, options, measure, {"steps": 3})
    stop = ("", -1)
    assert calls == [("a", 0), ("b", 0), ("a", 1)]
    found = common.results(rows, options, measure, {"steps": 3})
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("a", 1), ("b", 1)]
    assert found == {"a": [{"ssr": 0.0}, {"ssr": 1.0}], "b": [{"ssr": 0.0}, {"ssr": 1.0}]}
    common.results(rows, options, measure, {"steps": 4})
    assert len(calls) == 9
    kept = [json.loads(path.read_text())["row"] for path in tmp_path.rglob("scores.json")]
    assert sorted(kept) == ["a"] * 4 + ["b"] * 4


def test_a_setting_that_the_recipe_does_not_have_is_refused(common: ModuleType, tmp_path: Path) -> None:
    from idmetric.train.nearid import recipe as nearid

    with pytest.raises(ValueError, match="alfa"):
        common.train(nearid, {"alfa": 1.0}, None, tmp_path, 0)


def test_rows_name_settings_of_the_recipe(folder: None) -> None:
    from dataclasses import fields

    from idmetric.train.nearid import recipe as nearid

    script = importlib.import_module("nearid")
    known = {field.name for field in fields(nearid.Config)}
    rows = [row for table in (script.TABLE_3, script.TABLE_8) for row in table.rows]
    assert all(row.settings.keys() <= known for row in rows)
    default = nearid.Config()
    assert (default.objective, default.alpha, default.beta) == ("nearid", 0.5, 0.0)  # the row without settings
