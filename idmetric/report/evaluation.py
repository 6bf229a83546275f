"""The page of `idmetric eval --html`: the table with intervals and the papers' values, plots, and the hardest items.

See `idmetric.report.page` for the common parts of all pages.
"""

from __future__ import annotations

import base64
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.images.read import ImageReadError, read_image
from idmetric.protocols.common.result import Columns, Result, Value, footnotes, names_of
from idmetric.report.page import render
from idmetric.report.pictures import data_uri, room

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

LINES = 200  # of a list of items: the hardest
_SMALL = 12_000  # bytes of an item's picture, at most
_PLOTS = {
    "roc": "ROC", "pr": "Precision and recall", "distributions": "Distributions of similarity",
    "oracle": "Part edits and the oracle", "reliability": "Reliability", "sensitivity": "Sensitivity",
    "trends": "Similarity over growing changes",
}  # fmt: skip


def eval_page(results: Sequence[Result], data: Manifest | None = None) -> str:
    """Make the page of models under a protocol.

    Args:
        data: the manifest; items that are its images are listed with their pictures.

    Raises:
        ImportError: without jinja2 or matplotlib.
    """
    rows = [(result, row) for result in results for row in result.rows]
    printed = {k for _, row in rows for k, v in row.items() if isinstance(v, Value) and v.paper is not None}
    ids = {} if data is None else {name: row for row, name in enumerate(data.column("id"))}
    tables = [table for result in results for table in _tables(result, ids)]
    return render(
        "eval", ("theme.js", "eval.js"), {"pictures": _pictures(tables, data)},
        protocol=", ".join(dict.fromkeys(r.protocol for r in results)), models=[r.model for r in results],
        labels=names_of(results, str), metrics=names_of(results, Value), printed=printed, results=results,
        lines=[{"model": result.model, "row": row} for result, row in rows],
        notes=footnotes(results), plots=_plots(results), tables=tables,
    )  # fmt: skip


def _plots(results: Sequence[Result]) -> list[dict[str, str]]:
    """Draw all plots that the items allow, as SVG data URIs."""
    from idmetric.report.plots import draw

    with tempfile.TemporaryDirectory() as folder:
        drawn = draw(results, Path(folder), "plot", "svg")
        return [
            {"name": _caption(path),
             "picture": f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"}
            for path in drawn
        ]  # fmt: skip


def _caption(path: Path) -> str:
    """Return the caption of plot.DATASET.KIND.svg or plot.KIND.svg."""
    *dataset, kind = path.stem.removeprefix("plot.").rsplit(".", 1)
    return ", ".join([_PLOTS.get(kind, kind), *dataset])


# Items


@dataclass(frozen=True)
class Cell:
    """A cell of a list of items: an image with its row `at` in the manifest, a number, or text."""

    text: str
    image: bool = False
    at: int | None = None
    number: bool = False
    exact: str = ""


@dataclass(frozen=True)
class Table:
    """A list of items, the hardest first."""

    title: str
    about: str
    columns: list[str]
    numbers: set[str]
    lines: list[list[Cell]]


def _tables(result: Result, ids: Mapping[str, int]) -> list[Table]:
    """List the items of a result that name images of the data."""
    found = []
    for kind, columns in result.items.items():
        pictured = {name for name, values in columns.items() if _are_images(values, ids)}
        if not pictured:
            continue
        shown = {name: values for name, values in columns.items() if not _is_nested(values)}
        numbers = {name for name, values in shown.items() if _is_numeric(values)}
        total = len(next(iter(columns.values())))
        order, about = _hardest(shown, numbers)
        lines = [[_cell(values[k], name, pictured, numbers, ids) for name, values in shown.items()] for k in order]
        few = f"all {total}" if len(order) == total else f"{len(order)} of {total}"
        found.append(Table(f"{result.model}: {kind}", f"{few}, {about}", list(shown), numbers, lines))

    return found


def _are_images(values: Sequence[Any], ids: Mapping[str, int]) -> bool:
    return len(values) > 0 and all(isinstance(value, str) and value in ids for value in values)


def _is_nested(values: Sequence[Any]) -> bool:
    return any(isinstance(value, list | tuple | dict | np.ndarray) for value in values)


def _is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values are numbers or None."""
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool) for value in known
    )


def _hardest(columns: Columns, numbers: set[str]) -> tuple[list[int], str]:
    """Return the items to show, in order, and their description."""
    if {"score", "same"} <= columns.keys():
        score, same = np.asarray(columns["score"], float), np.asarray(columns["same"], bool)
        own, other = (np.flatnonzero(where) for where in (same, ~same))
        half = LINES // 2
        chosen = [*own[np.argsort(score[own], kind="stable")][:half],
                  *other[np.argsort(-score[other], kind="stable")][:half]]  # fmt: skip
        return [int(k) for k in chosen], "least similar of one identity, then most similar of two"

    first = next((name for name in columns if name in numbers), None)
    count = len(next(iter(columns.values())))
    if first is None:
        return list(range(min(count, LINES))), "in their order"
    values = np.array([math.nan if v is None else float(v) for v in columns[first]])
    return [int(k) for k in np.argsort(values, kind="stable")[:LINES]], f"lowest {first} first"


def _cell(value: Any, name: str, pictured: set[str], numbers: set[str], ids: Mapping[str, int]) -> Cell:
    if name in pictured:
        return Cell(value, image=True, at=ids[value])
    if name in numbers:
        number = math.nan if value is None else float(value)
        whole = isinstance(value, int | np.integer)
        text = "–" if math.isnan(number) else str(value) if whole else f"{number:.4f}"
        return Cell(text, number=True, exact=str(value) if whole else f"{number:.9g}")

    if isinstance(value, bool | np.bool_):
        return Cell("yes" if value else "no")
    return Cell("" if value is None else str(value))


def _pictures(tables: Sequence[Table], data: Manifest | None) -> dict[str, str]:
    """Return name -> picture of the listed images, without unreadable ones."""
    if data is None:
        return {}
    wanted = dict.fromkeys(c.at for table in tables for line in table.lines for c in line if c.at is not None)
    limit, found = min(_SMALL, room(len(wanted))), {}

    for row in wanted:
        source = data.source(row)
        try:
            if source is not None:
                found[f"p{row}"] = data_uri(read_image(source), limit)
        except ImageReadError:
            continue

    return found
