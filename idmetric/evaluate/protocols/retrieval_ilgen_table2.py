"""ILGen's retrieval benchmarks: mAP at each set's own depth (Table 2), against Tables 3 to 5.

    idmetric eval retrieval --data met.parquet --model timm:vit_large_patch16_siglip_384.webli --out results/

A query searches the database; its positives are the database images of its identity. docs/protocols/retrieval.md says
how splits or slots mark them; without either, every image of a known identity is a query against all others (SOP).

The column dataset names a row's benchmark, which sets the depth of mAP (any other: `--k`) and the paper's
value. Revisited Oxford and Paris have Radenović's mAP, and each of several settings is a dataset: `roxford_medium`,
`roxford_hard`, `rparis_medium`, `rparis_hard`; "rop" is their mean, "avg" that of the paper's six columns. Images that
do not count for a query ("junk" there) are named in the query's `parameters` as `x_ignore`, a list of row ids.

The paper leaves the division of mAP@k open; here it is by min(k, positives), as the sets' own codes do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from idmetric.evaluate.protocols.common.columns import Ints, listed, parameters
from idmetric.evaluate.protocols.common.intervals import average, mean
from idmetric.evaluate.protocols.common.paper_numbers import PAPER_HELP, printed, row_of, rows
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Measure, Search, answerable, measure, query_items
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.ranking import average_precision, precision_at_1, trapezoid_average_precision

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class RetrievalOptions(Checked):
    """Options of the protocol `retrieval`."""

    k: int | None = option(
        None, "depth of mAP for datasets not in ILGen's Table 2 (default: all)", least=1, metavar="K"
    )
    paper: str | None = option(None, PAPER_HELP, choices=rows("ilgen", "table_5"))


DEPTHS: dict[str, int | None] = {"met": 100, "gldv2": 100, "sop": 100, "instre": None, "mini_ilias": 1000}  # Table 2
REVISITED = ("roxford", "rparis")


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: RetrievalOptions = RetrievalOptions(),
) -> list[Result]:
    """A result for each model: a row for each dataset, ROP, and the mean of the paper's six columns.

    Raises:
        ValueError: for a query without a positive (unless settings.on_error is "skip"), naming them, or a dataset with
            queries and no gallery.
    """
    tasks(data, settings.on_error == "skip")  # before anything is embedded
    bound = bind(data, models, settings)
    searches, notes = tasks(bound.manifest, settings.on_error == "skip")
    about = {**settings.as_dict(), "k": options.k}
    results = []
    for scorer, result in bound.results("retrieval", about, notes):
        # a checkpoint of `idmetric train ilgen` does not name its training data: --paper does
        row = options.paper or row_of("retrieval", result.signature.get("model", ""))
        if settings.look.masked or settings.distance != "cls":
            row = None
        paper = printed("ilgen", "table_5", row)
        for name, search in searches.items():
            label, measures = measures_of(name, options.k)
            values, near = measure(scorer, search, measures)
            owner = search.identity[search.queries]
            precision = mean(values["mAP"], owner, settings, paper.get(name))
            first = mean(values["P@1"], owner, settings)
            result.rows.append({"dataset": name, "measure": label, "mAP": precision, "P@1": first})
            result.keep("queries", **query_items(bound.manifest, search, values, near, dataset=name))
        result.rows.extend(_summaries(result.rows, paper))
        results.append(result)

    return results


def tasks(data: DataFrame, skip: bool = False) -> tuple[dict[str, Search], list[str]]:
    """The search of each dataset, and notes on queries that were left out; see this module's docstring."""
    names = data["dataset"].fillna("all")
    part = data["slot"].map({"query": "query", "candidate": "gallery"})
    part = part.where(data["slot"].notna(), data["split"])  # rows without a slot are of their split
    is_query = part == "query"
    in_gallery = part == "gallery"
    has_identity = data["identity"].notna()
    searches = {}
    notes: list[str] = []
    for name in names.unique():
        is_own = names == name
        queries = np.flatnonzero(is_own & is_query)
        gallery = np.flatnonzero(is_own & in_gallery)
        has_parts = bool(len(queries) or len(gallery))
        if not has_parts:  # every image searches all others
            other_splits = sorted(data["split"][is_own].dropna().unique())
            if other_splits:
                notes.append(
                    f"dataset {name}: no split of {listed(other_splits)} is query or gallery: all images search all"
                )
            queries = np.flatnonzero(is_own & has_identity)
            gallery = np.flatnonzero(is_own)
        if not len(queries) or not len(gallery):
            missing = "queries (slot or split 'query')"
            if len(queries):
                missing = "gallery (slot 'candidate', split 'gallery')"
            splits = ", ".join(map(repr, data["split"][is_own].unique()))
            raise ValueError(f"dataset {name}: no {missing}; there are the splits {splits}")
        unnamed = int((~has_identity[queries]).sum())
        if unnamed:
            raise ValueError(f"dataset {name}: {unnamed} queries have no identity")

        search = Search.of(data, queries, gallery)
        search = replace(search, ignored=_ignored(data, queries))
        skip_lost = skip or not has_parts
        searches[name], lost = answerable(search, f"dataset {name}", data["identity"], skip=skip_lost)
        notes += lost
    return searches, notes


