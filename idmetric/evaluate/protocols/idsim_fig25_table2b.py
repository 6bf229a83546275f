"""ID-Sim's benchmarks: PODS, DeepFashion2, AerialCattle2017, PetFace, CUTE and Subjects2k (section 4.2, appendix D.1).

    idmetric eval idsim --data pods.parquet --model dinov3_vitl16 --model hsv --out results/
    idmetric eval idsim --data cute.parquet --model dinov3_vitl16 --distance patch_pooled --out results/     Table 2b

The column dataset names a row's benchmark (or `--set NAME`); all benchmarks in the manifest are measured.
docs/protocols-idsim.md has sources, licenses and the papers' numbers (Fig. 25, Table 2b).

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
from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.look import UnreadableError
from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, texts
from idmetric.evaluate.protocols.common.intervals import any_statistic, auc, average, codes, mean, owners
from idmetric.evaluate.protocols.common.paper_numbers import PAPER_HELP, printed, row_of, rows
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Measure, Search, answerable, searched
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind, left_out
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.idsim.plan import BENCHMARKS, BenchmarkPlan, members, plans
from idmetric.evaluate.statistics.ranking import average_precision, ndcg, precision_at_1, roc_auc
from idmetric.metric.distance.ties import comparable
from idmetric.metric.files.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


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
    data: Manifest, models: Models, settings: EvalSettings = EvalSettings(), options: IDSimOptions = IDSimOptions()
) -> list[Result]:
    """A result for each model: a row for each benchmark, of PetFace also for each species and their mean.

    Raises:
        ValueError: naming a benchmark without queries, pairs or triplets, or with a query that has no positive (unless
            settings.on_error is "skip").
    """
    skip, notes = settings.on_error == "skip", list[str]()
    while True:
        made = plans(data, members(data, options.set), settings.seed)
        searches, lost = _searches(data, made, skip)  # before anything is embedded
        needed = np.unique(np.concatenate([side for plan in made.values() for side in plan.sides]))
        try:
            bound = bind(data, models, settings, needed)
            break
        except UnreadableError as error:
            if not skip:
                raise
            data = left_out(data, error, notes)

    notes += [*(note for plan in made.values() for note in plan.notes), *lost]
    results = []
    for scorer, result in bound.results("idsim", settings.as_dict(), notes):
        label = None if settings.look.masked else options.paper or row_of("idsim", result.signature.get("model", ""))
        one = _Model(scorer, data, settings, label, result)
        for benchmark, plan in made.items():
            if plan.kind == "search":
                one.search(benchmark, searches[benchmark])
            elif plan.kind == "pairs":
                one.pairs(benchmark, plan)
            else:
                one.triplets(benchmark, plan)
        results.append(result)

    return results


def _searches(data: Manifest, made: Mapping[str, BenchmarkPlan], skip: bool) -> tuple[dict[str, Search], list[str]]:
    """The searches over queries with a positive, and notes on queries without one."""
    found: dict[str, Search] = {}
    notes: list[str] = []
    for name, plan in made.items():
        if plan.kind == "search":
            found[name], lost = answerable(Search.of(data, *plan.sides), name, data.column("id"), skip=skip)
            notes += lost
    return found, notes


class _Model:
    """Adds the comparisons of one model to its result."""

    def __init__(self, scorer: Scorer, data: Manifest, settings: EvalSettings, row: str | None, result: Result) -> None:
        self.scorer, self.data, self.settings, self.result = scorer, data, settings, result
        table = TABLES.get(settings.distance)
        self.papers = printed("idsim", "table_2a", row) | (printed("idsim", table, row) if table else {})
        self.identity = codes(data.column("identity"))
        self.ids = texts(data, "id")

    def search(self, name: str, search: Search) -> None:
        """Measures of queries, and AUC over pairs of query and gallery."""
        found, near, both = searched(self.scorer, search, MEASURES, self.settings.seed)
        owner = search.identity[search.queries]
        row: Row = {"dataset": name}
        row |= {m: mean(v, owner, self.settings, self.papers.get((name, m))) for m, v in found.items()}
        ends = owners(search.identity, np.stack([both.a, both.b], 1))
        row |= auc(both.score, both.same, ends, self.settings, self.papers.get((name, "AUC")))
        self.result.rows.append(row)
        identity = texts(self.data, "identity")[search.queries]
        self.result.keep("queries", dataset=[name] * len(owner), id=self.ids[search.queries], identity=identity,
                         **found, **near.columns(self.ids))  # fmt: skip
        self.result.keep("pairs", dataset=[name] * len(both.a), a=self.ids[both.a], b=self.ids[both.b],
                         score=both.score, same=both.same)  # fmt: skip

    def pairs(self, name: str, plan: BenchmarkPlan) -> None:
        """Average precision and AUC of labeled pairs, for all and for each value of the benchmark's column."""
        assert plan.same is not None
        scores = self.scorer.pairs(*plan.sides)
        there = self._answered(name, scores)
        (a, b), scores, same = (side[there] for side in plan.sides), scores[there], plan.same[there]
        self.result.keep("pairs", dataset=[name] * len(a), a=self.ids[a], b=self.ids[b], score=scores, same=same)
        self.result.rows.append({"dataset": name, **self._of_pairs(name, scores, same, a, name)})
        by = BENCHMARKS[name].by
        kinds = texts(self.data, by)[a] if by else np.array([], object)
        several = [k for k in dict.fromkeys(kinds.tolist()) if k is not None]
        if len(several) > 1:
            own = [self._of_pairs(f"{name}, {k}", scores[kinds == k], same[kinds == k], a[kinds == k]) for k in several]
            self.result.rows.extend({"dataset": f"{name}, {k}", **row} for k, row in zip(several, own, strict=True))
            means = {metric: average([row[metric] for row in own], independent=False) for metric in own[0]}
            self.result.rows.append({"dataset": f"{name}, mean over {by}", **means})

    def _of_pairs(self, where: str, scores: Array, same: Truths, a: Ints, name: str = "") -> dict[str, Value]:
        if same.all() or not same.any():
            raise ValueError(f"{where}: pairs of one identity and of two are needed, got {len(same)} of one kind")
        owner = owners(self.identity, a)  # anchors' identities are drawn
        made = {"AP": average_precision, "AUC": roc_auc}
        return {
            metric: any_statistic(f, (scores, same), owner, self.settings, self.papers.get((name, metric)))
            for metric, f in made.items()
        }

    def triplets(self, name: str, plan: BenchmarkPlan) -> None:
        """Share of triplets with the anchor nearer to the positive; a tie loses."""
        near, far = (self.scorer.pairs(plan.sides[0], side) for side in plan.sides[1:])
        there = self._answered(name, near + far)
        anchor, positive, negative = (side[there] for side in plan.sides)
        near, far = near[there], far[there]
        won = (comparable(near - far) > 0).astype(np.float64)
        value = mean(won, owners(self.identity, anchor), self.settings, self.papers.get((name, "accuracy")))
        self.result.rows.append({"dataset": name, "accuracy": value})
        self.result.keep("triplets", dataset=[name] * len(near), anchor=self.ids[anchor], positive=self.ids[positive],
                         negative=self.ids[negative], near=near, far=far)  # fmt: skip

    def _answered(self, name: str, scores: Array) -> Truths:
        """Which comparisons have a score; a judge may have given none of some."""
        there = np.isfinite(scores)
        if not there.any():
            raise ValueError(f"{name}: none of {len(scores)} comparisons has an answer")
        if not there.all():
            lost = int((~there).sum())
            self.result.notes.append(f"{name}: {lost} of {len(scores)} comparisons have no answer and are left out")
        return there


PROTOCOL = Protocol(
    name="idsim",
    run=run,
    options=IDSimOptions,
    columns=COLUMNS,
)
