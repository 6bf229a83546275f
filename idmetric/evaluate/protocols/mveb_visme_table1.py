"""MVEB: precision at 1 in VisME's four meta-tasks (sections 3, 4.1 and 5.1; Table 1).

    idmetric eval mveb --data mveb.parquet --model visid_3b --model dual:openai/clip-vit-large-patch14 --out results/

A query, an image with an instruction, ranks its own candidates; P@1 is the share of queries that rank a right
one first. A tie with a wrong candidate loses. MVEB's number is the mean over all 28 sets (which the printed means
confirm), not over the four meta-tasks.

If no query of a set has a wrong candidate, all queries rank all targets of the set. docs/protocols/mveb.md has the
data, the papers' numbers, and the texts that each kind of model gets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.split import image_keys
from idmetric.evaluate.protocols.common.columns import Group, Ints, Truths, known
from idmetric.evaluate.protocols.common.first_choice import Benchmark, Questions, measure_sets, reads_words
from idmetric.evaluate.protocols.common.intervals import codes, owners
from idmetric.evaluate.protocols.common.paper_numbers import PAPER_HELP, rows, visme_row
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Search
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import Bound, EvalSettings, Model, Models, bind
from idmetric.evaluate.settings import Checked, option
from idmetric.metric.visid.config import TASKS

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class MVEBOptions(Checked):
    """Options of the protocol `mveb`."""

    task: tuple[str, ...] = option(
        (),
        "a set's meta-task (ID-Rec, Re-ID, ID-Grd, ID-Edit), where it is not one of MVEB's; may be repeated",
        metavar="DATASET=TASK",
        repeated=True,
    )
    paper: str | None = option(None, PAPER_HELP, choices=rows("visme", "mveb"))


# meta-task -> its data sets; * = out of domain, for evaluation alone
_SETS = {
    "ID-Rec": "Cars196 CompCars Inshop Rp2k SOP MET GLDV2 iNat Product1m* ShopProduct*",
    "Re-ID": "MS-Celeb iCartoonFace DukeMTMC IUST VeRi776 Market1501* CasiaFace*",
    "ID-Grd": "PIPA MultiID IDMR WikiPerson* FORB* IDMROOD*",
    "ID-Edit": "GPTImageEdit SEEDMultiTurn COCOEdit SynCPR OpenGPT4o*",
}
_OTHER_NAMES = {
    "msceleb1m": "MS-Celeb",
    "casiawebface": "CasiaFace",
    "caisiaface": "CasiaFace",
    "inaturalist": "iNat",
    "stanfordonlineproducts": "SOP",
    "googlelandmarksv2": "GLDV2",
    "opengpt4oimage": "OpenGPT4o",
}
MVEB = Benchmark("MVEB", _SETS, _OTHER_NAMES)
INSTRUCTIONS = {"ID-Rec": "recognition", "Re-ID": "reidentification", "ID-Grd": "grounding", "ID-Edit": "editing"}
_RANKED = ("candidate", "positive", "negative")


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: MVEBOptions = MVEBOptions(),
) -> list[Result]:
    """A result for each model: a row for each data set, the meta-tasks' means, in and out of domain, and all.

    Raises:
        ValueError: if there are no questions, or a candidate is neither right nor wrong.
    """
    tasks = _tasks(options)
    bound = _bind(data, models, settings, tasks)
    sets, notes = ask(bound.manifest, tasks)
    results = []
    for scorer, result in bound.results("mveb", {**settings.as_dict(), "tasks": tasks}, notes):
        row = options.paper or visme_row("mveb", result.signature)
        if settings.look.masked or settings.distance != "cls":
            row = None
        measure_sets(scorer, bound.manifest, sets, MVEB, settings, row, result)
        if any(questions.task == "ID-Edit" for questions in sets) and _follows(models[result.model]) == "nothing":
            result.notes.append("no text tower: Identity Editing by images alone")
        results.append(result)
    return results


def instructed(data: DataFrame, sets: Sequence[Questions]) -> dict[int, str]:
    """Row -> the text for a model that takes instructions; rows without an entry get its default.

    A query has its own text, or else its meta-task's instruction; a candidate has its own text.
    """
    words: dict[int, str] = {}
    for questions in sets:
        if questions.task is not None:
            words |= dict.fromkeys(questions.queries.tolist(), TASKS[INSTRUCTIONS[questions.task]])
        words |= data["text"][questions.rows()].dropna().to_dict()
    return words


def edits(data: DataFrame, sets: Sequence[Questions]) -> dict[int, str]:
    """Row -> the text for a dual encoder, of queries of Identity Editing alone (VisME, 5.2)."""
    words: dict[int, str] = {}
    for questions in sets:
        if questions.task == "ID-Edit":
            words |= data["text"][questions.queries].dropna().to_dict()
    return words


def ask(data: DataFrame, tasks: Mapping[str, str]) -> tuple[list[Questions], list[str]]:
    """The questions of each data set of a manifest, and notes on rows that were left out.

    Args:
        data: groups of a query with its candidates: slot candidate, label 1 = right and 0 = wrong (without a
            label, right if it has the query's identity), or slots positive and negative.
        tasks: data set -> meta-task, for sets that are not MVEB's.

    Raises:
        ValueError: if there are no questions, or a candidate is neither right nor wrong.
    """
    groups_of: dict[str, dict[Group, list[int]]] = defaultdict(lambda: defaultdict(list))
    outside: dict[str, int] = defaultdict(int)
    columns = data[["dataset", "group", "split", "slot"]].fillna({"dataset": "all"})
    for row, dataset, group, split, slot in columns.itertuples():
        if slot == "query" or slot in _RANKED:
            groups_of[dataset][group, split].append(row)  # groups of one name in two splits are two
        else:
            outside[dataset] += 1

    notes = []
    for name, count in outside.items():
        notes.append(f"{MVEB.known_name(name) or name}: {count} images outside of groups are left out")
    sets = []
    for name, groups in groups_of.items():
        mveb_name = MVEB.known_name(name) or name
        task = tasks.get(name) or tasks.get(mveb_name) or MVEB.task_of.get(mveb_name)
        questions = _questions(data, mveb_name, task, list(groups.values()), notes)
        if questions is not None:
            sets.append(questions)
    if not sets:
        raise ValueError("no questions: " + ("; ".join(notes) or "give groups of a query and its candidates"))
    return sets, notes


def _questions(
    data: DataFrame,
    dataset: str,
    task: str | None,
    groups: Sequence[Sequence[int]],
    notes: list[str],
) -> Questions | None:
    """Queries with their own candidates; if none has a wrong candidate, with all targets of the set."""
    slot = data["slot"].tolist()
    label = known(data["label"].to_numpy())
    name = data["identity"].tolist()

    def is_right(query: int, row: int) -> bool:
        if slot[row] in ("positive", "negative"):
            return bool(slot[row] == "positive")
        if label[row] in (0, 1):
            return bool(label[row] == 1)
        if label[row] is None and None not in (name[query], name[row]):
            return bool(name[query] == name[row])
        raise ValueError(
            f"{dataset}, row {row + 1}: a candidate with label {label[row]}: 1 = right, 0 = wrong; or no label "
            "and an identity in both rows"
        )

    queries: list[int] = []
    candidates: list[Ints] = []
    right: list[Truths] = []
    for members in groups:
        asked = [row for row in members if slot[row] == "query"]
        if len(asked) != 1:
            continue
        ranked = [row for row in members if slot[row] != "query"]
        are_right = np.array([is_right(asked[0], row) for row in ranked], dtype=bool)
        if are_right.any():
            queries.append(asked[0])
            candidates.append(np.array(ranked, dtype=np.int64))
            right.append(are_right)

    if len(queries) < len(groups):
        incomplete = len(groups) - len(queries)
        notes.append(f"{dataset}: {incomplete} groups are without one query and a right candidate, and left out")
    with_choice = [number for number, are_right in enumerate(right) if not are_right.all()]
    if queries and not with_choice:
        notes.append(f"{dataset}: no query has a wrong candidate of its own, so all targets of the set are ranked")
        return _pooled(data, dataset, task, queries, candidates)
    if len(with_choice) < len(queries):
        count = len(queries) - len(with_choice)
        notes.append(f"{dataset}: {count} queries without a wrong candidate are left out")
    if not with_choice:
        return None
    query_rows = np.array(queries, dtype=np.int64)[with_choice]
    return Questions(
        dataset,
        task,
        query_rows,
        owners(codes(name), query_rows),
        [candidates[number] for number in with_choice],
        [right[number] for number in with_choice],
    )


def _pooled(
    data: DataFrame,
    dataset: str,
    task: str | None,
    queries: Sequence[int],
    candidates: Sequence[Ints],
) -> Questions:
    """Questions that rank all targets; right are a query's own targets and those of its identity."""
    identity = codes(data["identity"])
    for query, targets in zip(queries, candidates, strict=True):
        if identity[query] < 0:
            identity[query] = identity.max() + 1
        identity[targets] = identity[query]

    search = Search(np.array(queries), np.concatenate(candidates), identity, codes(image_keys(data)))
    search = search.only(search.positives() > 0)
    return Questions(dataset, task, search.queries, search.identity[search.queries], pool=search)


def _follows(model: Model) -> str:
    """The texts that a model takes: "instructions", "edits" or "nothing"."""
    from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder

    if isinstance(model, DualEncoder):
        return "edits"
    return "instructions" if reads_words(model) else "nothing"


def _tasks(options: MVEBOptions) -> dict[str, str]:
    """Data set -> meta-task, of --task."""
    tasks = {}
    for entry in options.task:
        name, sign, task = entry.rpartition("=")
        if not sign:
            raise ValueError(f"--task {entry}: expected DATASET=TASK")
        if task not in MVEB.sets:
            raise ValueError(f"{name}: no meta-task {task!r}; there are {', '.join(MVEB.sets)}")
        tasks[name] = task
    return tasks


def _bind(data: DataFrame, models: Models, settings: EvalSettings, tasks: Mapping[str, str]) -> Bound:
    """Models bound to the questions, each with the texts that it takes."""

    def needed(manifest: DataFrame) -> Ints:
        sets, _ = ask(manifest, tasks)
        return np.unique(np.concatenate([questions.rows() for questions in sets]))

    def instructions_of(manifest: DataFrame) -> dict[int, str]:
        sets, _ = ask(manifest, tasks)
        return instructed(manifest, sets)

    def edits_of(manifest: DataFrame) -> dict[int, str]:
        sets, _ = ask(manifest, tasks)
        return edits(manifest, sets)

    dual = {name: model for name, model in models.items() if _follows(model) == "edits"}
    others = {name: model for name, model in models.items() if name not in dual}
    bound = Bound(data, {}, [])
    if others:
        bound = bind(data, others, settings, needed, instructions_of)
    if dual:
        bound_dual = bind(bound.manifest, dual, settings, needed, edits_of)
        assert bound_dual.manifest is bound.manifest or not others  # both read the same rows
        bound = Bound(bound_dual.manifest, bound.models | bound_dual.models, bound.notes + bound_dual.notes)
    return replace(bound, models={name: bound.models[name] for name in models})


PROTOCOL = Protocol(
    name="mveb",
    run=run,
    options=MVEBOptions,
)
