"""The table of columns in the docs is made of the sentences that stand with the columns."""

from __future__ import annotations

import runpy
from pathlib import Path

from idmetric.evaluate.protocols.common.protocol import find, modules
from idmetric.evaluate.protocols.common.table_columns import SHARED

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_columns_is_up_to_date() -> None:
    text = (ROOT / "docs" / "reference" / "columns.md").read_text(encoding="utf-8")
    script = "docs/scripts/columns.py"
    assert text == runpy.run_path(str(ROOT / script))["page"](), f"run: python {script}"
    for columns in (SHARED, *(find(protocol).columns for protocol in modules())):
        assert all(f" | {column.says} | " in text for column in columns.values())
