"""The page of `idmetric eval --html`: verdict, table with intervals and the papers' values, plots, the hardest items.

See `idmetric.evaluate.report.page` for the common parts of all pages.
"""

from __future__ import annotations

import base64
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.protocol import column_of, compared_rows
from idmetric.evaluate.protocols.common.result import Columns, Result, Value, footnotes, names_of, smoke_tests
from idmetric.evaluate.report.page import render
from idmetric.evaluate.report.pictures import data_uri, room
from idmetric.evaluate.report.verdict import verdict
from idmetric.metric.distance.ties import comparable
from idmetric.metric.images.read import ImageReadError, read_image

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

LINES = 200  # of a list of items: the hardest
UNFOLDED = 20  # of these, the lines that are shown at first
_WARNING = "WARNING: "
_SMALL = 12_000  # bytes of an item's picture, at most
_HEADS = {
    "id": "query", "right": "first right", "right_rank": "its rank", "wrong_1": "nearest wrong", "wrong_2": "second",
    "wrong_3": "third", "lowest": "identity", "worst": "worst image", "worst_score": "identity of the worst image",
}  # fmt: skip
_PLOTS = {
    "roc": "ROC", "pr": "Precision and recall", "distributions": "Distributions of similarity",
    "oracle": "Part edits and the oracle", "reliability": "Reliability", "sensitivity": "Sensitivity",
    "trends": "Similarity over growing changes",
    "pareto": "Pareto front of identity: the dashed line joins methods that no other beats in both; hollow: copies",
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
    metrics, protocol = names_of(results, Value), ", ".join(dict.fromkeys(r.protocol for r in results))
    ids = {} if data is None else {name: row for row, name in enumerate(data.column("id"))}
    first_screens = [(result, found) for result in results if (found := verdict(result))]
    tables = [table for result in results for table in _tables(result, ids)]
    albums = [_album(result, ids, found.rows) for result, found in first_screens if ids]
    owners = [*(o for album in albums for o in album.owners), *(o for table in tables for o, _ in table.lines if o)]
    notes = footnotes(results)
    return render(
        "eval", ("theme.js", "eval.js"), {"pictures": _pictures(tables, albums, data)},
        protocol=protocol, compares=compared_rows(protocol),
        models=[r.model for r in results], labels=names_of(results, str), metrics=metrics, smoke=smoke_tests(results),
        printed=printed, results=results, lines=[{"model": result.model, "row": row} for result, row in rows],
        says={name: about for name in metrics if (about := column_of(name, protocol))},
        verdicts=[found for _, found in first_screens],
        warnings=[note.replace(_WARNING, "", 1) for note in notes if _WARNING in note],
        notes=[note for note in notes if _WARNING not in note], plots=_plots(results), tables=tables, albums=albums,
        unfolded=UNFOLDED, owners=list(dict.fromkeys(owners)),
    )  # fmt: skip


def _plots(results: Sequence[Result]) -> list[dict[str, str]]:
    """Draw all plots that the items allow, as SVG data URIs; their files are plot.DATASET.KIND.svg or plot.KIND.svg."""
    from idmetric.evaluate.report.plots import draw

    def caption(path: Path) -> str:
        *dataset, kind = path.stem.removeprefix("plot.").rsplit(".", 1)
        return ", ".join([_PLOTS.get(kind, kind), *dataset])

    with tempfile.TemporaryDirectory() as folder:
        drawn = draw(results, Path(folder), "plot", "svg")
        return [
            {"name": caption(path),
             "picture": f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"}
            for path in drawn
        ]  # fmt: skip


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
        title, about: shown above the list; `about` names the order and the columns with one value.
        columns: headings. numbers: the headings of numbers.
        lines: cells, and the generator that a line is of; empty for lines of all.
    """

    model: str
    title: str
    about: str
    columns: list[str]
    numbers: set[str]
    lines: list[tuple[str, list[Cell]]]


def _tables(result: Result, ids: Mapping[str, int]) -> list[Table]:
    """List the items of a result that name images of the data, and identities' means."""
    found = []
    for kind, columns in result.items.items():
        in_album = kind in ("images", "side_by_side") and compared_rows(result.protocol)
        if in_album or not any(_are_images(values, ids) for values in columns.values()):
            continue
        shown = {name: values for name, values in columns.items() if not _is_nested(values)}
        for name in shown:
            if name.partition("@")[0] == "SCR":  # of a subject: whether it is under the threshold
                shown[name] = ["failed" if failed else "passed" for failed in shown[name]]
        found.append(_table(result.model, kind, shown, *_hardest(shown), ids))
        if kind == "queries" and "identity" in shown:
            means = _by_identity(shown)
            found.append(_table(result.model, "identities", means, *_hardest(means), ids))

    return found


def _table(model: str, kind: str, columns: Columns, order: Sequence[int], about: str, ids: Mapping[str, int]) -> Table:
    """The list of the columns' items in this order; images come first, with their scores."""
    total = len(next(iter(columns.values())))
    pictured = [name for name, values in columns.items() if _are_images(values, ids)]
    own = [name for name in columns if name not in pictured and name.removesuffix("_score") not in pictured]
    alike = {name: _cell(columns[name][0]).text for name in own if total > 1 and len(set(columns[name])) == 1}
    names = [*pictured, *(name for name in own if name not in alike)]
    none = [None] * total
    lines = [
        (str(columns["method"][k]) if "method" in columns else "",
         [_image(columns[name][k], columns.get(f"{name}_score", none)[k], ids) if name in pictured
          else _cell(columns[name][k]) for name in names])
        for k in order
    ]  # fmt: skip
    few = f"all {total}" if len(order) == total else f"{len(order)} of {total}"
    constant = "".join(f"; {name}: {text}" for name, text in alike.items())
    numbers = {_HEADS.get(name, name) for name in names if name not in pictured and _is_numeric(columns[name])}
    heads = [_HEADS.get(name, name) for name in names]
    return Table(model, kind, f"{few}, {about}{constant}", heads, numbers, lines)


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
    order = np.argsort(comparable(values), kind="stable").tolist()
    return _first_of_each(
        order, columns.get("method", [None] * count)
    ), f"lowest {mean}{_HEADS.get(first, first)} first"


def _first_of_each(order: Sequence[int], owners: Sequence[Any]) -> list[int]:
    """The first items in this order of each owner."""
    counts: Counter[Any] = Counter()
    kept = []
    for k in order:
        counts[owners[k]] += 1
        if counts[owners[k]] <= LINES:
            kept.append(k)
    return kept


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


# Images of methods and steps


@dataclass(frozen=True)
class Shot:
    """An image of a method or step (`owner`), and the image that it copies or else the nearest reference (`source`).

    Attributes:
        at, source: rows of the manifest. place: subject, prompt and seed in words.
    """

    name: str
    at: int
    owner: str
    identity: float
    copy: bool
    source: int
    source_name: str
    place: str


@dataclass(frozen=True)
class Album:
    """The images of methods or steps: the worst, and for each place the row of a reference and owner -> image."""

    model: str
    owners: list[str]
    worst: list[Shot]
    scenes: list[tuple[int, dict[str, Shot]]]


def _album(result: Result, ids: Mapping[str, int], names: Iterable[str]) -> Album:
    """The images of the methods or steps of these names, the worst first."""
    items = result.items["images"]
    prefix = "step " if "step" in items else ""
    owners = [f"{prefix}{name}" for name in items[prefix.strip() or "method"]]
    copied = items.get("copied", [None] * len(owners))
    places = list(zip(items["subject"], items["prompt"], items["seed"], strict=True))
    first = int(len(set(items["subject"])) == 1)  # the only subject needs no name
    said = [
        ", ".join(filter(None, [*place[first:1], place[1].replace("_", " "), f"seed {place[2]}"])) for place in places
    ]
    shots = [
        Shot(name, ids[name], owner, identity, copy is not None, ids[copy or near], copy or near, words)
        for name, owner, identity, copy, near, words in zip(
            items["image"], owners, items["identity"], copied, items["nearest"], said, strict=True
        )
    ]
    order = np.argsort(comparable([shot.identity for shot in shots]), kind="stable").tolist()
    at: dict[Any, dict[str, Shot]] = {}
    for k in order:
        at.setdefault(places[k], {})[owners[k]] = shots[k]
    side = result.items.get("side_by_side", dict.fromkeys(("reference", "subject", "prompt", "seed"), ()))
    references = dict(
        zip(zip(side["subject"], side["prompt"], side["seed"], strict=True), side["reference"], strict=True)
    )
    scenes = [(ids[references[place]], own) for place, own in at.items() if place in references]
    worst = [shots[k] for k in _first_of_each(order, owners)]
    return Album(result.model, [f"{prefix}{name}" for name in names], worst, scenes[:LINES])


def _pictures(tables: Sequence[Table], albums: Sequence[Album], data: Manifest | None) -> dict[str, str]:
    """Return name -> picture of the listed images, without unreadable ones."""
    if data is None:
        return {}
    wanted = dict.fromkeys(c.at for table in tables for _, line in table.lines for c in line if c.at is not None)
    for album in albums:
        shots = [*album.worst, *(shot for _, own in album.scenes for shot in own.values())]
        wanted |= dict.fromkeys([*(row for row, _ in album.scenes), *(k for s in shots for k in (s.at, s.source))])
    limit, found = min(_SMALL, room(len(wanted))), {}

    for row in wanted:
        source = data.source(row)
        try:
            if source is not None:
                found[f"p{row}"] = data_uri(read_image(source), limit)
        except ImageReadError:
            continue

    return found
