"""Results of protocols and their printed forms."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from idmetric.cli.eval import FORMATS as NAMES
from idmetric.evaluate.protocols.common.result import Result, Value, as_csv, as_json, slug
from idmetric.evaluate.protocols.common.tables import FORMATS, markdown, table, write


@pytest.fixture
def results() -> list[Result]:
    about = {"model": "IDSim:tiny", "revision": "abc", "distance": "cls"}
    items = {"pairs": {"score": np.array([0.5, -0.25]), "same": np.array([True, False])}}
    one = Result(
        "nearid", "tiny",
        [{"source": "Flux_1024", "SSR": Value(0.25, 0.125, 0.5, 8, 0.274), "PA": Value(0.5, None, None, 16)},
         {"source": "100%|x", "SSR": Value(1.0, None, None, 8)}],
        about, {"seed": 0}, items, ["one view has no twin"],
    )  # fmt: skip
    other = Result("nearid", "other model", [{"source": "Flux_1024", "SSR": Value(-0.5, None, None, 8)}], notes=["odd"])
    return [one, other]


def test_the_table_aligns_and_shows_interval_support_and_the_paper(results: list[Result]) -> None:
    assert table(results).splitlines() == [
        "model        source     n                      SSR  SSR (paper)     PA",
        "tiny         Flux_1024  8/16  0.250 [0.125, 0.500]        0.274  0.500",
        "tiny         100%|x     8                    1.000            -      -",
        "other model  Flux_1024  8                   -0.500            -      -",
        "in all rows: n is of SSR / PA",
        "tiny: one view has no twin",
        "other model: odd",
        "tiny is a smoke-test model, not for a paper",
    ]


def test_markdown_cells_hold_no_bare_bars(results: list[Result]) -> None:
    lines = markdown(results).splitlines()
    assert lines[0] == "| model | source | n | SSR | SSR (paper) | PA |"
    assert "100%\\|x" in lines[3]
    assert lines[-2:] == ["- other model: odd", "- tiny is a smoke-test model, not for a paper"]


def test_csv_has_a_line_for_each_number_with_four_decimals(results: list[Result]) -> None:
    rows = list(csv.DictReader(as_csv(results).splitlines()))
    assert [(r["model"], r["source"], r["metric"]) for r in rows] == [
        ("tiny", "Flux_1024", "SSR"), ("tiny", "Flux_1024", "PA"), ("tiny", "100%|x", "SSR"),
        ("other model", "Flux_1024", "SSR"),
    ]  # fmt: skip
    assert [rows[0][n] for n in ("value", "low", "high", "count", "paper", "revision")] == [
        "0.2500", "0.1250", "0.5000", "8", "0.2740", "abc",
    ]  # fmt: skip
    assert rows[1]["low"] == ""


def test_json_holds_all(results: list[Result]) -> None:
    found = json.loads(as_json(results))["results"]
    assert found[0]["rows"][0]["labels"] == {"source": "Flux_1024"}
    assert found[0]["rows"][0]["metrics"]["SSR"] == {
        "value": 0.25, "low": 0.125, "high": 0.5, "count": 8, "paper": 0.274,
    }  # fmt: skip
    assert found[0]["signature"]["revision"] == "abc"
    assert found[0]["settings"] == {"seed": 0}


def test_all_forms_and_items_are_written(results: list[Result], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    written = write(results, tmp_path / "out", "nearid")
    assert {p.name for p in written} == {
        "nearid.tiny.pairs.parquet", "nearid.json", "nearid.csv", "nearid.md", "nearid.tex",
    }  # fmt: skip
    items = parquet.read_table(tmp_path / "out" / "nearid.tiny.pairs.parquet")
    assert items.to_pydict() == {"score": [0.5, -0.25], "same": [True, False]}
    assert json.loads(items.schema.metadata[b"idmetric"])["model"] == "IDSim:tiny"
    files = json.loads((tmp_path / "out" / "nearid.json").read_text())["results"][0]["items"]
    assert files == {"pairs": "nearid.tiny.pairs.parquet"}


def test_values_are_finite() -> None:
    for wrong in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            Value(wrong, None, None, 3)
        with pytest.raises(ValueError, match="finite"):
            Value(0.5, 0.4, wrong, 3)


def test_different_models_have_different_file_names() -> None:
    assert slug("tiny") == "tiny"
    assert len({slug(name) for name in ("a/b", "a b", "a:b", "a-b", "//", "::")}) == 6
    assert "/" not in slug("runs/mine")


def test_the_command_knows_the_formats() -> None:
    assert tuple(FORMATS) == NAMES