def _ignored(data: DataFrame, queries: Ints) -> dict[int, list[int]]:
    """Query row -> rows that do not count for it."""
    from idmetric.data.manifest import text_of  # loads pandas, which the help does without

    row_of = {name: row for row, name in enumerate(data["id"])}
    about = parameters(data)
    ignored: dict[int, list[int]] = {}
    for row in queries.tolist():
        names = about[row].get("x_ignore")
        if names is None:
            continue
        if not isinstance(names, list):
            names = [names]
        ignored[row] = []
        for name in names:
            try:
                ignored[row].append(row_of[text_of(name)])
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"row {row + 1}: x_ignore names {name!r}, but no row has this id") from None
    return ignored


def measures_of(dataset: str, k: int | None) -> tuple[str, dict[str, Measure]]:
    """Name and functions of a dataset's measures: the paper's (Table 2), or mAP@k."""
    if dataset.startswith(REVISITED):
        return "mAP, trapezoids", {"mAP": trapezoid_average_precision, "P@1": precision_at_1}
    depth = DEPTHS.get(dataset, k)
    label = "mAP" if depth is None else f"mAP@{depth}"
    return label, {"mAP": partial(average_precision, k=depth), "P@1": precision_at_1}


def _summaries(rows: Sequence[Row], paper: Mapping[str, float]) -> list[Row]:
    """ROP, if Oxford and Paris are present in the same settings, and the mean of the paper's six columns.

    The paper's value stands next to ROP only if it covers medium and hard.
    """
    values = {str(row["dataset"]): row["mAP"] for row in rows if isinstance(row["mAP"], Value)}
    oxford, paris = REVISITED
    oxford_settings = {name.removeprefix(oxford) for name in values if name.startswith(oxford)}
    paris_settings = {name.removeprefix(paris) for name in values if name.startswith(paris)}
    has_both = oxford_settings == {"_medium", "_hard"}
    summaries: list[Row] = []
    if oxford_settings and oxford_settings == paris_settings:
        parts = [values[dataset + setting] for dataset, setting in product(REVISITED, sorted(oxford_settings))]
        paper_value = paper.get("rop") if has_both else None
        values["rop"] = average(parts, paper_value, independent=False)
        summaries.append({"dataset": "rop", "measure": f"mean of {len(parts)}", "mAP": values["rop"]})

    six = [*DEPTHS, "rop"]
    if all(name in values for name in six):
        paper_value = paper.get("avg") if has_both else None
        mean_of_six = average([values[name] for name in six], paper_value, independent=False)
        summaries.append({"dataset": "avg", "measure": "mean of the six", "mAP": mean_of_six})
    return summaries


PROTOCOL = Protocol(
    name="retrieval",
    run=run,
    options=RetrievalOptions,
)
