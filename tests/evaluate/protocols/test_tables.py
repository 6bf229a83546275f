"""Tables of results: what is shown of them, pivots, widths, and LaTeX that compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from idmetric.evaluate.protocols.common import tables
from idmetric.evaluate.protocols.common.grids import grids
from idmetric.evaluate.protocols.common.latex import latex
from idmetric.evaluate.protocols.common.protocol import column_of, find, modules
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.table_columns import SHARED
from idmetric.evaluate.report.evaluation import PLOT_CAPTIONS

IDENTITY = {"few": 0.86, "drift": 0.334, "good": 0.756, "swap_2": 0.018}
COPIES = {"few": 0.5, "drift": 0.0, "good": 0.0, "swap_2": 0.0}
FEW_COPIES = {"few": 0.08, "drift": 0.0, "good": 0.0, "swap_2": 0.05}


def value(number: float, count: int = 32) -> Value:
    return Value(number, number - 0.05, number + 0.05, count)


def generator(copies: Mapping[str, float] = FEW_COPIES, model: str = "tiny", shift: float = 0.0) -> Result:
    """Four methods, also by subject, and a difference of two."""
    rows: list[Row] = []
    for method, identity in IDENTITY.items():
        numbers = {"identity": value(identity + shift), "real": Value(0.7, None, None, 32)}
        rows.append({"method": method, "group": "all", **numbers, "copies": value(copies[method])})
        for subject, more in (("dog", 0.01), ("cat", -0.01)):
            by = {"identity": value(identity + shift + more, 4), "copies": value(copies[method], 4)}
            rows.append({"method": method, "group": f"subject: {subject}", **by})
    rows.append({"method": "few - good", "identity": value(0.104), "p": Value(0.047, None, None, 8)})
    return Result("generator", model, rows)


def whole() -> Result:
    result = generator()
    return Result("generator", "tiny", [row for row in result.rows if row.get("group", "all") == "all"])


def test_labels_and_numbers_that_all_rows_share_stand_below_the_table() -> None:
    grid, differences = grids([whole()])
    assert grid.labels == ["method"]
    assert grid.metrics == ["identity", "copies"]
    assert grid.same == {"model": "tiny", "n": "32", "real": "0.700"}
    assert [labels for labels, _ in grid.lines] == [[method] for method in IDENTITY]
    assert [numbers[0].value for _, numbers in grid.lines if numbers[0]] == list(IDENTITY.values())
    assert differences.title == "differences of methods"
    assert [labels for labels, _ in differences.lines] == [["few - good"]]
    assert differences.same["n"] == "32/8 (identity / p)"


@pytest.mark.parametrize("width", [200, 80, 45, 30])
def test_a_terminal_never_wraps_and_says_what_is_missing(width: int) -> None:
    text = tables.table([whole()], width=width, elsewhere="results/generator.md")
    table = text.splitlines()[:5]
    assert max(map(len, table)) <= width
    shown = {name for name in ("identity", "copies") if name in table[0]}
    [*rest] = re.findall(r"not shown for lack of room: (.*) \(results/generator.md\)", text)
    missing = set(rest[0].split(", ")) if rest else set()
    assert shown | missing == {"identity", "copies"} | ({"intervals"} if width < 80 else set())


def test_every_row_of_a_markdown_table_has_every_cell() -> None:
    text = tables.markdown([whole()])
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert "| few | 0.860 [0.810, 0.910] | 0.080 [0.030, 0.130] |" in table
    assert {line.count("|") for line in table[:6]} == {4}


# LaTeX


def test_latex_has_a_line_for_each_row_and_notes_below() -> None:
    result = replace(whole(), notes=["50 % of a_b"], signature={"model": "IDSim:tiny"})
    lines = latex([result]).splitlines()
    table = lines[lines.index(r"\toprule") : lines.index(r"\bottomrule")]
    cells = [line.removesuffix(r" \\").split(" & ") for line in table if line.endswith(r" \\")]
    assert cells == [
        ["model", "method", "identity", "copies"],
        ["tiny", "few", "0.860", "0.080"],
        ["tiny", "drift", "0.334", "0.000"],
        ["tiny", "good", "0.756", "0.000"],
        ["tiny", r"swap\_2", "0.018", "0.050"],
    ]
    assert "% in all rows: n 32, real 0.700" in lines
    assert "% 50 % of a_b" in lines
    assert "% tiny is a smoke-test model, not for a paper" in lines


def test_a_papers_numbers_have_a_column_and_a_bracket_is_no_option() -> None:
    rows: list[Row] = [
        {"method": f"[{m}]", "mAP@1k": Value(v, None, None, 3, v + 0.1)} for m, v in (("V", 0.5), ("W", 0.6))
    ]
    text = latex([Result("ilias", "[m]", rows)])
    assert "mAP@1k & mAP@1k (paper)" in text
    assert "{}[m] & [V] & 0.500 & 0.600" in text


def test_a_smoke_test_model_is_named_in_every_form() -> None:
    small = replace(whole(), signature={"model": "IDSim:tiny"})
    large = replace(small, signature={"model": "IDSim:dinov3_vitl16"})
    for form in (tables.table, tables.markdown, latex):
        assert "tiny is a smoke-test model, not for a paper" in form([small])
        assert "smoke-test" not in form([large])


def test_a_number_that_rounds_to_zero_has_no_sign() -> None:
    rows: list[Row] = [{"method": m, "mAP": Value(v, v, 0.5, 3)} for m, v in (("a", -0.0004), ("b", 0.25))]
    result = Result("folder", "m", rows)
    assert "0.000 [0.000, 0.500]" in tables.table([result])
    assert "-0.000" not in tables.table([result]) + latex([result])


def test_captions_of_plots_are_short() -> None:
    assert all(len(caption.split()) <= 60 for caption in PLOT_CAPTIONS.values())


def test_latex_compiles(tmp_path: Path) -> None:
    odd = Result("generator", "a_b%$#{}~^\\&", [{"method": f"m_{k}", "identity": value(-0.5 + k)} for k in range(3)])
    text = latex([odd, generator()])
    for part in text.split(r"\begin{tabular}")[1:]:
        [columns] = re.findall(r"^\{(\w+)\}", part)
        lines = [line for line in part.splitlines() if line.endswith(r" \\")]
        assert {len(re.split(r"(?<!\\) & ", line)) for line in lines} == {len(columns)}
    if (program := shutil.which("pdflatex") or shutil.which("tectonic")) is not None:
        page = tmp_path / "page.tex"
        page.write_text(f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}{text}\\end{{document}}")
        made = subprocess.run(
            [program, page.name], cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )
        assert made.returncode == 0, made.stdout.decode()[-2000:]


def test_a_column_has_a_sentence_a_direction_and_its_own_name() -> None:
    columns = dict(SHARED)
    for protocol in modules():
        columns |= {f"{protocol}/{name}": column for name, column in find(protocol).columns.items()}
    for name, column in columns.items():
        assert column.better in (-1, 0, 1)
        assert column.says[0].islower() or column.says[:3].isupper() or column.says[0].isupper(), name
        assert not column.says.endswith("."), name
    assert column_of("mAP@100") is SHARED["mAP"]
    assert column_of("real same", "generator") is columns["generator/real same"]
    assert column_of("identity", "sensitivity") is not column_of("identity", "generator")
    assert column_of("unheard of", "folder") is None
    assert column_of("mAP", "a protocol of somebody else") is SHARED["mAP"]
