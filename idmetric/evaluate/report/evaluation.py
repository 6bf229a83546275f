"""The page of `idmetric eval --html`: verdict, table with intervals and the papers' values, plots, the hardest items.

See `idmetric.evaluate.report.render` for the common parts of all pages.
"""

from __future__ import annotations

import base64
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.grids import meanings_of
from idmetric.evaluate.protocols.common.protocol import has_verdict
from idmetric.evaluate.protocols.common.result import (
    Columns,
    Result,
    Value,
    footnotes,
    names_of,
    numbers_of,
    smoke_tests,
)
from idmetric.evaluate.report.page_pictures import PagePictures
from idmetric.evaluate.report.render import render
from idmetric.evaluate.report.verdict import verdict
from idmetric.metric.ties import comparable

if TYPE_CHECKING:
    from pandas import DataFrame

Items = dict[str, list[Any]]  # columns of plain values
LINES = 200  # of a list of items: the hardest
UNFOLDED = 20  # of these, the lines that are shown at first
_WARNING = "WARNING: "
_HEADS = {
    "id": "query", "right": "first right", "right_rank": "its rank", "wrong_1": "nearest wrong", "wrong_2": "second",
    "wrong_3": "third", "lowest": "identity", "worst": "worst image", "worst_score": "identity of the worst image",
}  # fmt: skip
PLOT_CAPTIONS = {
    "roc": "ROC", "oracle": "Part edits and the oracle", "sensitivity": "Sensitivity",
    "trends": "Similarity over growing changes",
    "pareto": "Pareto front of identity: the dashed line joins methods that no other beats in both; hollow: copies",
}  # fmt: skip


def eval_page(results: Sequence[Result], data: DataFrame | None = None, pictures: PagePictures | None = None) -> str:
    """Make the page of models under a protocol.

    Args:
        data: the manifest; items that are its images are listed with their pictures.
        pictures: those that were taken while the images were read; without, images are read for the page.

    Raises:
        ImportError: without jinja2 or matplotlib.
    """
    ids: dict[str, int] = {}
    if data is not None:
        ids = {name: row for row, name in enumerate(data["id"])}
    tables: list[HardestItems] = []
    verdicts, albums = [], []
    for result in results:
        tables += _tables(result, ids)
        judgment = verdict(result)
        if judgment is not None:
            verdicts.append(judgment)
            if ids:
                albums.append(_album(result, judgment.rows))

    metrics = names_of(results, Value)
    protocols = dict.fromkeys(result.protocol for result in results)
    protocol = ", ".join(protocols)
    warnings, notes = [], []
    for note in footnotes(results):
        if _WARNING in note:
            warnings.append(note.replace(_WARNING, "", 1))
        else:
            notes.append(note)

    owners: list[str] = []
    for album in albums:
        owners += album.owners
    for table in tables:
        owners += table.owners
    return render(
        "eval",
        ("theme.js", "eval.js"),
        pictures=_pictures(tables, albums, ids, data, pictures),
        protocol=protocol,
        models=[result.model for result in results],
        labels=names_of(results, str),
        metrics=metrics,
        printed=_with_papers(results),
        smoke=smoke_tests(results),
        results=results,
        says=meanings_of(metrics, protocol),
        verdicts=verdicts,
        warnings=warnings,
        notes=notes,
        plots=_plots(results),
        tables=tables,
        albums=albums,
        ids=ids,
        headings=_HEADS,
        unfolded=UNFOLDED,
        owners=list(dict.fromkeys(owners)),
    )


def _with_papers(results: Sequence[Result]) -> set[str]:
    """The metrics with a paper's value."""
    metrics = set()
    for result in results:
        for row in result.rows:
            for name, value in numbers_of(row).items():
                if value.paper is not None:
                    metrics.add(name)
    return metrics


def _plots(results: Sequence[Result]) -> list[dict[str, str]]:
    """Draw all plots that the items allow, as SVG data URIs; their files are plot.DATASET.KIND.svg or plot.KIND.svg."""
    from idmetric.evaluate.report.plots import draw

    plots = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for path in draw(results, Path(folder), "plot", "svg"):
            *dataset, kind = path.stem.removeprefix("plot.").rsplit(".", 1)
            caption = ", ".join([PLOT_CAPTIONS.get(kind, kind), *dataset])
            data = base64.b64encode(path.read_bytes()).decode("ascii")
            picture = f"data:image/svg+xml;base64,{data}"
            plots.append({"name": caption, "picture": picture})
    return plots


