"""The table of docs/scripts/papers.json: its page is up to date, and its names exist."""

from __future__ import annotations

import importlib
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "docs" / "scripts"
TABLE: dict[str, list[dict[str, Any]]] = json.loads((SCRIPTS / "papers.json").read_text(encoding="utf-8"))
ROWS = [(paper, row) for paper, rows in TABLE.items() for row in rows]


def test_the_page_is_made_of_the_table() -> None:
    made = runpy.run_path(str(SCRIPTS / "papers.py"))["page"](TABLE)
    text = (ROOT / "docs" / "reports" / "papers.md").read_text(encoding="utf-8")
    assert text == made, "run: python docs/scripts/papers.py"


@pytest.mark.parametrize("name", sorted({name for _, row in ROWS for name in row["code"]}))
def test_the_code_of_a_row_exists(name: str) -> None:
    module, _, thing = name.partition(":")
    assert hasattr(importlib.import_module(module), thing)


def test_differences_are_explained_and_what_is_missing_has_no_code() -> None:
    assert list(TABLE) == ["ID-Sim", "NearID", "VisME", "ILGen"]
    for paper, row in ROWS:
        where = f"{paper}, {row['section']}"
        assert row.keys() == {"section", "what", "status", "code", "note"}, where
        assert row["status"] in ("here", "differs", "missing"), where
        assert bool(row["code"]) == (row["status"] != "missing"), where
        assert row["note"] or row["status"] == "here", where


def test_every_table_of_the_papers_is_in_the_table() -> None:
    numbered = {"ID-Sim": 10, "NearID": 10, "VisME": 5, "ILGen": 7}
    for paper, last in numbered.items():
        text = " ".join(row["section"] for row in TABLE[paper])
        named = {int(number) for number in re.findall(r"Tables? (\d+)", text)}
        for first, end in re.findall(r"Tables (\d+) to (\d+)", text):
            named |= set(range(int(first), int(end) + 1))
        for several in re.findall(r"Tables (\d+(?:(?:, | and )\d+)+)", text):
            named |= {int(number) for number in re.findall(r"\d+", several)}
        assert set(range(1, last + 1)) <= named, (paper, sorted(set(range(1, last + 1)) - named))
