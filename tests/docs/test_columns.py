"""The table of columns in the docs is made of the sentences that stand with the columns."""

from __future__ import annotations

import runpy
from pathlib import Path

from idmetric.evaluate.protocols.common.protocol import find, modules
from idmetric.evaluate.protocols.common.table_columns import SHARED

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_columns_is_up_to_date() -> None:
    text = (DOCS / "columns.md").read_text(encoding="utf-8")
    assert text == runpy.run_path(str(DOCS / "columns.py"))["page"](), "run: python docs/columns.py"
    for columns in (SHARED, *(find(protocol).columns for protocol in modules())):
        assert all(f" | {column.says} | " in text for column in columns.values())
