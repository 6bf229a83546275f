"""ILIAS: retrieval of particular objects, mAP@1k (Kordopatis-Zilos et al., CVPR 2025, arXiv 2502.11748).

    idmetric data import ilias ilias/ --option taxonomy=misc/taxonomy.json -o ilias.parquet
    idmetric eval ilias --data ilias.parquet --model timm:vit_large_patch16_siglip_384.webli --out results/

Each query (split "query") searches the gallery (split "gallery"): the positives of all objects, and distractors without
an identity where there are any. AP@k = sum over the first k places of P(j) rel(j), over min(k, positives); oracle: the
share of a query's positives among the first k, which is the mAP@k of a perfect re-ranking if k >= positives.

A row for all queries, and the breakdowns of the released code (evaluation/src/dataset.py), where the manifest has their
columns, see docs/protocols/ilias.md. Positives of other groups of scale or clutter are left out of a ranking, and
the mean over a category is that over objects of the mean over their queries.

Intervals are by object. Equal scores share a place, as in scikit-learn's AP, which the released code calls. Where they
span place k, that code takes any of them, and this one their expected precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, Ints, known, own
from idmetric.evaluate.protocols.common.intervals import mean
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Found, Search, answerable, blocks, query_items, ranking
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.ranking import average_precision, precision_at_1, recall_at_k

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class ILIASOptions(Checked):
    """Options of the protocol `ilias`."""

    k: int = option(1000, "depth of mAP and of the oracle", least=1, metavar="K")


COLUMNS = {
    "oracle": Column("the mAP@k of a perfect re-ranking of the first k", 0),
}

# lower edges of the groups after the first: SCALE_GROUPS and CLUTTER_GROUPS of the released code
EDGES: dict[str, tuple[float, ...]] = {
    "scale": (0.06880213760855043, 0.13526567164179104, 0.2729876723163842),
    "clutter": (18, 33, 53),
}


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: ILIASOptions = ILIASOptions(),
) -> list[Result]:
    """A result for each model: a row for all queries, and a row for each group of the breakdowns.

    Raises:
        ValueError: without queries or gallery, or for a query without a positive (unless settings.on_error is "skip").
    """
    skip = settings.on_error == "skip"
    search_of(data, skip)  # before anything is embedded
    bound = bind(data, models, settings)
    search, notes = search_of(bound.manifest, skip)
    results = []
    for scorer, result in bound.results("ilias", {**settings.as_dict(), "k": options.k}, notes):
        _measure(scorer, bound.manifest, search, settings, options.k, result)
        results.append(result)
    return results


def search_of(data: DataFrame, skip: bool = False) -> tuple[Search, list[str]]:
    """The search of all queries with a positive, and a note on the others."""
    split = data["split"].fillna("")
    queries = np.flatnonzero(split == "query")
    gallery = np.flatnonzero(split == "gallery")
    if not len(queries) or not len(gallery):
        splits = ", ".join(map(repr, split.unique()))
        raise ValueError(f"splits 'query' and 'gallery' are needed (idmetric data import ilias); there are {splits}")
    unnamed = int(data["identity"][queries].isna().sum())
    if unnamed:
        raise ValueError(f"{unnamed} queries have no identity")
    return answerable(Search.of(data, queries, gallery), "ILIAS", data["identity"], skip=skip)


def _measure(
    scorer: Scorer,
    data: DataFrame,
    search: Search,
    settings: EvalSettings,
    k: int,
    result: Result,
) -> None:
    """Add the rows and the queries; the similarities are gone through once, block by block."""
    column = f"mAP@{k}"
    owner = search.identity[search.queries]
    precision = partial(average_precision, k=k)
    found = Found(search, {column: precision, "P@1": precision_at_1, "oracle": partial(recall_at_k, k=k)})
    group_of: dict[str, Ints] = {}  # breakdown -> group of each gallery image
    by_group: dict[tuple[str, int], Array] = {}  # breakdown and group -> AP of each query
    for name, edges in EDGES.items():
        group_of[name] = _binned(own(data, f"x_{name}"), edges)[search.gallery]
        for group in range(len(edges) + 1):
            by_group[name, group] = np.full(len(owner), np.nan)

    for block in blocks(scorer, search):
        found.add(block)
        lines = zip(block.scores, block.same, block.other, strict=True)
        for query, (scores, is_positive, is_negative) in enumerate(lines, block.part.start):
            positives = np.flatnonzero(is_positive)
            for name, groups in group_of.items():  # `_per_scale`, `_per_clutter` of ILIAS's evaluation/src/dataset.py
                groups_of_positives = groups[positives]
                for group in np.unique(groups_of_positives[groups_of_positives >= 0]).tolist():
                    group_positives = positives[groups_of_positives == group]
                    by_group[name, group][query] = precision(*ranking(scores, group_positives, is_negative))

    means = {name: mean(values, owner, settings) for name, values in found.values.items()}
    result.rows.append({"by": "all", "group": "all", **means})
    items: dict[str, list[float | None]] = {}
    for (name, group), values in by_group.items():
        has_value = ~np.isnan(values)
        if has_value.any():
            label = _label(name, group)
            value = mean(values[has_value], owner[has_value], settings)
            result.rows.append({"by": name, "group": label, column: value})
            items[f"{column}, {name} {label}"] = known(values)
    result.rows.extend(_categories(found.values[column], data, search, settings, column))

    result.keep("queries", **query_items(data, search, found.values, found.near), **items)


def _binned(values: list[float | str | None], edges: tuple[float, ...]) -> Ints:
    """Groups from 0 for values in [0, edge), [edge, next edge), ...; -1 for none, negative and NaN."""
    numbers = np.array([math.nan if value is None else float(value) for value in values])
    return np.where(numbers >= 0, np.searchsorted(edges, numbers, side="right"), -1)


def _label(breakdown: str, group: int) -> str:
    edges = EDGES[breakdown]
    if group == 0:
        return f"below {edges[0]:.3g}"
    if group == len(edges):
        return f"{edges[-1]:.3g} and more"
    return f"{edges[group - 1]:.3g} to {edges[group]:.3g}"


def _categories(
    precision: Array,
    data: DataFrame,
    search: Search,
    settings: EvalSettings,
    column: str,
) -> Iterator[Row]:
    """The mean over objects of their queries' mean, by category and by subcategory."""
    objects, first_queries, object_of = np.unique(
        search.identity[search.queries], return_index=True, return_inverse=True
    )
    sums = np.bincount(object_of.ravel(), precision)
    means = sums / np.bincount(object_of.ravel())
    rows = search.queries[first_queries]
    domain = data["domain"].to_numpy()[rows]
    category = data["category"].to_numpy()[rows]
    subcategory = np.empty(len(rows), object)
    for number, names in enumerate(zip(domain, category, strict=True)):
        subcategory[number] = None if None in names else "-".join(names)

    for by, group_names in (("category", domain), ("subcategory", subcategory)):
        for name in sorted({name for name in group_names if name is not None}):
            is_group = group_names == name
            yield {"by": by, "group": name, column: mean(means[is_group], objects[is_group], settings)}


PROTOCOL = Protocol(
    name="ilias",
    run=run,
    options=ILIASOptions,
    columns=COLUMNS,
)
