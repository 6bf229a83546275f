"""The table of docs/contributing.md that says where code is."""

from __future__ import annotations

import re
from pathlib import Path

import idmetric

ROOT = Path(__file__).parents[2]


def test_the_table_of_places_names_files_that_define_what_it_says() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| `([\w/]+\.py)` \| `(\w+)` \|$", page, re.MULTILINE)
    assert len(rows) >= 15
    for file, name in rows:
        text = (Path(idmetric.__file__).parent / file).read_text(encoding="utf-8")
        assert re.search(rf"^(def|class) {name}\b|^{name}(: .*)? = ", text, re.MULTILINE), f"{file} has no {name}"