# Items


@dataclass(frozen=True)
class HardestItems:
    """A list of items of a model, the hardest first.

    Attributes:
        title, about: shown above the list; `about` names the order.
        columns: of all items. order: the items to show. names: the columns to show.
        images, numbers: the columns of images and of numbers.
        constant: name -> value of the columns with one value, which are not shown as columns.
    """

    model: str
    title: str
    about: str
    columns: Items
    order: list[int]
    names: list[str]
    images: list[str]
    numbers: list[str]
    constant: dict[str, Any]

    @property
    def owners(self) -> list[str]:
        """The methods of the items that are shown."""
        methods = self.columns.get("method")
        if not methods:
            return []
        return [str(methods[index]) for index in self.order]


def _tables(result: Result, ids: Mapping[str, int]) -> list[HardestItems]:
    """List the items of a result that name images of the data."""
    tables = []
    for title, columns in result.items.items():
        is_in_album = title in ("images", "side_by_side") and has_verdict(result.protocol)
        has_images = any(_are_images(values, ids) for values in columns.values())
        if has_images and not is_in_album:
            tables.append(_table(result.model, title, columns, ids))
    return tables


def _table(model: str, title: str, columns: Columns, ids: Mapping[str, int]) -> HardestItems:
    """The list of the columns' items; images come first, with their scores."""
    items: Items = {}
    for name, values in columns.items():
        values = [value.item() if isinstance(value, np.generic) else value for value in values]
        if any(isinstance(value, list | tuple | dict) for value in values):
            continue
        items[name] = values

    order, about = _hardest(items)
    count = len(next(iter(items.values())))
    shown = f"{len(order)} of {count}"
    if len(order) == count:
        shown = f"all {count}"

    images = [name for name, values in items.items() if _are_images(values, ids)]
    names, numbers, constant = [*images], [], {}
    for name, values in items.items():
        if name in images or name.removesuffix("_score") in images:
            continue
        if count > 1 and len(set(values)) == 1:
            constant[name] = values[0]
            continue
        names.append(name)
        if _is_numeric(values):
            numbers.append(name)
    return HardestItems(
        model=model,
        title=title,
        about=f"{shown}, {about}",
        columns=items,
        order=order,
        names=names,
        images=images,
        numbers=numbers,
        constant=constant,
    )


def _are_images(values: Sequence[Any], ids: Mapping[str, int]) -> bool:
    kinds = set(map(type, values)) - {NoneType}
    return kinds == {str} and set(values) - {None} <= ids.keys()


