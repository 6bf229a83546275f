"""CSV that a spreadsheet opens holds no formulas, whatever images and models are called."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from idmetric.cli.score import main
from idmetric.evaluate.protocols.common.result import Result, Value, as_csv
from idmetric.scoring.scores import Records
from idmetric.tables import csv_text
from tests.embed_parts import pictures

FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\uff1d1+1",
    "-x.png",
    "=1,2",
    '="a"',
]
PLAIN = ["a.png", "a=b", "'x", "x-1", "-1", "+1.5e-3", "-.5", "", " =1", 'a"b', "a,b", "a\nb"]


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_cells_that_a_spreadsheet_would_run_get_a_quote() -> None:
    lines = read(csv_text(["=a", "b"], [[text, text] for text in (*FORMULAS, *PLAIN)]))
    assert lines[0] == ["'=a", "b"]
    assert lines[1:] == [[f"'{text}"] * 2 for text in FORMULAS] + [[text] * 2 for text in PLAIN]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a;=1+1;b.png", "a;'=1+1;b.png"),
        ("a\t=1.png", "a\t'=1.png"),
        ("a\n@x", "a\n'@x"),
        ('a; "=1+1"', 'a; "\'=1+1"'),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\r'=1"),
        ("=1;=2", "'=1;'=2"),
        ("a;\uff1d1", "a;'\uff1d1"),
        ("a;b=1;c.png", "a;b=1;c.png"),
    ],
)
def test_a_formula_after_a_separator_gets_a_quote(text: str, cell: str) -> None:
    """Where the comma is the decimal sign, spreadsheets begin a cell at a semicolon, others at a tab."""
    assert read(csv_text(["k", "b"], [["0.1", text]]))[1] == ["0.1", cell]


def test_names_in_csv_cannot_control_a_terminal() -> None:
    text = csv_text(["image", "n"], [["a\x1b[2J\u202eb.png", 1], ["two\nlines\x07", 2]])
    assert text == 'image,n\na\\x1b[2J\\u202eb.png,1\n"two\nlines\\x07",2\n'


def test_all_tables_for_people_quote_formulas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = Records([{"image": "=1+1", "distance": -0.5}], ("image", "distance"))
    assert records.to_csv() == "image,distance\n'=1+1,-0.5000\n"
    result = Result("folder", "@m", [{"label": "=1+1", "-30": "x", "AP": Value(-0.5, None, None, 3)}])
    assert read(as_csv([result]))[0][:5] == ["protocol", "model", "label", "-30", "metric"]
    assert read(as_csv([result]))[1][:9] == ["folder", "'@m", "'=1+1", "x", "AP", "-0.5000", "", "", "3"]

    for name, path in zip(("=1+1.png", "b.png"), pictures(tmp_path, 2), strict=True):
        path.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(["--model", "tiny", "--format", "csv", "b.png", "=1+1.png"]) == 0
    assert "'=1+1.png" in capsys.readouterr().out
