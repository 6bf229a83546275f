"""ILGen's retrieval benchmarks: mAP at each set's own depth (Table 2), against Tables 3 to 5.

    idmetric eval retrieval --data met.parquet --model timm:vit_large_patch16_siglip_384.webli --out results/

A query searches the database; its positives are the database images of its identity. docs/protocols-retrieval.md says
how splits or slots mark them; without either, every image of a known identity is a query against all others (SOP).

The column dataset names a row's benchmark, which sets the depth of mAP (`DEPTHS`; any other: `--k`) and the paper's
value. Revisited Oxford and Paris have Radenović's mAP, and each of several settings is a dataset: `roxford_medium`,
`roxford_hard`, `rparis_medium`, `rparis_hard`; "rop" is their mean, "avg" that of the paper's six columns. Images that
do not count for a query ("junk" there) are named in the query's `parameters` as `x_ignore`, a list of row ids.

The paper leaves the division of mAP@k open; here it is by min(k, positives), as the sets' own codes do
(`idmetric.evaluate.statistics.ranking.average_precision`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from idmetric.evaluate.protocols.common.columns import Ints, named, parameters, texts
from idmetric.evaluate.protocols.common.intervals import average, mean
from idmetric.evaluate.protocols.common.paper_numbers import PAPER_HELP, printed, row_of, rows
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Measure, Search, answerable, measure
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind
from idmetric.evaluate.statistics.ranking import average_precision, precision_at_1, trapezoid_average_precision
from idmetric.metric.files.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


@dataclass(frozen=True)
class RetrievalOptions(Checked):
    """Options of the protocol `retrieval`."""

    k: int | None = option(
        None, "depth of mAP for datasets not in ILGen's Table 2 (default: all)", least=1, metavar="K"
    )
    paper: str | None = option(None, PAPER_HELP, choices=rows("ilgen", "table_5"))


GALLERY = ("gallery", "database", "index")
DEPTHS: dict[str, int | None] = {"met": 100, "gldv2": 100, "sop": 100, "instre": None, "mini_ilias": 1000}  # Table 2
REVISITED = ("roxford", "rparis")


def run(
    data: Manifest,
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
    found, notes = tasks(bound.manifest, settings.on_error == "skip")
    about = {**settings.as_dict(), "k": options.k}
    results = []
    ids, identities = texts(bound.manifest, "id"), texts(bound.manifest, "identity")

    for scorer, result in bound.results("retrieval", about, notes):
        # a checkpoint of `idmetric train ilgen` does not name its training data: --paper does
        row = options.paper or row_of("retrieval", result.signature.get("model", ""))
        if settings.look.masked or settings.distance != "cls":
            row = None
        paper = printed("ilgen", "table_5", row)
        for name, search in found.items():
            label, measures = measures_of(name, options.k)
            values, near = measure(scorer, search, measures)
            owner = search.identity[search.queries]
            precision = mean(values["mAP"], owner, settings, paper.get(name))
            first = mean(values["P@1"], owner, settings)
            result.rows.append({"dataset": name, "measure": label, "mAP": precision, "P@1": first})
            result.keep("queries", dataset=[name] * len(owner), id=ids[search.queries],
                        identity=identities[search.queries], **values, **near.columns(ids))  # fmt: skip
        result.rows.extend(_summaries(result.rows, paper))
        results.append(result)

    return results


def tasks(data: Manifest, skip: bool = False) -> tuple[dict[str, Search], list[str]]:
    """The search of each dataset, and notes on queries that were left out; see this module's docstring."""
    names = texts(data, "dataset", "all")
    place = np.array([_place(*pair) for pair in zip(data.column("slot"), data.column("split"), strict=True)], object)
    known = named(data)
    found, notes = {}, []

    for name in dict.fromkeys(names):
        own = names == name
        queries, gallery = (np.flatnonzero(own & (place == which)) for which in ("query", "gallery"))
        said = bool(len(queries) or len(gallery))
        if not said:
            queries, gallery = np.flatnonzero(own & known), np.flatnonzero(own)
        if not len(queries) or not len(gallery):
            lacks = (
                "queries (slot or split 'query')" if len(gallery) else f"gallery (slot 'candidate', split {GALLERY})"
            )
            there = ", ".join(map(repr, dict.fromkeys(texts(data, "split")[own])))
            raise ValueError(f"dataset {name}: no {lacks}; there are the splits {there}")
        if not known[queries].all():
            raise ValueError(f"dataset {name}: {int((~known[queries]).sum())} queries have no identity")
        search = replace(Search.of(data, queries, gallery), ignored=_ignored(data, queries))
        found[name], lost = answerable(search, f"dataset {name}", data.column("identity"), skip=skip or not said)
        notes += lost

    return found, notes


def _place(slot: str | None, split: str | None) -> str | None:
    if slot is not None:
        return {"query": "query", "candidate": "gallery"}.get(slot)
    return "query" if split == "query" else "gallery" if split in GALLERY else None


def _ignored(data: Manifest, queries: Ints) -> dict[int, list[int]]:
    """Query row -> rows that do not count for it."""
    number = {name: row for row, name in enumerate(data.column("id"))}
    about = parameters(data)
    wanted = {row: about[row]["x_ignore"] for row in queries.tolist() if about[row].get("x_ignore") is not None}
    for row, names in wanted.items():
        missing = [name for name in names if name not in number]
        if missing:
            raise ValueError(f"row {row + 1}: x_ignore names {missing[0]!r}, but no row has this id")
    return {row: [number[name] for name in names] for row, names in wanted.items()}


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
    value = {str(row["dataset"]): v for row in rows if isinstance(v := row["mAP"], Value)}
    oxford, paris = ({n.removeprefix(start) for n in value if n.startswith(start)} for start in REVISITED)
    found: list[Row] = []
    papers = paper if oxford == {"_medium", "_hard"} else {}
    if oxford and oxford == paris:
        both = [value[start + setting] for start in REVISITED for setting in sorted(oxford)]
        value["rop"] = average(both, papers.get("rop"), independent=False)
        found.append({"dataset": "rop", "measure": f"mean of {len(both)}", "mAP": value["rop"]})

    six = [*DEPTHS, "rop"]
    if all(name in value for name in six):
        whole = average([value[name] for name in six], papers.get("avg"), independent=False)
        found.append({"dataset": "avg", "measure": "mean of the six", "mAP": whole})
    return found


PROTOCOL = Protocol(
    name="retrieval",
    run=run,
    options=RetrievalOptions,
)
