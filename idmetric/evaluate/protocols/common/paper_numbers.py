"""Numbers printed in the papers, to stand next to measured ones, and the model that runs each of their rows.

The tables are in `papers/*.json`: {table: {columns, rows}}, in the papers' units (shares, or percent
where a table says so). A number that a paper does not print is absent, or None. A model gets the numbers of the row
that its label (`Embedder.label`; baselines have their names) belongs to, see `row_of`.

A protocol's result names the rows without a model (`Result.missing`), so that a table next to a paper's is never
shorter than the paper's without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

PAPER_HELP = "the paper's row to compare with (default: by the model)"  # of the option --paper
Pair = tuple[float | None, float | None]
NONE: Pair = (None, None)
ALL_ENGINES, PART_EDITS = "all", "MTG"  # rows of NearID's Table 5
HUMAN = "human"  # stands for the agreement of the human groups with each other, among the raters of NearID's Table 2
FISHER_ROW, ALL_CATEGORIES = "Fisher-z", "all"  # of NearID's Table 2 and Fig. 4


def _read(name: str) -> dict[str, Any]:
    text = files("idmetric.evaluate.protocols").joinpath("papers", f"{name}.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


PAPERS = {name: _read(name) for name in ("idsim", "nearid", "ilgen", "visme")}


def rows(paper: str, *tables: str) -> tuple[str, ...]:
    """The names of the rows of some tables."""
    names: dict[str, None] = {}
    for table in tables:
        names |= dict.fromkeys(PAPERS[paper][table]["rows"])
    return tuple(names)


def printed(paper: str, table: str, row: str | None) -> dict[Any, Any]:
    """Column -> number, a share, of a row of a table; empty without this row."""
    entry = PAPERS[paper][table]
    numbers = entry["rows"].get(row, {})
    if not isinstance(numbers, dict):
        columns = []
        for name in entry["columns"]:
            if isinstance(name, list):
                name = tuple(name)
            columns.append(name)
        numbers = dict(zip(columns, numbers, strict=True))
    if entry.get("percent"):
        return {column: _share(number) for column, number in numbers.items()}
    return numbers


def _share(percent: Any) -> Any:
    """A share of a number in percent, or of each of several."""
    if isinstance(percent, list):
        return tuple(_share(number) for number in percent)
    if percent is None:
        return None
    return percent / 100


# protocol -> row -> "model", what `--model` opens for it ("judge:FILE.json": a language model that a file describes),
# and "open", what the paper does not say of it; or "missing", the reason why it is not listed
PAPER_ROWS: dict[str, dict[str, dict[str, str]]] = _read("rows")


def row_of(protocol: str, label: str) -> str | None:
    """The row of a protocol's tables that a model of this label runs; None for any other model.

    Another pooling, crop or way of decoding, which a label names in brackets, makes another model. Two settings do not:
    the class token, which encoders that have one compare by default, and the release's way of reading files.
    """
    plain = label.removesuffix("[cls]").replace("[release preprocessing]", "")
    for name, row in PAPER_ROWS[protocol].items():
        if "model" in row and plain in labels_of(row["model"]):
            return name
    return None


def visme_row(protocol: str, signature: Mapping[str, str]) -> str | None:
    """The row of VisME's tables for a model, whatever its prompts and positions: the paper does not give its own."""
    return row_of(protocol, signature.get("model", "").partition("[")[0])


def labels_of(source: str) -> list[str]:
    """The labels of the model that `--model` opens by this name: with each name that it may have been opened by."""
    from idmetric.metric.checkpoints import released
    from idmetric.metric.named import NAMED

    if source in NAMED:
        options = NAMED[source].options
        if options["resize"] == "squash":
            return [f"Backbone:{source}"]
        return [f"Backbone:{source}[{options['resize']} {options['crop_pct']:g}, {options['interpolation']}]"]
    if source.startswith("timm:"):
        return [f"Backbone:{source.removeprefix('timm:')}"]
    if source.startswith("dual:"):
        return [f"DualEncoder:{source.removeprefix('dual:')}"]

    families = {"IDSim": released.IDSIM, "NearID": released.NEARID, "VisIDEmbed": released.VISID}
    for family, releases in families.items():
        if source in releases:
            names = (source, source.removeprefix("visid_"), releases[source].repo)
            return [f"{family}:{name}" for name in names]
    return [source]


def open_points(protocol: str, label: str) -> list[str]:
    """A note on what the paper leaves open about the row of this label, if anything."""
    if protocol not in PAPER_ROWS:
        return []
    row = row_of(protocol, label)
    if row is None or "open" not in PAPER_ROWS[protocol][row]:
        return []
    return [f"the paper's row {row}: {PAPER_ROWS[protocol][row]['open']}"]


def missing_rows(protocol: str) -> dict[str, str]:
    """Rows of the protocol's tables that this package has no model for, with the reason."""
    rows_of_protocol = PAPER_ROWS.get(protocol, {})
    return {name: row["missing"] for name, row in rows_of_protocol.items() if "missing" in row}
