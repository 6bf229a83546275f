"""ILIAS: retrieval of particular objects, mAP@1k (Kordopatis-Zilos et al., CVPR 2025, arXiv 2502.11748).

    idmetric data import ilias ilias/ --option taxonomy=misc/taxonomy.json -o ilias.parquet
    idmetric eval ilias --data ilias.parquet --model timm:vit_large_patch16_siglip_384.webli --out results/

Each query (split "query") searches the gallery (split "gallery"): the positives of all objects, and distractors without
an identity where there are any.

| column | meaning |
|---|---|
| mAP@k | mean over queries of AP@k = sum over the first k places of P(j) rel(j), over min(k, positives) |
| P@1 | share of queries with the nearest image of their object |
| oracle | share of a query's positives among the first k, averaged: mAP@k of a perfect re-ranking, if k >= positives |

A row for all queries, and the breakdowns of the released code (evaluation/src/dataset.py), where the manifest has their
columns:

- scale and clutter (x_scale, x_clutter): groups of positives, with the published edges. The mean is over the queries
  with a positive in the group; positives of other groups are left out of the ranking.
- category (domain) and subcategory (domain and category): the mean over objects of the mean over their queries.

Intervals are by object. `--scores FILE.json` keeps {query: {image: score}} by ILIAS's ids for its own evaluate.py: of
each query the first k, and as many more as an object has positives, so that its breakdowns see k places as well.

Equal scores share a place, as in scikit-learn's AP, which the released code calls. Where they span place k, that code
takes any of them, and this one their expected precision (`idmetric.evaluate.ranking.average_precision`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import STEP, comparable
from idmetric.evaluate.ranking import average_precision, precision_at_1, recall_at_k
from idmetric.io import json_file
from idmetric.io.output import check, replacing
from idmetric.protocols.common.columns import Array, Ints, Truths, free, known, named, texts
from idmetric.protocols.common.intervals import mean
from idmetric.protocols.common.ranked import Block, Found, Measure, Search, answerable, blocks
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Models, Scorer, Settings, bind
from idmetric.protocols.options import ILIASOptions

# lower edges of the groups after the first: SCALE_GROUPS and CLUTTER_GROUPS of the released code
EDGES: dict[str, tuple[float, ...]] = {
    "scale": (0.06880213760855043, 0.13526567164179104, 0.2729876723163842),
    "clutter": (18, 33, 53),
}


def run(
    data: Manifest, models: Models, settings: Settings = Settings(), options: ILIASOptions = ILIASOptions()
) -> list[Result]:
    """A result for each model: a row for all queries, and a row for each group of the breakdowns.

    Raises:
        ValueError: without queries or gallery, for a query without a positive (unless settings.on_error is "skip"), or
            for a file of scores of several models.
        OutputError: if the file of scores cannot be written.
        UnreadableError: see `scorers.bind`.
    """
    if options.scores is not None:
        if len(models) != 1:
            raise ValueError(f"--scores keeps the scores of one model, and {len(models)} are given")
        check(options.scores)

    skip = settings.on_error == "skip"
    search_of(data, skip)  # before anything is embedded
    bound = bind(data, models, settings)
    search, notes = search_of(bound.manifest, skip)
    about = {**settings.as_dict(), "k": options.k}
    results = []
    for scorer, result in bound.results("ilias", about, notes):
        found = _searched(scorer, bound.manifest, search, options)
        _rows(found, bound.manifest, search, settings, options.k, result)
        if options.scores is not None:
            _write_scores(found.top, texts(bound.manifest, "id"), texts(bound.manifest, "dataset", ""), options.scores)
        results.append(result)
    return results


def search_of(data: Manifest, skip: bool = False) -> tuple[Search, list[str]]:
    """The search of all queries with a positive, and a note on the others."""
    split = texts(data, "split", "")
    queries, gallery = np.flatnonzero(split == "query"), np.flatnonzero(split == "gallery")
    if not len(queries) or not len(gallery):
        there = ", ".join(map(repr, dict.fromkeys(split)))
        raise ValueError(f"splits 'query' and 'gallery' are needed (idmetric data import ilias); there are {there}")
    lone = ~named(data)[queries]
    if lone.any():
        raise ValueError(f"{lone.sum()} queries have no identity")
    return answerable(Search.of(data, queries, gallery), "ILIAS", data.column("identity"), skip=skip)


# Groups of positives


def groups_of(data: Manifest) -> dict[str, Ints]:
    """Breakdown -> the number of each row's group (N,), -1 for rows without one; breakdowns of no row are left out."""
    found = {name: _binned(free(data, name), edges) for name, edges in EDGES.items()}
    return {name: numbers for name, numbers in found.items() if (numbers >= 0).any()}


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


def grouped_average_precision(scores: Array, relevant: Truths, groups: Ints, k: int) -> dict[int, float]:
    """AP@k of a query for the positives of each group, without the positives of other groups in its ranking.

    `_per_scale` and `_per_clutter` of ILIAS's evaluation/src/dataset.py.

    Args:
        scores: (N,). relevant: bool (N,).
        groups: (N,), of the relevant items; the others' are not looked at. Items of group -1 belong to none.

    Returns:
        Group -> AP@k in [0, 1], for the groups that the query has.
    """
    found = {}
    for group in np.unique(groups[relevant]).tolist():
        if group >= 0:
            kept = ~relevant | (groups == group)
            found[group] = average_precision(scores[kept], relevant[kept], k)
    return found


