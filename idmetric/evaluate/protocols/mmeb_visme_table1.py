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
from idmetric.data.old_manifest.lineage import image_keys
from idmetric.evaluate.protocols.common.columns import Ints
from idmetric.evaluate.protocols.common.first_choice import Benchmark, Questions, measure_sets, reads_words
from idmetric.evaluate.protocols.common.intervals import codes
from idmetric.evaluate.protocols.common.paper_numbers import PAPER_HELP, rows, visme_row
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind
from idmetric.evaluate.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.old_manifest.table import Manifest


@dataclass(frozen=True)
class MMEBOptions(Checked):
    """Options of the protocol `mmeb`."""

    paper: str | None = option(None, PAPER_HELP, choices=rows("visme", "mmeb"))


MMEB = Benchmark("MMEB", SETS, {})
COLUMN = "x_candidates"


def run(
    data: Manifest,
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

    data = data.replace(group=data.column("id"))  # candidates of a group do not need each other
    skip = settings.on_error == "skip"

    def needed(manifest: Manifest) -> Ints:
        sets, _ = ask(manifest, skip)
        return np.unique(np.concatenate([questions.rows() for questions in sets]))

    def words(manifest: Manifest) -> dict[int, str]:
        return {row: text for row, text in enumerate(manifest.column("text")) if text}

    bound = bind(data, models, settings, needed, words)
    sets, notes = ask(bound.manifest, skip)
    results = []
    for scorer, result in bound.results("mmeb", settings.as_dict(), notes):
        paper = options.paper or visme_row("mmeb", result.signature)
        measure_sets(scorer, bound.manifest, sets, MMEB, settings, paper, result)
        results.append(result)
    return results


def ask(data: Manifest, skip: bool = False) -> tuple[list[Questions], list[str]]:
    """The questions of each data set of a manifest from `idmetric data import mmeb`, and notes on those left out.

    Queries of one image are one unit of intervals.

    Args:
        skip: leave out questions with a candidate that has no row, with a note.

    Raises:
        ValueError: if there are no questions, or a candidate has no row.
    """
    from idmetric.data.importers.mmeb import candidate_id

    row_of = {name: row for row, name in enumerate(data.column("id"))}
    datasets = [name or "" for name in data.column("dataset")]
    splits = [name or "" for name in data.column("split")]
    units = codes(image_keys(data))

    queries: dict[str, list[int]] = defaultdict(list)  # data set -> rows
    candidates: dict[str, list[Ints]] = defaultdict(list)  # data set -> rows for each of its queries
    lost: Counter[str] = Counter()
    numbers, ends = _candidate_numbers(data)
    for row in np.flatnonzero(np.diff(ends)).tolist():
        ids = []
        for number in numbers[ends[row] : ends[row + 1]].tolist():
            ids.append(candidate_id(datasets[row], splits[row], number))
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


def _candidate_numbers(data: Manifest) -> tuple[Ints, Ints]:
    """The numbers of all queries' candidates, and where each row's begin (N + 1,); no Python object for each number."""
    import pyarrow as pa

    if COLUMN not in data.table.column_names:
        raise ValueError(f"no column {COLUMN}: make the manifest by idmetric data import mmeb, of an evaluation table")
    column = data.table[COLUMN]
    try:
        lists = column.cast(pa.list_(pa.int64())).combine_chunks()
    except pa.ArrowException as error:
        raise ValueError(
            f"column {COLUMN} holds {column.type} instead of lists of whole numbers: keep manifests of MMEB as Parquet"
        ) from error
    numbers = lists.values.to_numpy(zero_copy_only=False)
    return numbers, lists.offsets.to_numpy(zero_copy_only=False)


PROTOCOL = Protocol(
    name="mmeb",
    run=run,
    options=MMEBOptions,
)
