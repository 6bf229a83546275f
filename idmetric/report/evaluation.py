"""The page of `idmetric eval --html`: the table with intervals and the papers' values, plots, and the hardest items.

See `idmetric.report.page` for the common parts of all pages.
"""

from __future__ import annotations

import base64
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.arrays import comparable
from idmetric.images.read import ImageReadError, read_image
from idmetric.protocols.common.result import Columns, Result, Value, footnotes, names_of
from idmetric.report.page import render
from idmetric.report.pictures import data_uri, room

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

LINES = 200  # of a list of items: the hardest
UNFOLDED = 20  # of these, the lines that are shown at first
_SMALL = 12_000  # bytes of an item's picture, at most
_HEADS = {
    "id": "query", "right": "first right", "right_rank": "its rank", "wrong_1": "nearest wrong", "wrong_2": "second",
    "wrong_3": "third",
}  # fmt: skip
_PLOTS = {
    "roc": "ROC", "pr": "Precision and recall", "distributions": "Distributions of similarity",
    "oracle": "Part edits and the oracle", "reliability": "Reliability", "sensitivity": "Sensitivity",
    "trends": "Similarity over growing changes", "pareto": "Pareto front of identity",
    "steps": "Over training steps",
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
        notes=footnotes(results), plots=_plots(results), tables=tables, unfolded=UNFOLDED,
        methods=list(dict.fromkeys(table.method for table in tables if table.method)),
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
    """A cell of a list of items: an image with its row `at` in the manifest and its score, a number, or text."""

    text: str
    image: bool = False
    at: int | None = None
    number: bool = False
    exact: str = ""
    score: str = ""


@dataclass(frozen=True)
class Table:
    """A list of items of a model, the hardest first.

    Attributes:
        method: the generator that these items are of; empty for items of all.
        title, about: shown above the list; `about` names the order and the columns with one value.
        columns: headings. numbers: the headings of numbers.
    """

    model: str
    title: str
    about: str
    columns: list[str]
    numbers: set[str]
    lines: list[list[Cell]]
    method: str = ""


def _tables(result: Result, ids: Mapping[str, int]) -> list[Table]:
    """List the items of a result that name images of the data: all, those of each generator, and identities' means."""
    found = []
    for kind, columns in result.items.items():
        if not any(_are_images(values, ids) for values in columns.values()):
            continue
        shown = {name: values for name, values in columns.items() if not _is_nested(values)}
        found.append(_table(result.model, kind, shown, *_hardest(shown), ids))
        methods = list(dict.fromkeys(shown.get("method", ())))
        for method in methods if len(methods) > 1 else ():
            own = [k for k, name in enumerate(shown["method"]) if name == method]
            part = {name: [values[k] for k in own] for name, values in shown.items() if name != "method"}
            found.append(_table(result.model, kind, part, *_hardest(part), ids, str(method)))
        if kind == "queries" and "identity" in shown:
            means = _by_identity(shown)
            found.append(_table(result.model, "identities", means, *_hardest(means), ids))

    return found


def _table(
    model: str, kind: str, columns: Columns, order: Sequence[int], about: str, ids: Mapping[str, int], method: str = ""
) -> Table:
    """The list of the columns' items in this order; images come first, with their scores."""
    total = len(next(iter(columns.values())))
    pictured = [name for name, values in columns.items() if _are_images(values, ids)]
    own = [name for name in columns if name not in pictured and name.removesuffix("_score") not in pictured]
    alike = {name: _cell(columns[name][0]).text for name in own if total > 1 and len(set(columns[name])) == 1}
    names = [*pictured, *(name for name in own if name not in alike)]
    none = [None] * total
    lines = [
        [_image(columns[name][k], columns.get(f"{name}_score", none)[k], ids) if name in pictured
         else _cell(columns[name][k]) for name in names]
        for k in order
    ]  # fmt: skip
    few = f"all {total}" if len(order) == total else f"{len(order)} of {total}"
    constant = "".join(f"; {name}: {text}" for name, text in alike.items())
    numbers = {_HEADS.get(name, name) for name in names if name not in pictured and _is_numeric(columns[name])}
    heads = [_HEADS.get(name, name) for name in names]
    return Table(model, kind, f"{few}, {about}{constant}", heads, numbers, lines, method)


def _by_identity(queries: Columns) -> dict[str, list[Any]]:
    """Means of the queries' known measures for each identity of each dataset, with its first query as picture."""
    rows: dict[Any, list[int]] = {}
    for k, owner in enumerate(zip(queries.get("dataset", queries["identity"]), queries["identity"], strict=True)):
        rows.setdefault(owner, []).append(k)
    found: dict[str, list[Any]] = {
        name: [queries[name][of[0]] for of in rows.values()]
        for name in ("id", "dataset", "identity")
        if name in queries
    }
    for name, values in queries.items():
        if _is_numeric(values) and not name.endswith("_score") and name != "right_rank":
            known = [[v for k in of if (v := values[k]) is not None and not math.isnan(v)] for of in rows.values()]
            found[name] = [float(np.mean(own)) if own else math.nan for own in known]
    return {**found, "queries": [len(of) for of in rows.values()]}


def _are_images(values: Sequence[Any], ids: Mapping[str, int]) -> bool:
    return set(map(type, values)) - {NoneType} == {str} and set(values) - {None} <= ids.keys()


def _is_nested(values: Sequence[Any]) -> bool:
    return any(issubclass(kind, list | tuple | dict | np.ndarray) for kind in set(map(type, values)))


def _is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values are numbers or None."""
    kinds = set(map(type, values)) - {NoneType}
    numbers = (int, float, np.integer, np.floating)
    return bool(kinds) and all(issubclass(kind, numbers) and not issubclass(kind, bool) for kind in kinds)


def _hardest(columns: Columns) -> tuple[list[int], str]:
    """Return the items to show, in order, and their description."""
    if {"score", "same"} <= columns.keys():
        score, same = np.asarray(columns["score"], float), np.asarray(columns["same"], bool)
        own, other = (np.flatnonzero(where) for where in (same, ~same))
        half = LINES // 2
        worst, near = (values[np.argsort(sign * comparable(score[values]), kind="stable")][:half].tolist()
                       for values, sign in ((own, 1), (other, -1)))  # fmt: skip
        both = [k for pair in zip_longest(worst, near) for k in pair if k is not None]
        return both, "in turn the least similar of one identity and the most similar of two"

    if {"wrong_1_score", "right_score"} <= columns.keys():
        wrong, right = (np.array(columns[name], float) for name in ("wrong_1_score", "right_score"))
        order = np.argsort(-comparable(wrong - right), kind="stable")[:LINES]  # NaN, without a wrong image, comes last
        return order.tolist(), "sorted by the nearest wrong image's similarity less that of the first right one"

    first = next((name for name, values in columns.items() if _is_numeric(values)), None)
    mean = "mean " if "queries" in columns else ""
    count = len(next(iter(columns.values())))
    if first is None:
        return list(range(min(count, LINES))), "in their order"
    values = np.array([math.nan if v is None else float(v) for v in columns[first]])
    return [int(k) for k in np.argsort(comparable(values), kind="stable")[:LINES]], f"lowest {mean}{first} first"


def _image(name: str | None, score: float | None, ids: Mapping[str, int]) -> Cell:
    if name is None:
        return Cell("–")
    return Cell(name, image=True, at=ids[name], score="" if score is None else f"{score:.4f}")


def _cell(value: Any) -> Cell:
    if isinstance(value, bool | np.bool_):
        return Cell("yes" if value else "no")
    if isinstance(value, int | float | np.integer | np.floating):
        whole = isinstance(value, int | np.integer)
        text = "–" if math.isnan(value) else str(value) if whole else f"{value:.4f}"
        return Cell(text, number=True, exact=str(value) if whole else f"{value:.9g}")
    return Cell("–" if value is None else str(value))


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
