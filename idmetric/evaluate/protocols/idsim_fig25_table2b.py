"""ID-Sim's benchmarks: PODS, DeepFashion2, AerialCattle2017, PetFace, CUTE and Subjects2k (section 4.2, appendix D.1).

    idmetric eval idsim --data pods.parquet --model dinov3_vitl16 --model hsv --out results/
    idmetric eval idsim --data cute.parquet --model dinov3_vitl16 --distance patch_pooled --out results/     Table 2b

The column dataset names a row's benchmark (or `--set NAME`); all benchmarks in the manifest are measured.
docs/protocols/idsim.md has sources, licenses and the papers' numbers (Fig. 25, Table 2b).

* mAP is the mean over queries (macro) of `average_precision`. The paper averages "across each instance", which is the
  same on its sets: an instance has as many queries as any other.
* AUC of a search is over all pairs of a query and a gallery image. The paper does not say whether it pools pairs or
  averages queries.
* PetFace's "mAP" is read as average precision over all pairs; the mean over species has a separate row.
* Table 2b doesn't say how patches are compared. Its numbers stand next to every distance of patches alone: `patch`
  (Sinkhorn, as in training), `patch_pooled` (the release's) and `patch_biased`. The paper mentions no masks: with
  `--subject` its numbers are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths
from idmetric.evaluate.protocols.common.intervals import SHARE, any_statistic, auc, average, codes, mean, owners
from idmetric.evaluate.protocols.common.paper_numbers import PAPER_HELP, printed, row_of, rows
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Measure, Search, answerable, query_items, searched
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, answered, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.idsim.plan import BENCHMARKS, BenchmarkPlan, members, plans
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.ranking import average_precision, ndcg, precision_at_1, roc_auc
from idmetric.metric.ties import comparable

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class IDSimOptions(Checked):
    """Options of the protocol `idsim`."""

    set: str | None = option(None, "which benchmark all rows are (default: by dataset)", choices=tuple(BENCHMARKS))
    paper: str | None = option(None, PAPER_HELP, choices=rows("idsim", "fig_25", "table_2b", "table_2a"))


COLUMNS = {
    "nDCG": Column("normalized discounted cumulative gain, mean over queries, in 0..1"),
    "accuracy": Column("share of triplets with the positive nearer than the negative"),
}

# distance -> table; the paper does not say which distance of patches Table 2b uses
TABLES = {"cls": "fig_25", "patch": "table_2b", "patch_pooled": "table_2b", "patch_biased": "table_2b"}
MEASURES: dict[str, Measure] = {"mAP": average_precision, "nDCG": ndcg, "P@1": precision_at_1}


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: IDSimOptions = IDSimOptions(),
) -> list[Result]:
    """A result for each model: a row for each benchmark, of PetFace also for each species and their mean.

    Raises:
        ValueError: naming a benchmark without queries, pairs or triplets, or with a query that has no positive (unless
            settings.on_error is "skip").
    """

    def planned_of(data: DataFrame) -> dict[str, BenchmarkPlan]:
        return plans(data, members(data, options.set), settings.seed)

    def needed(data: DataFrame) -> Ints:
        planned = planned_of(data)
        _searches(data, planned, settings)  # before anything is embedded
        return np.unique(np.concatenate([side for plan in planned.values() for side in plan.sides]))

    bound = bind(data, models, settings, needed)
    data = bound.manifest
    planned = planned_of(data)
    searches, notes = _searches(data, planned, settings)
    results = []
    for scorer, result in bound.results("idsim", settings.as_dict(), notes):
        papers = _paper_values(options.paper, result, settings)
        bench = Bench(scorer, data, settings, papers, codes(data["identity"]), data["id"].to_numpy(), result)
        for benchmark, plan in planned.items():
            if plan.kind == "search":
                _add_search(bench, benchmark, searches[benchmark])
            elif plan.kind == "pairs":
                _add_pairs(bench, benchmark, plan)
            else:
                _add_triplets(bench, benchmark, plan)
        results.append(result)
    return results


def _searches(
    data: DataFrame,
    planned: Mapping[str, BenchmarkPlan],
    settings: EvalSettings,
) -> tuple[dict[str, Search], list[str]]:
    """The searches over queries with a positive, and notes on plans and on queries without one."""
    searches: dict[str, Search] = {}
    notes: list[str] = []
    for plan in planned.values():
        notes += plan.notes
    for name, plan in planned.items():
        if plan.kind == "search":
            search = Search.of(data, *plan.sides)
            searches[name], lost = answerable(search, name, data["id"], skip=settings.on_error == "skip")
            notes += lost
    return searches, notes


def _paper_values(row: str | None, result: Result, settings: EvalSettings) -> dict[tuple[str, str], float]:
    """Benchmark, column -> the paper's number."""
    if settings.look.masked:
        return {}
    row = row or row_of("idsim", result.signature.get("model", ""))
    values = printed("idsim", "table_2a", row)
    table = TABLES.get(settings.distance)
    return values if table is None else values | printed("idsim", table, row)


