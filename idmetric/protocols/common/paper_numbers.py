"""Numbers printed in the papers, to stand next to measured ones, and the model that runs each of their rows.

The tables are in `idmetric/protocols/papers/*.json`: {table: {columns, rows}}, in the papers' units (shares, or percent
where a table says so). A model is matched with a paper's row by its label (`Embedder.label`; baselines have their
names). A number that a paper does not print is absent, or None.

A protocol's result names the rows without a model (`Result.missing`), so that a table next to a paper's is never
shorter than the paper's without a word.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

Pair = tuple[float | None, float | None]
NONE: Pair = (None, None)
ALL_ENGINES, PART_EDITS = "all", "MTG"  # rows of NearID's Table 5
HUMAN = "human"  # stands for the agreement of the human groups with each other, among the raters of NearID's Table 2
FISHER_ROW, ALL_CATEGORIES = "Fisher-z", "all"  # of NearID's Table 2 and Fig. 4


def _read(name: str) -> dict[str, Any]:
    text = files("idmetric.protocols").joinpath("papers", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


PAPERS = {name: _read(name) for name in ("idsim", "nearid", "ilgen", "visme")}


def rows(paper: str, *tables: str) -> tuple[str, ...]:
    """The names of the rows of some tables."""
    return tuple(dict.fromkeys(row for table in tables for row in PAPERS[paper][table]["rows"]))


def row_of(paper: str, label: str) -> str | None:
    """The row of a paper's tables for a model's label, which may continue with further settings; None for others."""
    labels: dict[str, str] = PAPERS[paper]["labels"]
    return next((row for start, row in labels.items() if re.match(rf"{re.escape(start)}(?![\w:-])", label)), None)


def printed(paper: str, table: str, row: str | None) -> dict[Any, Any]:
    """Column -> number, a share, of a row of a table; empty without this row."""
    found = PAPERS[paper][table]
    values = found["rows"].get(row, {})
    if not isinstance(values, dict):
        columns = (tuple(name) if isinstance(name, list) else name for name in found["columns"])
        values = dict(zip(columns, values, strict=True))
    return {column: _share(value) for column, value in values.items()} if found.get("percent") else values


def _share(value: Any) -> Any:
    return tuple(map(_share, value)) if isinstance(value, list) else None if value is None else value / 100


# protocol -> row -> "model", what `--model` opens for it ("judge:FILE.json": a language model that a file describes),
# or "missing", the reason why it is not listed
PAPER_ROWS: dict[str, dict[str, dict[str, str]]] = _read("rows")


def missing_rows(protocol: str) -> dict[str, str]:
    """Rows of the protocol's tables that this package has no model for, with the reason."""
    return {name: row["missing"] for name, row in PAPER_ROWS.get(protocol, {}).items() if "missing" in row}
