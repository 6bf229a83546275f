"""MMEB: precision at 1 on 36 sets of four meta-tasks (VisME, section 5.1; Tables 1 to 5).

    idmetric eval mmeb --data mmeb-eval.parquet --model visid_3b --model dual:openai/clip-vit-large-patch14 --out r/

A query ranks its own candidates, the first of which is the right one; each side is an image, a text, or both. P@1 is
the share of queries that rank it first; a tie with another candidate loses. MMEB's number is the mean over all 36
sets, which the printed means confirm (but for UniME's, a mean of four).

Models must read text. VisIDEmbed gets a row's text as it is, including MMEB's instruction, after its image. Dual
encoders (`dual:REPO`) embed an image, a text, or the mean of both, each of unit length. docs/protocols/mmeb.md has the
data and the papers' numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.importers.mmeb_sets import SETS
from idmetric.data.split import image_keys
from idmetric.evaluate.protocols.common.columns import Ints, own
from idmetric.evaluate.protocols.common.first_choice import Benchmark, Questions, measure_sets, reads_words
from idmetric.evaluate.protocols.common.intervals import codes
from idmetric.evaluate.protocols.common.paper_numbers import PAPER_HELP, rows, visme_row
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind
from idmetric.evaluate.settings import Checked, option

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class MMEBOptions(Checked):
    """Options of the protocol `mmeb`."""

    paper: str | None = option(None, PAPER_HELP, choices=rows("visme", "mmeb"))


MMEB = Benchmark("MMEB", SETS, {})
COLUMN = "x_candidates"


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: MMEBOptions = MMEBOptions(),
) -> list[Result]:
    """A result for each model: a row for each data set, the meta-tasks' means, in and out of domain, and all.

    Raises:
        ValueError: if there are no questions, a model does not read text, or settings ask for patches or masks.
        ManifestError: naming all images that cannot be used, unless `settings.on_error` is "skip".
    """
    if settings.distance != "cls" or settings.look.masked:
        raise ValueError("MMEB compares whole images and texts, which have no patches: use the distance cls, no masks")
    deaf = [name for name, model in models.items() if not reads_words(model)]
    if deaf:
        raise ValueError(
            f"models without a text tower: {', '.join(deaf)}; MMEB's classes, answers and captions are texts: "
            "use a VisIDEmbed or dual:REPO"
        )

    data = data.assign(group=data["id"])  # candidates of a group do not need each other
    skip = settings.on_error == "skip"

    def needed(manifest: DataFrame) -> Ints:
        sets, _ = ask(manifest, skip)
        return np.unique(np.concatenate([questions.rows() for questions in sets]))

    def words(manifest: DataFrame) -> dict[int, str]:
        texts: dict[int, str] = manifest["text"].dropna().to_dict()
        return texts

    bound = bind(data, models, settings, needed, words)
    sets, notes = ask(bound.manifest, skip)
    results = []
    for scorer, result in bound.results("mmeb", settings.as_dict(), notes):
        paper = options.paper or visme_row("mmeb", result.signature)
        measure_sets(scorer, bound.manifest, sets, MMEB, settings, paper, result)
        results.append(result)
    return results


def ask(data: DataFrame, skip: bool = False) -> tuple[list[Questions], list[str]]:
    """The questions of each data set of a manifest from `idmetric data import mmeb`, and notes on those left out.

    Queries of one image are one unit of intervals.

    Args:
        skip: leave out questions with a candidate that has no row, with a note.

    Raises:
        ValueError: if there are no questions, or a candidate has no row.
    """
    from idmetric.data.importers.mmeb import candidate_id

    row_of = {name: row for row, name in enumerate(data["id"])}
    datasets = data["dataset"].fillna("")
    splits = data["split"].fillna("")
    units = codes(image_keys(data))

    queries: dict[str, list[int]] = defaultdict(list)  # data set -> rows
    candidates: dict[str, list[Ints]] = defaultdict(list)  # data set -> rows for each of its queries
    lost: Counter[str] = Counter()
    for row, numbers in _candidate_numbers(data).items():
        ids = [candidate_id(datasets[row], splits[row], number) for number in numbers.tolist()]
        missing = [candidate for candidate in ids if candidate not in row_of]
        if missing and not skip:
            raise ValueError(f"a query lists the candidate {missing[0]}, which has no row in the manifest")
        name = MMEB.known_name(datasets[row]) or datasets[row]
        if missing:
            lost[name] += 1
        else:
            queries[name].append(row)
            candidates[name].append(np.array([row_of[candidate] for candidate in ids], dtype=np.int64))

    notes = []
    for name, count in lost.items():
        notes.append(f"{name}: questions left out, as they need rows that are missing: {count}")
    if not queries:
        raise ValueError("no questions: " + ("; ".join(notes) or f"column {COLUMN} is empty"))

    sets = []
    for name, query_rows in queries.items():
        rows = np.array(query_rows, dtype=np.int64)
        is_right = [np.arange(len(ranked)) == 0 for ranked in candidates[name]]
        sets.append(
            Questions(
                name,
                MMEB.task_of.get(name),
                rows,
                units[rows],
                candidates[name],
                is_right,
            )
        )
    return sets, notes


def _candidate_numbers(data: DataFrame) -> dict[int, Ints]:
    """Row of each query -> the numbers of its candidates."""
    if COLUMN not in data:
        raise ValueError(f"no column {COLUMN}: make the manifest by idmetric data import mmeb, of an evaluation table")
    numbers_of: dict[int, Ints] = {}
    for row, value in enumerate(own(data, COLUMN)):
        if value is None:
            continue
        numbers = np.asarray(value)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise ValueError(
                f"row {row + 1}, column {COLUMN}: {value!r:.50} instead of a list of whole numbers: keep manifests of "
                "MMEB as Parquet"
            )
        if len(numbers):
            numbers_of[row] = numbers
    return numbers_of


PROTOCOL = Protocol(
    name="mmeb",
    run=run,
    options=MMEBOptions,
)
