"""The tables of columns in the docs are made of the sentences that stand with the columns."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from idmetric.protocols.common.measures import MEASURES

DOCS = Path(__file__).resolve().parents[2] / "docs"
COLUMNS = runpy.run_path(str(DOCS / "columns.py"))


@pytest.mark.parametrize("name", COLUMNS["PAGES"])
def test_the_tables_of_columns_are_up_to_date(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text == COLUMNS["page"](name), "run: python docs/columns.py"
    _, names = COLUMNS["PAGES"][name]
    for column in names:
        assert MEASURES[column].says in text


def test_every_measure_is_in_the_docs() -> None:
    assert set(COLUMNS["PAGES"]["columns.md"][1]) == set(MEASURES)
