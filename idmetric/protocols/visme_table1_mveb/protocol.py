"""MVEB: precision at 1 in VisME's four meta-tasks (sections 3, 4.1 and 5.1; Table 1).

    idmetric eval mveb --data mveb.parquet --model visid_3b --model dual:openai/clip-vit-large-patch14 --out results/

A query, an image with an instruction, ranks its own candidates; P@1 is the share of queries that rank a right
one first. A tie with a wrong candidate loses. In percent:

| | ID-Rec | Re-ID | ID-Grd | ID-Edit | MVEB | in domain (20 sets) | out of domain (8) |
|---|---|---|---|---|---|---|---|
| VisME (Qwen2.5-VL-3B) | 78.7 | 67.7 | 75.1 | 87.4 | 76.7 | 77.7 | 74.1 |
| VisME (Qwen2.5-VL-7B) | 80.8 | 70.6 | 76.7 | 88.7 | 78.8 | | |
| SigLIP2 (so400m-14-384) | 73.1 | 45.6 | 36.8 | 65.4 | 57.1 | | |
| CLIP (ViT-large-14) | 55.3 | 44.3 | 37.4 | 52.5 | 48.2 | | |

A meta-task's number is the mean over its sets. MVEB's is the mean over all 28 sets (which the printed means confirm),
not over the four meta-tasks. A mean over fewer sets is labeled as such and has no paper value.

Models get the following texts in addition to images:

* models that take instructions (VisIDEmbed) get the query's text, or else its meta-task's instruction; the candidate's
  text, or else the model's default;
* dual encoders (`dual:REPO`) get images alone, as in section 5.2, except for queries of Identity Editing: the mean of
  image and text embedding, each of unit length;
* all others have no text tower and get images alone, even in Identity Editing, where the image does not show the task.

Data: HugC/MVEB-test and HugC/MVEB-train (the latter CC-BY-NC-SA-4.0) on the Hub, by `idmetric data import mveb`; see
docs/protocols-mveb.md. If no query of a set has a wrong candidate, all queries rank all targets of the set;
single images with identities rank all other images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from idmetric.data.embed import UnreadableError
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.ranking import precision_at_1
from idmetric.models.embedder import Embedder
from idmetric.protocols.common.arrays import Array
from idmetric.protocols.common.columns import texts
from idmetric.protocols.common.intervals import mean
from idmetric.protocols.common.paper_numbers import visme_printed, visme_row
from idmetric.protocols.common.ranked import measure
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Bound, Models, Scorer, Settings, bind, left_out
from idmetric.protocols.common.task_means import task_means
from idmetric.protocols.options import MVEBOptions
from idmetric.protocols.visme_table1_mveb.datasets import ALL, IND, OOD, OUT_OF_DOMAIN, TASK_OF, TASKS, known_name
from idmetric.protocols.visme_table1_mveb.questions import Asked, Questions, ask

_P1 = "P@1"


_SETTINGS, _OPTIONS = Settings(), MVEBOptions()


def run(
    data: Manifest, models: Models, settings: Settings = _SETTINGS, options: MVEBOptions = _OPTIONS
) -> list[Result]:
    """A result for each model: a row for each data set, the meta-tasks' means, in and out of domain, and all.

    Raises:
        ValueError: if there are no questions, or a candidate is neither right nor wrong.
        UnreadableError: see `scorers.bind`.
    """
    if not models:
        raise ValueError("no models: give at least one")
    chosen = _tasks(options)
    asked, bound = _bind(data, models, settings, chosen)
    about = {**settings.as_dict(), "tasks": chosen}
    results = []

    for scorer, result in bound.results("mveb", about, asked.notes):
        row = None if settings.look.masked or settings.distance != "cls" else (
            options.paper or visme_row(result.signature.get("model", ""))
        )  # fmt: skip
        _measure(scorer, asked, settings, row, result)
        if any(one.task == "ID-Edit" for one in asked.sets) and _follows(models[result.model]) == "nothing":
            result.notes.append("no text tower: Identity Editing by images alone")
        results.append(result)

    return results


# Models and their input


def _follows(model: Any) -> str:
    """The texts that a model takes: "instructions", "edits" or "nothing"."""
    if getattr(model, "averages_words", False):
        return "edits"
    reads = hasattr(model, "encode_items") if isinstance(model, Embedder) else getattr(model, "reads_words", False)
    return "instructions" if reads else "nothing"


def _tasks(options: MVEBOptions) -> dict[str, str]:
    """Data set -> meta-task, of --task."""
    tasks = {}
    for given in options.task:
        name, sign, task = given.rpartition("=")
        if not sign:
            raise ValueError(f"--task {given}: expected DATASET=TASK")
        if task not in TASKS:
            raise ValueError(f"{name}: no meta-task {task!r}; there are {', '.join(TASKS)}")
        tasks[name] = task
    return tasks


def _bind(data: Manifest, models: Models, settings: Settings, chosen: Mapping[str, str]) -> tuple[Asked, Bound]:
    """Models bound to the questions; with on_error "skip", unreadable images are left out with their questions."""
    notes: list[str] = []
    while True:
        asked = ask(data, chosen)
        try:
            return asked, Bound(asked.data, _bound(asked, models, replace(settings, on_error="fail")), notes)
        except UnreadableError as error:
            if settings.on_error == "fail":
                raise
            data = left_out(data, error, (int(asked.origin[row]) for row in error.problems), notes)


def _bound(asked: Asked, models: Models, settings: Settings) -> dict[str, Scorer]:
    needed = np.unique(np.concatenate([one.rows() for one in asked.sets]))
    dual = {name: model for name, model in models.items() if _follows(model) == "edits"}
    others = {name: model for name, model in models.items() if name not in dual}
    found: dict[str, Scorer] = {}
    for group, words in ((others, asked.instructed()), (dual, asked.edits())):
        if group:
            found |= bind(asked.data, group, settings, needed, words=words).models
    return {name: found[name] for name in models}


# Numbers


def _measure(scorer: Scorer, asked: Asked, settings: Settings, paper: str | None, result: Result) -> None:
    values: dict[str, Value] = {}
    ids = texts(asked.data, "id")

    for one in sorted(asked.sets, key=lambda q: TASKS.index(q.task) if q.task else len(TASKS)):
        won = answers(scorer, one)
        there = np.isfinite(won)
        if not there.all():
            result.notes.append(f"{one.dataset}: {int((~there).sum())} questions have no answer and are left out")
        if not there.any():
            continue
        value = mean(won[there], one.owner[there], settings)
        values[one.dataset] = value
        row: Row = {"task": one.task or "-", "domain": _domain(one.dataset), "dataset": one.dataset, _P1: value}
        result.rows.append(row)
        result.keep("questions", dataset=[one.dataset] * int(there.sum()), id=ids[one.queries[there]],
               **{_P1: won[there]})  # fmt: skip

    if not values:
        raise ValueError("no question has an answer")
    strangers = [name for name in values if known_name(name) is None]
    if strangers:
        result.notes.append(f"not among MVEB's sets, and in no mean over them: {', '.join(strangers)}")
    result.rows.extend(
        task_means(values, _P1, TASKS, TASK_OF, OUT_OF_DOMAIN, ALL, lambda label: visme_printed(paper, label))
    )


def answers(scorer: Scorer, one: Questions) -> Array:
    """1 for each question (Q,) with a right first candidate, else 0; NaN if a candidate has no score."""
    if one.pool is not None:
        return measure(scorer, one.pool, {_P1: precision_at_1})[0][_P1]
    scores = scorer.pairs(one.queries[one.of], one.candidates)
    order = np.argsort(one.of, kind="stable")
    ends = np.cumsum(np.bincount(one.of, minlength=len(one.queries)))[:-1]
    parts = np.split(order, ends)
    return np.array([
        precision_at_1(scores[own], one.right[own]) if np.isfinite(scores[own]).all() else np.nan for own in parts
    ])  # fmt: skip


def _domain(dataset: str) -> str:
    name = known_name(dataset)
    return "-" if name is None else OOD if name in OUT_OF_DOMAIN else IND
