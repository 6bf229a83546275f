"""Finer-Personalization Rank: do generated images find their subject among real look-alikes? (arXiv 2512.19026)

    idmetric data import finer DreamBooth/ OminiControl/ -o finer.parquet
    idmetric eval finer --data finer.parquet --model tiny --model hf-hub:BVRA/MegaDescriptor-T-224 --out results/

Every generated image (split "query", the method in the column engine) is a query. It searches the real images of its
species (split "gallery", column category), among which those of its own identity are the positives. A method of high
similarity whose subjects cannot be told apart has a low mAP here. AP = sum over k of P(k) rel(k) / positives; 0 for a
query without a positive.

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
from idmetric.evaluate.protocols.common.ranked import Measure, Search, measure
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind
from idmetric.evaluate.statistics.ranking import average_precision, precision_at_1

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

REAL = "real photos"  # the method of the row that takes training images as queries
MEASURES: dict[str, Measure] = {"mAP": average_precision, "P@1": precision_at_1}


class Task(NamedTuple):
    """The queries of a method and species."""

    method: str
    species: str
    search: Search


def run(
    data: Manifest, models: Models, settings: EvalSettings = EvalSettings(), options: NoOptions = NoOptions()
) -> list[Result]:
    """A result for each model: a row for each method and species, and the means over species.

    Raises:
        ValueError: if there are no queries, one has no identity or species, or a species has no gallery.
    """
    tasks(data)  # before anything is embedded
    bound = bind(data, models, settings)
    found = tasks(bound.manifest)
    results = []
    for scorer, result in bound.results("finer", settings.as_dict(), _notes(found, bound.manifest)):
        rows = [_measure(scorer, bound.manifest, task, settings, result) for task in found]
        for method in dict.fromkeys(task.method for task in found):
            own = [row for row in rows if row["method"] == method]
            result.rows.extend(own)
            if len(own) > 1:  # each species has equal weight
                result.rows.append({"method": method, "species": "mean", **averages(own)})
        results.append(result)
    return results


def tasks(data: Manifest) -> list[Task]:
    """The searches of each method and species, in the manifest's order, real photos last."""
    split, species = texts(data, "split", ""), texts(data, "category", "")
    method = np.where(split == "train", REAL, texts(data, "engine", "generated"))
    queries, searched = np.isin(split, ("query", "train")), split == "gallery"

    if not queries.any() or not searched.any():
        there = ", ".join(map(repr, dict.fromkeys(split)))
        raise ValueError(f"split 'query' (or 'train') and split 'gallery' are needed; there are the splits {there}")
    lacking = queries & (~named(data) | (species == ""))
    if lacking.any():
        raise ValueError(f"queries without identity or category: {listed(texts(data, 'id')[lacking])}")

    found = []
    pairs = dict.fromkeys(zip(method[queries].tolist(), species[queries].tolist(), strict=True))
    for name, kind in sorted(pairs, key=lambda pair: pair[0] == REAL):
        own = np.flatnonzero(queries & (method == name) & (species == kind))
        near = np.flatnonzero(searched & (species == kind))
        if not len(near):
            raise ValueError(f"no gallery image has the category {kind!r} of {len(own)} queries of {name}")
        found.append(Task(name, kind, Search.of(data, own, near)))
    return found


def _notes(found: Sequence[Task], data: Manifest) -> list[str]:
    """Which queries count as 0."""
    lone = [row for task in found for row in task.search.queries[task.search.positives() == 0]]
    if not lone:
        return []
    names = listed(texts(data, "identity")[lone])
    return [f"{len(lone)} queries have no image of their identity in the gallery and count as 0: {names}"]


def _measure(scorer: Scorer, data: Manifest, task: Task, settings: EvalSettings, result: Result) -> Row:
    """The row of a task; its queries are kept."""
    queries, ids = task.search.queries, texts(data, "id")
    found, near = measure(scorer, task.search, MEASURES)
    values = {name: np.nan_to_num(of) for name, of in found.items()}
    labels = {"method": task.method, "species": task.species}
    result.keep("queries", **{name: [text] * len(queries) for name, text in labels.items()}, id=ids[queries],
                identity=texts(data, "identity")[queries], **values, **near.columns(ids))  # fmt: skip
    owner = task.search.identity[queries]
    return {**labels, **{name: mean(of, owner, settings) for name, of in values.items()}}


PROTOCOL = Protocol(
    name="finer",
    run=run,
    options=NoOptions,
)
