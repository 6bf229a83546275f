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
docs/protocols-mveb.md. If no query of a set has a wrong candidate, all queries rank all targets of the set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from idmetric.data.embed import UnreadableError
from idmetric.data.manifest.lineage import image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.ranking import precision_at_1
from idmetric.models import visid
from idmetric.models.embedder import Embedder
from idmetric.protocols.common.columns import Array, Ints, Truths, plain, texts
from idmetric.protocols.common.intervals import codes, mean, owners, task_means
from idmetric.protocols.common.paper_numbers import visme_printed, visme_row
from idmetric.protocols.common.ranked import Search, measure
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Bound, Models, Scorer, Settings, bind, left_out
from idmetric.protocols.options import MVEBOptions

# meta-task -> its data sets; * = out of domain, for evaluation alone. Queries in thousands (figure of the data's page):
# Cars196 1.6, CompCars 2.4, Inshop 3.5, Rp2k 5.4, SOP 2.8, MET 2.7, GLDV2 3, iNat 3, Product1m 3.1, ShopProduct 3;
# MS-Celeb 3, iCartoonFace 1.8, DukeMTMC 2.2, IUST 1.4, VeRi776 1.5, Market1501 2.9, CasiaFace 3; PIPA 2.9, MultiID 3.1,
# IDMR 3, WikiPerson 3, FORB 3, IDMROOD 3; GPTImageEdit 2.3, SEEDMultiTurn 2.3, COCOEdit 2, SynCPR 3, OpenGPT4o 8.3
_SETS = {
    "ID-Rec": "Cars196 CompCars Inshop Rp2k SOP MET GLDV2 iNat Product1m* ShopProduct*",
    "Re-ID": "MS-Celeb iCartoonFace DukeMTMC IUST VeRi776 Market1501* CasiaFace*",
    "ID-Grd": "PIPA MultiID IDMR WikiPerson* FORB* IDMROOD*",
    "ID-Edit": "GPTImageEdit SEEDMultiTurn COCOEdit SynCPR OpenGPT4o*",
}
TASKS = tuple(_SETS)
TASK_OF = {name.rstrip("*"): task for task, names in _SETS.items() for name in names.split()}
OUT_OF_DOMAIN = frozenset(n.rstrip("*") for names in _SETS.values() for n in names.split() if n.endswith("*"))
IND, OOD, ALL = "IND", "OOD", "MVEB"  # in domain, out of domain, all sets

_OTHER_NAMES = {
    "msceleb1m": "MS-Celeb", "casiawebface": "CasiaFace", "caisiaface": "CasiaFace", "inaturalist": "iNat",
    "stanfordonlineproducts": "SOP", "googlelandmarksv2": "GLDV2", "opengpt4oimage": "OpenGPT4o",
}  # fmt: skip


def known_name(dataset: str) -> str | None:
    """MVEB's own name of a data set, such as "Cars196" for "mveb/cars196"; None if it is not one of the 28."""
    wanted = plain(dataset.rpartition("/")[2])
    return _OTHER_NAMES.get(wanted) or next((name for name in TASK_OF if plain(name) == wanted), None)


# Questions


Group = tuple[str, str | None]  # name and split
INSTRUCTIONS = {"ID-Rec": "recognition", "Re-ID": "reidentification", "ID-Grd": "grounding", "ID-Edit": "editing"}
_RANKED = ("candidate", "positive", "negative")


@dataclass(frozen=True)
class Questions:
    """The questions of one data set; rows of the manifest.

    Attributes:
        dataset: its name, MVEB's own for the 28 sets. task: its meta-task; None if it is unknown.
        queries: (Q,). owner: (Q,), the units that intervals draw: numbers of identities, or of groups without identity.
        candidates: (C,), the rows to rank; of: (C,), their questions; right: bool (C,).
        pool: replaces these three if each query ranks all targets of the set.
    """

    dataset: str
    task: str | None
    queries: Ints
    owner: Ints
    candidates: Ints
    of: Ints
    right: Truths
    pool: Search | None = None

    def rows(self) -> Ints:
        """All rows that are needed."""
        ranked = self.candidates if self.pool is None else self.pool.gallery
        return np.unique(np.concatenate([self.queries, ranked]))


@dataclass(frozen=True)
class Asked:
    """A manifest's questions.

    Attributes:
        sets: the questions of each data set. notes: on rows that were left out.
    """

    data: Manifest
    sets: Sequence[Questions]
    notes: list[str] = field(default_factory=list)

    def instructed(self) -> dict[int, str]:
        """Row -> the text for a model that takes instructions; rows without an entry get its default.

        A query has its own text, or else its meta-task's instruction; a candidate has its own text.
        """
        text, said = self.data.column("text"), dict[int, str]()
        for one in self.sets:
            if one.task is not None:
                said |= dict.fromkeys(one.queries.tolist(), visid.TASKS[INSTRUCTIONS[one.task]])
            said |= {row: text[row] for row in one.rows().tolist() if text[row]}
        return said

    def edits(self) -> dict[int, str]:
        """Row -> the text for a dual encoder, of queries of Identity Editing alone (VisME, 5.2)."""
        text = self.data.column("text")
        queries = (row for one in self.sets if one.task == "ID-Edit" for row in one.queries.tolist())
        return {row: text[row] for row in queries if text[row]}


