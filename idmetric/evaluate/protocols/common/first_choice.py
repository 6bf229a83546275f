"""Precision at 1 where each query ranks candidates of its own, by data sets of several meta-tasks: MVEB and MMEB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, plain, texts
from idmetric.evaluate.protocols.common.intervals import average, mean
from idmetric.evaluate.protocols.common.paper_numbers import printed
from idmetric.evaluate.protocols.common.ranked import Search, measure
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Model, Scorer
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
        tasks: dict[str, str] = {}
        for task, names in self.sets.items():
            tasks |= dict.fromkeys(names.replace("*", "").split(), task)
        return tasks

    @cached_property
    def out_of_domain(self) -> frozenset[str]:
        """Data sets that models are not trained on."""
        names = " ".join(self.sets.values()).split()
        return frozenset(name[:-1] for name in names if name.endswith("*"))

    def domain(self, dataset: str) -> str:
        """Of one of its data sets."""
        return OOD if dataset in self.out_of_domain else IND

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
        ranked = [self.pool.gallery] if self.pool is not None else self.candidates
        return np.unique(np.concatenate([self.queries, *ranked]))


def reads_words(model: Model) -> bool:
    """Whether a model embeds texts too."""
    from idmetric.data.embed import VectorModel
    from idmetric.metric.models.visid import VisIDEmbed

    return isinstance(model, VisIDEmbed) or (isinstance(model, VectorModel) and model.reads_words)


def answers(scorer: Scorer, questions: Questions) -> tuple[Array, Ints]:
    """1 for each question (Q,) with a right first candidate, else 0; and the row that comes first.

    NaN and -1 if a candidate has no score; of equally similar ones a wrong one comes first.
    """
    if questions.pool is not None:
        values, near = measure(scorer, questions.pool, {P1: precision_at_1})
        return values[P1], np.where(values[P1] == 1, near.right, near.wrong[:, 0])

    counts = [len(candidates) for candidates in questions.candidates]
    queries = np.repeat(questions.queries, counts)
    scores = scorer.pairs(queries, np.concatenate(questions.candidates))
    won = np.full(len(counts), np.nan)
    top = np.full(len(counts), -1)
    for k, own_scores in enumerate(np.split(scores, np.cumsum(counts)[:-1])):
        right = questions.right[k]
        if np.isfinite(own_scores).all():
            won[k] = precision_at_1(own_scores, right)
            able = np.flatnonzero(right == bool(won[k]))
            top[k] = questions.candidates[k][able[first_highest(own_scores[able])]]
    return won, top


def measure_sets(
    scorer: Scorer,
    data: Manifest,
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
    ids = texts(data, "id")
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
        domain = benchmark.domain(name) if name in order else "-"
        result.rows.append({"task": questions.task or "-", "domain": domain, "dataset": name, P1: values[name]})
        result.keep(
            "questions",
            dataset=[name] * count,
            id=ids[questions.queries[has_answer]],
            found=ids[top[has_answer]],
            **{P1: won},
        )

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
    groups: dict[str, list[str]] = {group: [] for group in (*benchmark.sets, IND, OOD, benchmark.name)}
    for name, task in benchmark.task_of.items():
        for group in (task, benchmark.domain(name), benchmark.name):
            groups[group].append(name)

    table = benchmark.name.lower()
    papers = printed("visme", table, paper) | printed("visme", f"{table}_domains", paper)
    rows: list[Row] = []
    for group, names in groups.items():
        measured = [values[name] for name in names if name in values]
        if not measured:
            continue
        dataset, printed_mean = f"mean of {len(measured)}", papers.get(group)
        if len(measured) < len(names):
            dataset, printed_mean = f"{dataset} of {len(names)}", None
        task, domain = (group, "-") if group in benchmark.sets else ("-", group)
        rows.append({"task": task, "domain": domain, "dataset": dataset, P1: average(measured, printed_mean)})
    return rows
