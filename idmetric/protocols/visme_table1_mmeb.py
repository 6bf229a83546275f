"""MMEB: precision at 1 on 36 sets of four meta-tasks (VisME, section 5.1; Tables 1 to 5).

    idmetric eval mmeb --data mmeb-eval.parquet --model visid_3b --model dual:openai/clip-vit-large-patch14 --out r/

A query ranks its own candidates, the first of which is the right one; each side is an image, a text, or both. P@1 is
the share of queries that rank it first. A tie with another candidate loses; a candidate that a query lists twice
counts once. In percent:

| | Cls (10 sets) | VQA (10) | Ret (12) | Grd (4) | MMEB (36) | in domain (20) | out of domain (16) |
|---|---|---|---|---|---|---|---|
| VisME (Qwen2.5-VL-3B) | 63.3 | 67.4 | 70.5 | 87.8 | 69.6 | 75.1 | 60.3 |
| VisME (Qwen2.5-VL-7B) | 66.4 | 70.2 | 72.6 | 90.7 | 72.2 | | |
| CLIP (ViT-large-14) | 42.8 | 9.1 | 53.0 | 51.8 | 37.8 | | |

A meta-task's number is the mean over its sets, and MMEB's is the mean over all 36 sets, which the printed means
confirm (but for UniME's, a mean of four). Those in domain are the 20 sets that models are trained on. A mean over fewer
sets is labeled as such and has no paper value.

Models must read text. VisIDEmbed gets a row's text as it is, including MMEB's instruction, after its image. Dual
encoders (`dual:REPO`) embed an image, a text, or the mean of both, each of unit length.

Data: MMEB of VLM2Vec (Jiang et al., ICLR 2025), TIGER-Lab/MMEB-eval on the Hub, by `idmetric data import mmeb`; see
docs/protocols-mmeb.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from idmetric.data.embed import UnreadableError
from idmetric.data.importers.mmeb import candidate_id
from idmetric.data.importers.mmeb_sets import ALL, IND, OOD, OUT_OF_DOMAIN, TASK_OF, TASKS, known_name
from idmetric.data.manifest.lineage import image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import first_highest
from idmetric.evaluate.ranking import precision_at_1
from idmetric.models.embedder import Embedder
from idmetric.protocols.common.columns import Array, Ints, texts
from idmetric.protocols.common.intervals import codes, mean, task_means
from idmetric.protocols.common.paper_numbers import visme_printed, visme_row
from idmetric.protocols.common.ranked import HasMatrix
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Bound, Models, Settings, bind, slices
from idmetric.protocols.options import MMEBOptions

COLUMN = "x_candidates"


@dataclass(frozen=True)
class Questions:
    """The questions of one data set; rows of the manifest.

    Attributes:
        dataset: its name, MMEB's own for the 36 sets.
        queries: (Q,).
        candidates: the rows that each query ranks, Q arrays; the first is the right one.
        owner: (Q,), the units that intervals draw: queries of one image are one unit.
    """

    dataset: str
    queries: Ints
    candidates: tuple[Ints, ...]
    owner: Ints

    def ranked(self) -> Ints:
        """The different candidates (C,) of all queries, in ascending order."""
        return np.unique(np.concatenate(self.candidates))


@dataclass(frozen=True)
class Asked:
    """A manifest's questions.

    Attributes:
        sets: the questions of each data set. notes: on questions that were left out.
    """

    sets: tuple[Questions, ...]
    notes: list[str] = field(default_factory=list)

    def rows(self) -> Ints:
        """All rows that are needed."""
        return np.unique(np.concatenate([part for one in self.sets for part in (one.queries, one.ranked())]))


def ask(data: Manifest, unusable: Collection[int] = ()) -> Asked:
    """The questions of a manifest from `idmetric data import mmeb`.

    Args:
        unusable: rows that cannot be embedded; questions that need one are left out, with a note.

    Raises:
        ValueError: if there are no questions, or a candidate has no row.
    """
    if COLUMN not in data.table.column_names:
        raise ValueError(f"no column {COLUMN}: make the manifest by idmetric data import mmeb, of an evaluation table")
    kind = data.table.schema.field(COLUMN).type
    if not ((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_integer(kind.value_type)):
        raise ValueError(
            f"column {COLUMN} holds {kind} instead of lists of whole numbers: keep manifests of MMEB as Parquet"
        )
    lists = data.table[COLUMN].combine_chunks()
    values, ends = lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_numpy(zero_copy_only=False)
    names, sets, splits = (data.column(c) for c in ("id", "dataset", "split"))
    row_of = {name: row for row, name in enumerate(names)}
    units, gone = codes(image_keys(data)), set(unusable)

    found: dict[str, list[tuple[int, Ints]]] = {}
    numbered: dict[tuple[str, str], dict[int, int]] = {}  # data set and split -> number of a candidate -> row
    lost: dict[str, int] = {}
    for row in np.flatnonzero(np.diff(ends)).tolist():
        place = (sets[row] or "", splits[row] or "")
        known = numbered.setdefault(place, {})
        listed = values[ends[row] : ends[row + 1]].tolist()
        for number in listed:
            if number not in known:
                candidate = candidate_id(*place, number)
                if candidate not in row_of:
                    raise ValueError(
                        f"query {names[row]} lists the candidate {candidate}, which has no row in the manifest"
                    )
                known[number] = row_of[candidate]
        ranked = np.array([known[number] for number in listed], dtype=np.int64)
        name = known_name(place[0]) or place[0]
        if gone and (row in gone or not gone.isdisjoint(ranked.tolist())):
            lost[name] = lost.get(name, 0) + 1
        else:
            found.setdefault(name, []).append((row, ranked))

    notes = [
        f"{name}: questions left out, as they need rows that cannot be used: {count}" for name, count in lost.items()
    ]
    if not found:
        raise ValueError("no questions: " + ("; ".join(notes) or f"column {COLUMN} is empty"))
    made = []
    for name, asked in found.items():
        queries = np.array([row for row, _ in asked], dtype=np.int64)
        made.append(Questions(name, queries, tuple(ranked for _, ranked in asked), units[queries]))
    return Asked(tuple(made), notes)


_P1 = "P@1"
_CELLS = 2**24  # similarities held at once (128 MB)


def run(
    data: Manifest, models: Models, settings: Settings = Settings(), options: MMEBOptions = MMEBOptions()
) -> list[Result]:
    """A result for each model: a row for each data set, the meta-tasks' means, in and out of domain, and all.

    Raises:
        ValueError: if there are no questions, a model does not read text, or settings ask for patches or masks.
        UnreadableError: naming all images that cannot be used, unless `settings.on_error` is "skip".
    """
    _check(models, settings)
    asked, bound = _bind(data, models, settings)
    results = []

    for scorer, result in bound.results("mmeb", settings.as_dict(), asked.notes):
        row = options.paper or visme_row(result.signature.get("model", ""))
        _measure(scorer, data, asked, settings, row, result)
        results.append(result)

    return results


def _check(models: Models, settings: Settings) -> None:
    if settings.distance != "cls" or settings.look.masked:
        raise ValueError("MMEB compares whole images and texts, which have no patches: use the distance cls, no masks")
    deaf = [
        name for name, model in models.items()
        if not (hasattr(model, "encode_items") if isinstance(model, Embedder) else getattr(model, "reads_words", False))
    ]  # fmt: skip
    if deaf:
        raise ValueError(
            f"models without a text tower: {', '.join(deaf)}; MMEB's classes, answers and captions are texts: "
            "use a VisIDEmbed or dual:REPO"
        )


def _bind(data: Manifest, models: Models, settings: Settings) -> tuple[Asked, Bound]:
    """Models bound to the questions; with on_error "skip", unreadable images are left out with their questions."""
    unusable: set[int] = set()
    strict, text = replace(settings, on_error="fail"), data.column("text")
    while True:
        asked = ask(data, unusable)
        try:
            words = {row: text[row] for row in asked.rows().tolist() if text[row]}
            return asked, bind(data, models, strict, asked.rows(), words=words)
        except UnreadableError as error:
            if settings.on_error != "skip":
                raise
            unusable |= set(error.problems)


# Numbers


def _measure(
    scorer: HasMatrix, data: Manifest, asked: Asked, settings: Settings, paper: str | None, result: Result
) -> None:
    values: dict[str, Value] = {}
    ids = texts(data, "id")

    order = {name: place for place, name in enumerate(TASK_OF)}
    for one in sorted(asked.sets, key=lambda one: order.get(one.dataset, len(order))):
        won, chosen = answers(scorer, one)
        value = mean(won, one.owner, settings)
        values[one.dataset] = value
        task = TASK_OF.get(one.dataset, "-")
        result.rows.append({"task": task, "domain": _domain(one.dataset), "dataset": one.dataset, _P1: value})
        result.keep("questions", dataset=[one.dataset] * len(won), id=ids[one.queries], found=ids[chosen],
               **{_P1: won})  # fmt: skip

    strangers = [name for name in values if name not in TASK_OF]
    if strangers:
        result.notes.append(f"not among MMEB's sets, and in no mean over them: {', '.join(strangers)}")
    result.rows.extend(means(values, paper))


def answers(scorer: HasMatrix, one: Questions) -> tuple[Array, Ints]:
    """1 for each question (Q,) whose right candidate comes first, else 0; and the row that comes first."""
    ranked = one.ranked()
    won, first = np.empty(len(one.queries)), np.empty(len(one.queries), dtype=np.int64)

    for part in slices(len(one.queries), max(1, _CELLS // len(ranked))):
        scores = scorer.matrix(one.queries[part], ranked)
        for k, line in zip(range(*part.indices(len(one.queries))), scores, strict=True):
            own = line[np.searchsorted(ranked, one.candidates[k])]
            won[k] = precision_at_1(own, np.arange(len(own)) == 0)
            first[k] = one.candidates[k][0 if won[k] else 1 + first_highest(own[1:])]

    return won, first


def _domain(dataset: str) -> str:
    return "-" if known_name(dataset) is None else OOD if dataset in OUT_OF_DOMAIN else IND


def means(values: Mapping[str, Value], paper: str | None) -> list[Row]:
    """Means over the sets of each meta-task, in and out of domain, and over all, without sets that are not MMEB's."""
    return task_means(
        values, _P1, TASKS, TASK_OF, OUT_OF_DOMAIN, ALL, lambda label: visme_printed(paper, label, "mmeb")
    )
