"""Precision at 1 where each query ranks candidates of its own, by data sets of several meta-tasks: MVEB and MMEB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, plain
from idmetric.evaluate.protocols.common.intervals import average, mean
from idmetric.evaluate.protocols.common.paper_numbers import printed
from idmetric.evaluate.protocols.common.ranked import Search, measure
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Model, Scorer
from idmetric.evaluate.statistics.checks import first_highest
from idmetric.evaluate.statistics.ranking import precision_at_1

if TYPE_CHECKING:
    from pandas import DataFrame

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
        tasks: dict[str, str] = {}
        for task, names in self.sets.items():
            tasks |= dict.fromkeys(names.replace("*", "").split(), task)
        return tasks

    def domain(self, dataset: str) -> str:
        """Of one of its data sets."""
        names = " ".join(self.sets.values()).split()
        return OOD if f"{dataset}*" in names else IND

    def known_name(self, dataset: str) -> str | None:
        """Its own name of a data set, such as "Cars196" for "mveb/cars_196"; None if it is not one of its sets."""
        wanted = plain(dataset.rpartition("/")[2])
        by_plain_name = {plain(name): name for name in self.task_of}
        return self.other_names.get(wanted) or by_plain_name.get(wanted)


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
        ranked = self.candidates
        if self.pool is not None:
            ranked = [self.pool.gallery]
        return np.unique(np.concatenate([self.queries, *ranked]))


def reads_words(model: Model) -> bool:
    """Whether a model embeds texts too."""
    return getattr(model, "reads_words", False)


def answers(scorer: Scorer, questions: Questions) -> tuple[Array, Ints]:
    """1 for each question (Q,) with a right first candidate, else 0; and the row that comes first.

    NaN and -1 if a candidate has no score; of equally similar ones a wrong one comes first.
    """
    if questions.pool is not None:
        values, nearest = measure(scorer, questions.pool, {P1: precision_at_1})
        won = values[P1]
        top = np.where(won == 1, nearest.right, nearest.wrong[:, 0])
        return won, top

    counts = list(map(len, questions.candidates))
    queries = np.repeat(questions.queries, counts)
    candidates = np.concatenate(questions.candidates)
    scores = scorer.pairs(queries, candidates)
    ends = np.cumsum(counts)

    won = np.full(len(counts), np.nan)
    top = np.full(len(counts), -1)
    for k, right in enumerate(questions.right):
        ranked = slice(ends[k] - counts[k], ends[k])
        scores_of_query = scores[ranked]
        if not np.isfinite(scores_of_query).all():
            continue
        won[k] = precision_at_1(scores_of_query, right)
        may_be_top = np.flatnonzero(right == bool(won[k]))
        best = first_highest(scores_of_query[may_be_top])
        top[k] = candidates[ranked][may_be_top[best]]
    return won, top


def measure_sets(
    scorer: Scorer,
    data: DataFrame,
    sets: Sequence[Questions],
    benchmark: Benchmark,
    settings: EvalSettings,
    paper: str | None,
    result: Result,
) -> None:
    """Add a row for each data set, the meta-tasks' means, in and out of domain, and all; the questions and notes.

    Args:
        paper: VisME's row to compare with.

    Raises:
        ValueError: if no question has an answer.
    """
    ids = data["id"].to_numpy()
    order = {name: number for number, name in enumerate(benchmark.task_of)}
    values: dict[str, Value] = {}
    for questions in sorted(sets, key=lambda questions: order.get(questions.dataset, len(order))):
        name = questions.dataset
        won, top = answers(scorer, questions)
        has_answer = np.isfinite(won)
        count = int(has_answer.sum())
        if count < len(won):
            result.notes.append(f"{name}: {len(won) - count} questions have no answer and are left out")
        if not count:
            continue

        won = won[has_answer]
        values[name] = mean(won, questions.owner[has_answer], settings)
        domain = "-"
        if name in order:
            domain = benchmark.domain(name)
        task = questions.task or "-"
        result.rows.append({"task": task, "domain": domain, "dataset": name, P1: values[name]})

        queries = questions.queries[has_answer]
        top_ids = ids[top[has_answer]]
        result.keep("questions", dataset=[name] * count, id=ids[queries], found=top_ids, **{P1: won})

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
    groups: dict[str, list[str]] = {}
    for group in (*benchmark.sets, IND, OOD, benchmark.name):
        groups[group] = []
    for name, task in benchmark.task_of.items():
        groups[task].append(name)
        groups[benchmark.domain(name)].append(name)
        groups[benchmark.name].append(name)

    table = benchmark.name.lower()
    papers = printed("visme", table, paper) | printed("visme", f"{table}_domains", paper)
    rows: list[Row] = []
    for group, names in groups.items():
        measured = [values[name] for name in names if name in values]
        if not measured:
            continue
        dataset = f"mean of {len(measured)}"
        printed_mean = papers.get(group)
        if len(measured) < len(names):
            dataset += f" of {len(names)}"
            printed_mean = None

        row: Row = {"task": "-", "domain": group, "dataset": dataset}
        if group in benchmark.sets:
            row |= {"task": group, "domain": "-"}
        row[P1] = average(measured, printed_mean)
        rows.append(row)
    return rows