# Search


@dataclass
class _Scores:
    """The measures of each query (Q,); `grouped` is by breakdown and group, NaN where a query has no positive."""

    values: dict[str, Array]
    first: Found
    grouped: dict[tuple[str, int], Array] = field(default_factory=dict)
    top: dict[int, tuple[Ints, Array]] = field(default_factory=dict)  # query row -> rows and scores


def _searched(scorer: Scorer, data: Manifest, search: Search, options: ILIASOptions) -> _Scores:
    """Go through the similarities once, block by block."""
    k, positives = options.k, search.positives()
    measures: dict[str, Measure] = {
        f"mAP@{k}": partial(average_precision, k=k), "P@1": precision_at_1, "oracle": partial(recall_at_k, k=k),
    }  # fmt: skip
    groups = {name: numbers[search.gallery] for name, numbers in groups_of(data).items()}
    found = _Scores({name: np.empty(len(search.queries)) for name in measures}, Found(search, {}))

    for block in blocks(scorer, search):
        numbers = np.arange(block.part.start, block.part.stop)
        found.first.add(block, numbers)
        for at, number in enumerate(numbers.tolist()):
            near = _nearest(block, at, k + int(positives.max()))
            # only these can change a measure: positives after place k count among all positives
            own = np.union1d(near, block.own[at])
            scores, relevant = block.scores[at, own], np.isin(own, block.own[at])
            for name, one in measures.items():
                found.values[name][number] = one(scores, relevant)
            for name, group in groups.items():
                for place, value in grouped_average_precision(scores, relevant, group[own], k).items():
                    column = found.grouped.setdefault((name, place), np.full(len(search.queries), np.nan))
                    column[number] = value
            if options.scores is not None:
                found.top[int(search.queries[number])] = search.gallery[near], block.scores[at, near]

    return found


def _nearest(block: Block, at: int, count: int) -> Ints:
    """Places of the `count` gallery images nearest to a block's query, and of those as near as the last of them.

    Those with NaN are among them, for the measures to refuse.
    """
    scores = block.scores[at].copy()
    scores[block.hidden[at]] = -np.inf
    least = -np.inf if count >= len(scores) else np.partition(scores, len(scores) - count)[len(scores) - count]
    nearest = ~(scores < least - 2 * STEP)  # equal ones are among them; measures round
    nearest[block.hidden[at]] = False
    return np.flatnonzero(nearest)


# Rows


def _rows(found: _Scores, data: Manifest, search: Search, settings: Settings, k: int, result: Result) -> None:
    values, owner = found.values, search.identity[search.queries]
    column = f"mAP@{k}"
    whole = {name: mean(of, owner, settings) for name, of in values.items()}
    result.rows.append({"by": "all", "group": "all", **whole})

    order = {name: place for place, name in enumerate(EDGES)}
    items: dict[str, list[float | None]] = {}
    for (name, group), of in sorted(found.grouped.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        has, label = ~np.isnan(of), _label(name, group)
        result.rows.append({"by": name, "group": label, column: mean(of[has], owner[has], settings)})
        items[f"{column}, {name} {label}"] = known(of)
    result.rows.extend(_categories(values[column], data, search, settings, column))

    ids, identities = texts(data, "id"), texts(data, "identity")
    near = found.first.near.columns(ids)
    result.keep("queries", id=ids[search.queries], identity=identities[search.queries], **values, **items, **near)


def _categories(precision: Array, data: Manifest, search: Search, settings: Settings, column: str) -> Iterator[Row]:
    """The mean over objects of their queries' mean, by category and by subcategory."""
    objects, place, counts = np.unique(search.identity[search.queries], return_inverse=True, return_counts=True)
    means = np.bincount(place.ravel(), precision) / counts
    first = search.queries[np.unique(place.ravel(), return_index=True)[1]]
    domain, category = texts(data, "domain")[first], texts(data, "category")[first]
    both = np.array([None if None in pair else "-".join(pair) for pair in zip(domain, category, strict=True)], object)

    for by, names in (("category", domain), ("subcategory", both)):
        for name in sorted({name for name in names if name is not None}):
            own = names == name
            value: Value = mean(means[own], objects[own], settings)
            yield {"by": by, "group": name, column: value}


# Scores


def _write_scores(top: Mapping[int, tuple[Ints, Array]], ids: np.ndarray, datasets: np.ndarray, file: Path) -> None:
    """Write {query: {image: score}}, nearest first, query by query; ids lose their dataset's name."""

    def name(row: int) -> str:
        return str(ids[row]).removeprefix(f"{datasets[row]}/")

    with replacing(file) as temporary, temporary.open("w", encoding="utf-8") as out:
        for number, (query, (rows, scores)) in enumerate(top.items()):
            order = np.argsort(-comparable(scores), kind="stable")
            near = {name(int(rows[k])): float(scores[k]) for k in order}
            out.write(f"{',' if number else '{'}\n{json_file.text(name(query))}: {json_file.text(near)}")
        out.write("\n}\n")