def _is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values are numbers or None."""
    kinds = set(map(type, values)) - {NoneType}
    return bool(kinds) and kinds <= {int, float}


def _hardest(columns: Columns) -> tuple[list[int], str]:
    """Return the items to show, in order, and their description."""
    if {"score", "same"} <= columns.keys():
        scores = comparable(columns["score"])
        same = np.asarray(columns["same"], dtype=bool)
        rising = np.argsort(scores, kind="stable")
        falling = np.argsort(-scores, kind="stable")
        count = LINES // 2
        least_similar = rising[same[rising]][:count].tolist()
        most_similar = falling[~same[falling]][:count].tolist()
        in_turn = chain(*zip_longest(least_similar, most_similar))
        order = [index for index in in_turn if index is not None]
        return order, "in turn the least similar of one identity and the most similar of two"

    if {"wrong_1_score", "right_score"} <= columns.keys():
        wrong = np.array(columns["wrong_1_score"], dtype=np.float64)
        right = np.array(columns["right_score"], dtype=np.float64)
        lead = comparable(wrong - right)
        order = np.argsort(-lead, kind="stable").tolist()  # NaN, without a wrong image, comes last
        return order[:LINES], "sorted by the nearest wrong image's similarity less that of the first right one"

    count = len(next(iter(columns.values())))
    numeric = [name for name, values in columns.items() if _is_numeric(values)]
    if not numeric:
        return list(range(min(count, LINES))), "in their order"
    name = numeric[0]
    values = np.array(columns[name], dtype=np.float64)
    order = np.argsort(comparable(values), kind="stable").tolist()
    heading = _HEADS.get(name, name)
    methods = columns.get("method", [None] * count)
    return _first_of_each(order, methods), f"lowest {heading} first"


def _first_of_each(order: Iterable[int], owners: Sequence[Any]) -> list[int]:
    """The first items in this order of each owner."""
    counts: Counter[Any] = Counter()
    shown = []
    for index in order:
        owner = owners[index]
        counts[owner] += 1
        if counts[owner] <= LINES:
            shown.append(index)
    return shown


# Images of methods


@dataclass(frozen=True)
class Shot:
    """An image of a method (`owner`), and the image that it copies or else the nearest reference (`source`).

    Attributes:
        caption: subject, prompt and seed in words.
    """

    name: str
    owner: str
    identity: float
    copy: bool
    source: str
    caption: str


@dataclass(frozen=True)
class MethodImages:
    """The images of methods: the worst, and for each place a reference and owner -> image.

    The lowest identity comes first, but each subject is shown once before one is shown again.
    """

    model: str
    owners: list[str]
    worst: list[Shot]
    scenes: list[tuple[str, dict[str, Shot]]]


def _album(result: Result, names: Iterable[str]) -> MethodImages:
    """The images of the methods of these names, the worst first."""
    items = result.items["images"]
    identities = items["identity"]
    copied = items.get("copied", [None] * len(identities))
    several_subjects = len(set(items["subject"])) > 1

    prompts = _prompts(items)
    shots = []
    scenes: dict[tuple[str, str, str], dict[str, Shot]] = {}
    for index in _each_subject_first(items["subject"], items["method"], identities):
        subject, prompt, seed = prompts[index]
        words = [prompt.replace("_", " "), f"seed {seed}"]
        if several_subjects:
            words.insert(0, subject)
        shot = Shot(
            name=items["image"][index],
            owner=items["method"][index],
            identity=identities[index],
            copy=copied[index] is not None,
            source=copied[index] or items["nearest"][index],
            caption=", ".join(filter(None, words)),
        )
        shots.append(shot)
        scene = scenes.setdefault(prompts[index], {})
        scene[shot.owner] = shot

    shot_owners = [shot.owner for shot in shots]
    worst = [shots[index] for index in _first_of_each(range(len(shots)), shot_owners)]
    side_by_side = []
    if "side_by_side" in result.items:
        items = result.items["side_by_side"]
        references = dict(zip(_prompts(items), items["reference"], strict=True))
        for key, scene in scenes.items():
            if key in references:
                side_by_side.append((references[key], scene))
    return MethodImages(result.model, list(names), worst, side_by_side[:LINES])


def _each_subject_first(subjects: Sequence[str], owners: Sequence[Any], identities: Sequence[float]) -> list[int]:
    """The images by identity, the lowest first, in three parts.

    The lowest image of each subject; those of each subject by a method, which lead if only its images are
    shown; the others.
    """
    shown_subjects: set[str] = set()
    shown_pairs: set[tuple[str, Any]] = set()
    of_subjects, of_pairs, repeated = [], [], []
    for index in np.argsort(comparable(identities), kind="stable").tolist():
        subject = subjects[index]
        pair = subject, owners[index]
        if subject not in shown_subjects:
            of_subjects.append(index)
        elif pair not in shown_pairs:
            of_pairs.append(index)
        else:
            repeated.append(index)
        shown_subjects.add(subject)
        shown_pairs.add(pair)
    return of_subjects + of_pairs + repeated


def _prompts(items: Columns) -> list[tuple[str, str, str]]:
    """Subject, prompt and seed of each item."""
    return list(zip(items["subject"], items["prompt"], items["seed"], strict=True))


def _pictures(
    tables: Sequence[HardestItems],
    albums: Sequence[MethodImages],
    ids: Mapping[str, int],
    data: DataFrame | None,
    taken: PagePictures | None,
) -> dict[str, str]:
    """Return "p" and row -> picture of the listed images, without unreadable ones."""
    if data is None:
        return {}
    listed: list[str | None] = []
    for table in tables:
        for index in table.order:
            listed += [table.columns[name][index] for name in table.images]
    for album in albums:
        shots = [*album.worst]
        for reference, scene in album.scenes:
            listed.append(reference)
            shots += scene.values()
        for shot in shots:
            listed += [shot.name, shot.source]

    rows = dict.fromkeys(ids[name] for name in listed if name is not None)
    page_pictures = taken or PagePictures(len(rows))
    pictures = {}
    for row in rows:
        path = data["path"][row]
        uri = None if path is None else page_pictures.uri(path)
        if uri is not None:
            pictures[f"p{row}"] = uri
    return pictures
