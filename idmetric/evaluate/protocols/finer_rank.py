"""Finer-Personalization Rank: do generated images find their subject among real look-alikes? (arXiv 2512.19026)

    idmetric data import finer DreamBooth/ OminiControl/ -o finer.parquet
    idmetric eval finer --data finer.parquet --model tiny --model hf-hub:BVRA/MegaDescriptor-T-224 --out results/

Every generated image (split "query", the method in the column engine) is a query. It searches the real images of its
species (split "gallery", column category), among which those of its own identity are the positives. A method of high
similarity with subjects that cannot be told apart has a low mAP here. AP = sum over k of P(k) rel(k) / positives; 0 for
a query without a positive.

A row for each method and species, and with several species the method's mean over them. The method "real photos" takes
the images that the generators learned from as queries (split "train"), and so shows what generated images could reach.
Intervals are by identity. The released code (evaluation/Evaluate.py) orders equal scores by chance, and here they share
a place (`idmetric.evaluate.statistics.ranking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from idmetric.evaluate.protocols.common.columns import listed, named, texts
from idmetric.evaluate.protocols.common.intervals import averages, mean
from idmetric.evaluate.protocols.common.protocol import NoOptions, Protocol
from idmetric.evaluate.protocols.common.ranked import Measure, Search, measure, query_items
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind
from idmetric.evaluate.statistics.ranking import average_precision, precision_at_1

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

REAL = "real photos"  # the method of the row that takes training images as queries
MEASURES: dict[str, Measure] = {"mAP": average_precision, "P@1": precision_at_1}


class RankTask(NamedTuple):
    """The queries of a method and species."""

    method: str
    species: str
    search: Search


def run(
    data: Manifest,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: NoOptions = NoOptions(),
) -> list[Result]:
    """A result for each model: a row for each method and species, and the means over species.

    Raises:
        ValueError: if there are no queries, one has no identity or species, or a species has no gallery.
    """
    tasks(data)  # before anything is embedded
    bound = bind(data, models, settings)
    all_tasks = tasks(bound.manifest)
    notes = _notes(all_tasks, bound.manifest)
    results = []
    for scorer, result in bound.results("finer", settings.as_dict(), notes):
        rows_of_methods: dict[str, list[Row]] = {}
        for task in all_tasks:
            row = _measure(scorer, bound.manifest, task, settings, result)
            rows_of_methods.setdefault(task.method, []).append(row)
        for method, rows in rows_of_methods.items():
            result.rows.extend(rows)
            if len(rows) > 1:  # each species has equal weight
                result.rows.append({"method": method, "species": "mean", **averages(rows)})
        results.append(result)
    return results


def tasks(data: Manifest) -> list[RankTask]:
    """The searches of each method and species, in the manifest's order, real photos last."""
    split = texts(data, "split", "")
    species = texts(data, "category", "")
    method = np.where(split == "train", REAL, texts(data, "engine", "generated"))
    is_query = np.isin(split, ("query", "train"))
    in_gallery = split == "gallery"

    if not is_query.any() or not in_gallery.any():
        splits = ", ".join(map(repr, dict.fromkeys(split)))
        raise ValueError(f"split 'query' (or 'train') and split 'gallery' are needed; there are the splits {splits}")
    is_incomplete = is_query & (~named(data) | (species == ""))
    if is_incomplete.any():
        raise ValueError(f"queries without identity or category: {listed(texts(data, 'id')[is_incomplete])}")

    searches = []
    methods, kinds = method[is_query].tolist(), species[is_query].tolist()
    pairs = dict.fromkeys(zip(methods, kinds, strict=True))
    for name, kind in sorted(pairs, key=lambda pair: pair[0] == REAL):
        queries = np.flatnonzero(is_query & (method == name) & (species == kind))
        gallery = np.flatnonzero(in_gallery & (species == kind))
        if not len(gallery):
            raise ValueError(f"no gallery image has the category {kind!r} of {len(queries)} queries of {name}")
        searches.append(RankTask(name, kind, Search.of(data, queries, gallery)))
    return searches


def _notes(all_tasks: Sequence[RankTask], data: Manifest) -> list[str]:
    """Which queries count as 0."""
    without: list[int] = []
    for task in all_tasks:
        has_positive = task.search.positives() > 0
        without.extend(task.search.queries[~has_positive])
    if not without:
        return []
    names = listed(texts(data, "identity")[without])
    return [f"{len(without)} queries have no image of their identity in the gallery and count as 0: {names}"]


def _measure(
    scorer: Scorer,
    data: Manifest,
    task: RankTask,
    settings: EvalSettings,
    result: Result,
) -> Row:
    """The row of a task; adds its queries to the result."""
    owner = task.search.identity[task.search.queries]
    measured, nearest = measure(scorer, task.search, MEASURES)
    row: Row = {"method": task.method, "species": task.species}
    for name, values in measured.items():
        measured[name] = np.nan_to_num(values)
        row[name] = mean(measured[name], owner, settings)
    columns = query_items(data, task.search, measured, nearest, method=task.method, species=task.species)
    result.keep("queries", **columns)
    return row


PROTOCOL = Protocol(
    name="finer",
    run=run,
    options=NoOptions,
)
