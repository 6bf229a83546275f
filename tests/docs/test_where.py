"""Where pages and docstrings say that something is."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import idmetric

ROOT = Path(__file__).parents[2]


def test_the_table_of_places_names_files_that_define_what_it_says() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| `([\w/]+\.py)` \| `(\w+)` \|$", page, re.MULTILINE)
    assert len(rows) >= 10
    for file, name in rows:
        text = (Path(idmetric.__file__).parent / file).read_text(encoding="utf-8")
        assert re.search(rf"^(def|class) {name}\b|^{name}(: .*)? = ", text, re.MULTILINE), f"{file} has no {name}"


def test_docstrings_that_point_to_the_table_of_distances_name_the_module_that_has_it() -> None:
    pointers = {}
    for file in sorted(Path(idmetric.__file__).parent.rglob("*.py")):
        for name in re.findall(r"distance: .*`(idmetric\.[\w.]+)`", file.read_text(encoding="utf-8")):
            pointers[file.name] = name
    assert len(pointers) >= 7
    for file_name, name in pointers.items():
        docstring = importlib.import_module(name).__doc__ or ""
        assert "| `patch_pooled` |" in docstring, f"{file_name}: {name} has no table of distances"