@dataclass(frozen=True)
class Bench:
    """One model on the rows of a manifest.

    Attributes:
        papers: benchmark, column -> the paper's number. identity: number of each row's identity. ids: of the rows.
        result: takes rows of the table, items and notes.
    """

    scorer: Scorer
    data: DataFrame
    settings: EvalSettings
    papers: Mapping[tuple[str, str], float]
    identity: Ints
    ids: NDArray[Any]
    result: Result


def _add_search(bench: Bench, name: str, search: Search) -> None:
    """Add measures of queries, and AUC over pairs of query and gallery."""
    measured, nearest, pairs = searched(bench.scorer, search, MEASURES, bench.settings.seed)
    owner = search.identity[search.queries]
    row: Row = {"dataset": name}
    for measure, values in measured.items():
        paper = bench.papers.get((name, measure))
        row[measure] = mean(values, owner, bench.settings, paper)
    pair_owners = owners(search.identity, np.stack([pairs.a, pairs.b], 1))
    row |= auc(pairs.score, pairs.same, pair_owners, bench.settings, bench.papers.get((name, "AUC")))
    bench.result.rows.append(row)

    bench.result.keep("queries", **query_items(bench.data, search, measured, nearest, dataset=name))
    _keep_pairs(bench, name, pairs.a, pairs.b, pairs.score, pairs.same)


def _keep_pairs(
    bench: Bench,
    name: str,
    a: Ints,
    b: Ints,
    scores: Array,
    same: Truths,
) -> None:
    bench.result.keep(
        "pairs",
        dataset=[name] * len(a),
        a=bench.ids[a],
        b=bench.ids[b],
        score=scores,
        same=same,
    )


def _add_pairs(bench: Bench, name: str, plan: BenchmarkPlan) -> None:
    """Add average precision and AUC of labeled pairs, of all and of each value of the benchmark's column."""
    assert plan.same is not None
    scores = bench.scorer.pairs(*plan.sides)
    has_score = answered(scores, name, bench.result.notes)
    a, b = (side[has_score] for side in plan.sides)
    scores = scores[has_score]
    same = plan.same[has_score]
    _keep_pairs(bench, name, a, b, scores, same)
    bench.result.rows.append({"dataset": name, **_pair_values(bench, name, scores, same, a, name)})

    by = BENCHMARKS[name].by
    if by is None:
        return
    kinds = bench.data[by][a]
    names = kinds.dropna().unique()
    if len(names) < 2:
        return
    rows = []
    for kind in names:
        is_kind = (kinds == kind).to_numpy()
        rows.append(_pair_values(bench, f"{name}, {kind}", scores[is_kind], same[is_kind], a[is_kind]))
        bench.result.rows.append({"dataset": f"{name}, {kind}", **rows[-1]})
    means = {column: average([row[column] for row in rows], independent=False) for column in rows[0]}
    bench.result.rows.append({"dataset": f"{name}, mean over {by}", **means})


def _pair_values(
    bench: Bench,
    where: str,
    scores: Array,
    same: Truths,
    anchors: Ints,
    paper_name: str = "",
) -> dict[str, Value]:
    """Average precision and AUC of pairs; the anchors' identities are drawn for the intervals."""
    if same.all() or not same.any():
        raise ValueError(f"{where}: pairs of one identity and of two are needed, got {len(same)} of one kind")
    owner = owners(bench.identity, anchors)
    values = {}
    for column, statistic in (("AP", average_precision), ("AUC", roc_auc)):
        paper = bench.papers.get((paper_name, column))
        values[column] = any_statistic(statistic, (scores, same), owner, bench.settings, paper, limits=SHARE)
    return values


def _add_triplets(bench: Bench, name: str, plan: BenchmarkPlan) -> None:
    """Add the share of triplets with the anchor nearer to the positive; a tie loses."""
    anchor, positive, negative = plan.sides
    to_positive = bench.scorer.pairs(anchor, positive)
    to_negative = bench.scorer.pairs(anchor, negative)
    has_score = answered(to_positive + to_negative, name, bench.result.notes)
    anchor, positive, negative = (side[has_score] for side in plan.sides)
    to_positive = to_positive[has_score]
    to_negative = to_negative[has_score]

    won = (comparable(to_positive - to_negative) > 0).astype(np.float64)
    paper = bench.papers.get((name, "accuracy"))
    value = mean(won, owners(bench.identity, anchor), bench.settings, paper)
    bench.result.rows.append({"dataset": name, "accuracy": value})
    bench.result.keep(
        "triplets",
        dataset=[name] * len(won),
        anchor=bench.ids[anchor],
        positive=bench.ids[positive],
        negative=bench.ids[negative],
        near=to_positive,
        far=to_negative,
    )


PROTOCOL = Protocol(
    name="idsim",
    run=run,
    options=IDSimOptions,
    columns=COLUMNS,
)