def ask(data: Manifest, tasks: Mapping[str, str]) -> Asked:
    """The questions of a manifest.

    Args:
        data: groups of a query with its candidates: slot candidate, label 1 = right and 0 = wrong (without a
            label, right if it has the query's identity), or slots positive and negative.
        tasks: data set -> meta-task, for sets that are not MVEB's.

    Raises:
        ValueError: if there are no questions, or a candidate is neither right nor wrong.
    """
    found: dict[str, tuple[list[int], dict[Group, list[int]]]] = {}
    names = (data.column(c) for c in ("dataset", "group", "split", "slot"))
    for row, (dataset, group, split, slot) in enumerate(zip(*names, strict=True)):
        others, groups = found.setdefault(dataset or "all", ([], defaultdict(list)))
        if slot == "query" or slot in _RANKED:
            groups[group, split].append(row)  # groups of one name in two splits are two
        else:
            others.append(row)

    columns, made, notes = _Columns(data), [], []
    for name, (others, groups) in found.items():
        own = known_name(name)
        task = tasks.get(name, tasks.get(own or name, TASK_OF.get(own or "")))
        questions, more = columns.questions(own or name, task, groups)
        notes += [f"{own or name}: {len(others)} images outside of groups are left out"] if others else []
        notes += more
        if questions is not None:
            made.append(questions)

    if not made:
        raise ValueError("no questions: " + ("; ".join(notes) or "give groups of a query and its candidates"))
    return Asked(data, made, notes)


class _Columns:
    """Columns of a manifest, and the questions that they make."""

    def __init__(self, data: Manifest) -> None:
        self.slot, self.label, self.name = (data.column(c) for c in ("slot", "label", "identity"))
        self.identity, self.image = codes(self.name), codes(image_keys(data))

    def questions(
        self, dataset: str, task: str | None, groups: Mapping[Group, Sequence[int]]
    ) -> tuple[Questions | None, list[str]]:
        """Queries with their own candidates; if none has a wrong candidate, with all targets of the set."""
        notes: list[str] = []
        asked: list[tuple[int, list[tuple[int, bool]]]] = []
        incomplete = 0

        for members in groups.values():
            own = [row for row in members if self.slot[row] == "query"]
            ranked = [(r, self._right(dataset, own[0], r)) for r in members if r != own[0]] if len(own) == 1 else []
            if any(right for _, right in ranked):
                asked.append((own[0], ranked))
            else:
                incomplete += 1

        if incomplete:
            notes.append(f"{dataset}: {incomplete} groups are without one query and a right candidate, and left out")
        choice = [(q, r) for q, r in asked if not all(right for _, right in r)]
        if not choice and asked:
            notes.append(f"{dataset}: no query has a wrong candidate of its own, so all targets of the set are ranked")
            return self._pooled(dataset, task, asked), notes
        if len(choice) < len(asked):
            notes.append(f"{dataset}: {len(asked) - len(choice)} queries without a wrong candidate are left out")
        if not choice:
            return None, notes

        queries = np.array([q for q, _ in choice], dtype=np.int64)
        cells = [(row, k, right) for k, (_, ranked) in enumerate(choice) for row, right in ranked]
        candidates, of, right = (np.array(column) for column in zip(*cells, strict=True))
        owner = owners(self.identity, queries)
        return Questions(dataset, task, queries, owner, candidates, of, right.astype(bool)), notes

    def _right(self, dataset: str, query: int, row: int) -> bool:
        if self.slot[row] in ("positive", "negative"):
            return bool(self.slot[row] == "positive")
        if self.label[row] in (0, 1):
            return bool(self.label[row] == 1)
        if self.label[row] is None and None not in (self.name[query], self.name[row]):
            return bool(self.name[query] == self.name[row])

        raise ValueError(
            f"{dataset}, row {row + 1}: a candidate with label {self.label[row]}: 1 = right, 0 = wrong; or no label "
            "and an identity in both rows"
        )

    def _pooled(
        self, dataset: str, task: str | None, asked: Sequence[tuple[int, Sequence[tuple[int, bool]]]]
    ) -> Questions:
        """Questions that rank all targets; right are a query's own targets and those of its identity."""
        identity = self.identity.copy()
        for query, ranked in asked:
            if identity[query] < 0:
                identity[query] = identity.max() + 1
            for row, _ in ranked:
                identity[row] = identity[query]

        queries = np.array([query for query, _ in asked], dtype=np.int64)
        gallery = np.array([row for _, ranked in asked for row, _ in ranked], dtype=np.int64)
        search = Search(queries, gallery, identity, self.image)
        search = search.only(search.positives() > 0)
        none = np.zeros(0, dtype=np.int64)
        owner = search.identity[search.queries]
        return Questions(dataset, task, search.queries, owner, none, none, none.astype(bool), search)


_P1 = "P@1"


def run(
    data: Manifest, models: Models, settings: Settings = Settings(), options: MVEBOptions = MVEBOptions()
) -> list[Result]:
    """A result for each model: a row for each data set, the meta-tasks' means, in and out of domain, and all.

    Raises:
        ValueError: if there are no questions, or a candidate is neither right nor wrong.
        UnreadableError: see `scorers.bind`.
    """
    tasks = _tasks(options)
    asked, bound = _bind(data, models, settings, tasks)
    about = {**settings.as_dict(), "tasks": tasks}
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


def _bind(data: Manifest, models: Models, settings: Settings, tasks: Mapping[str, str]) -> tuple[Asked, Bound]:
    """Models bound to the questions; with on_error "skip", unreadable images are left out with their questions."""
    notes: list[str] = []
    while True:
        asked = ask(data, tasks)
        try:
            return asked, Bound(asked.data, _bound(asked, models, replace(settings, on_error="fail")), notes)
        except UnreadableError as error:
            if settings.on_error != "skip":
                raise
            data = left_out(data, error, notes)


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
