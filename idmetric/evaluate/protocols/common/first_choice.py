"""Precision at 1 where each query ranks candidates of its own, by data sets of several meta-tasks: MVEB and MMEB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, plain, texts
from idmetric.evaluate.protocols.common.intervals import average, mean
from idmetric.evaluate.protocols.common.paper_numbers import printed
from idmetric.evaluate.protocols.common.ranked import Search, measure
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Scorer
from idmetric.evaluate.statistics.ranking import precision_at_1
from idmetric.metric.distance.ties import first_highest

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

P1 = "P@1"
IND, OOD = "IND", "OOD"  # in domain, out of domain


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's data sets.

    Attributes:
        name: in the table, and in lower case in `paper_numbers`.
        sets: meta-task -> its data sets, in their order; * = out of domain, for evaluation alone.
        other_names: further names of data sets, as `columns.plain` writes them.
    """

    name: str
    sets: Mapping[str, str]
    other_names: Mapping[str, str]

    @cached_property
    def task_of(self) -> dict[str, str]:
        """Data set -> its meta-task."""
        return {name.rstrip("*"): task for task, names in self.sets.items() for name in names.split()}

    @cached_property
    def out_of_domain(self) -> frozenset[str]:
        """Data sets that models are not trained on."""
        return frozenset(n.rstrip("*") for names in self.sets.values() for n in names.split() if n.endswith("*"))

    def known_name(self, dataset: str) -> str | None:
        """Its own name of a data set, such as "Cars196" for "mveb/cars_196"; None if it is not one of its sets."""
        wanted = plain(dataset.rpartition("/")[2])
        return self.other_names.get(wanted) or next((name for name in self.task_of if plain(name) == wanted), None)


@dataclass(frozen=True)
class Questions:
    """The questions of one data set; rows of the manifest.

    Attributes:
        dataset: its name, the benchmark's own where it has one. task: its meta-task; None if it is unknown.
        queries: (Q,). owner: (Q,), the units that intervals draw.
        candidates: the rows that each query ranks, Q arrays. right: which of them are right, Q arrays.
        pool: replaces these two if each query ranks all targets of the set.
    """

    dataset: str
    task: str | None
    queries: Ints
    owner: Ints
    candidates: Sequence[Ints] = ()
    right: Sequence[Truths] = ()
    pool: Search | None = None

    def rows(self) -> Ints:
        """All rows that are needed."""
        ranked = [self.pool.gallery] if self.pool is not None else self.candidates
        return np.unique(np.concatenate([self.queries, *ranked]))


def reads_words(model: Any) -> bool:
    """Whether a model embeds texts too."""
    return hasattr(model, "encode_items") or getattr(model, "reads_words", False)


def answers(scorer: Scorer, one: Questions) -> tuple[Array, Ints]:
    """1 for each question (Q,) with a right first candidate, else 0; and the row that comes first.

    NaN and -1 if a candidate has no score; of equally similar ones a wrong one comes first.
    """
    if one.pool is not None:
        found, near = measure(scorer, one.pool, {P1: precision_at_1})
        return found[P1], np.where(found[P1] == 1, near.right, near.wrong[:, 0])

    ends = np.cumsum([len(own) for own in one.candidates])
    scores = scorer.pairs(np.repeat(one.queries, np.diff(ends, prepend=0)), np.concatenate(one.candidates))
    won, first = np.full(len(ends), np.nan), np.full(len(ends), -1)
    for k, own in enumerate(np.split(scores, ends[:-1])):
        if np.isfinite(own).all():
            won[k] = precision_at_1(own, one.right[k])
            able = np.flatnonzero(one.right[k] == bool(won[k]))
            first[k] = one.candidates[k][able[first_highest(own[able])]]
    return won, first


def measure_sets(
    scorer: Scorer, data: Manifest, sets: Sequence[Questions], benchmark: Benchmark, settings: EvalSettings,
    paper: str | None, result: Result,
) -> None:  # fmt: skip
    """Add a row for each data set, the meta-tasks' means, in and out of domain, and all; the questions and notes.

    Args:
        paper: VisME's row to compare with.

    Raises:
        ValueError: if no question has an answer.
    """
    values: dict[str, Value] = {}
    ids, order = texts(data, "id"), list(benchmark.task_of)
    for one in sorted(sets, key=lambda q: order.index(q.dataset) if q.dataset in order else len(order)):
        won, first = answers(scorer, one)
        there = np.isfinite(won)
        if not there.all():
            result.notes.append(f"{one.dataset}: {int((~there).sum())} questions have no answer and are left out")
        if not there.any():
            continue
        value = values[one.dataset] = mean(won[there], one.owner[there], settings)
        domain = "-" if one.dataset not in order else OOD if one.dataset in benchmark.out_of_domain else IND
        result.rows.append({"task": one.task or "-", "domain": domain, "dataset": one.dataset, P1: value})
        result.keep("questions", dataset=[one.dataset] * int(there.sum()), id=ids[one.queries[there]],
                    found=ids[first[there]], **{P1: won[there]})  # fmt: skip

    if not values:
        raise ValueError("no question has an answer")
    strangers = [name for name in values if name not in order]
    if strangers:
        result.notes.append(f"not among {benchmark.name}'s sets, and in no mean over them: {', '.join(strangers)}")
    result.rows.extend(means(values, benchmark, paper))


def means(values: Mapping[str, Value], benchmark: Benchmark, paper: str | None) -> list[Row]:
    """Means over the sets of each meta-task, in and out of domain, and over all, without sets of other benchmarks.

    The paper's number is shown where all sets of the group were measured.
    """
    groups = {task: [name for name, own in benchmark.task_of.items() if own == task] for task in benchmark.sets}
    groups[IND] = [name for name in benchmark.task_of if name not in benchmark.out_of_domain]
    groups[OOD] = [name for name in benchmark.task_of if name in benchmark.out_of_domain]
    groups[benchmark.name] = list(benchmark.task_of)
    table = benchmark.name.lower()
    papers = printed("visme", table, paper) | printed("visme", f"{table}_domains", paper)
    rows: list[Row] = []
    for label, names in groups.items():
        found = [values[name] for name in names if name in values]
        if not found:
            continue
        complete = len(found) == len(names)
        value = average(found, papers.get(label) if complete else None)
        which = f"mean of {len(found)}" + ("" if complete else f" of {len(names)}")
        task, domain = (label, "-") if label in benchmark.sets else ("-", label)
        rows.append({"task": task, "domain": domain, "dataset": which, P1: value})
    return rows
