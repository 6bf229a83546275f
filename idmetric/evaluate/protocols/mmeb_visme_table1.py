"""MMEB: precision at 1 on 36 sets of four meta-tasks (VisME, section 5.1; Tables 1 to 5).

    idmetric eval mmeb --data mmeb-eval.parquet --model visid_3b --model dual:openai/clip-vit-large-patch14 --out r/

A query ranks its own candidates, the first of which is the right one; each side is an image, a text, or both. P@1 is
the share of queries that rank it first; a tie with another candidate loses. MMEB's number is the mean over all 36
sets, which the printed means confirm (but for UniME's, a mean of four).

Models must read text. VisIDEmbed gets a row's text as it is, including MMEB's instruction, after its image. Dual
encoders (`dual:REPO`) embed an image, a text, or the mean of both, each of unit length. docs/protocols-mmeb.md has the
data and the papers' numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.importers.mmeb_sets import SETS
from idmetric.data.look import UnreadableError
from idmetric.data.manifest.lineage import image_keys
from idmetric.evaluate.protocols.common.columns import Ints
from idmetric.evaluate.protocols.common.first_choice import Benchmark, Questions, measure_sets, reads_words
from idmetric.evaluate.protocols.common.intervals import codes
from idmetric.evaluate.protocols.common.paper_numbers import PAPER_HELP, rows, visme_row
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import Bound, EvalSettings, Models, bind
from idmetric.metric.files.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


@dataclass(frozen=True)
class MMEBOptions(Checked):
    """Options of the protocol `mmeb`."""

    paper: str | None = option(None, PAPER_HELP, choices=rows("visme", "mmeb"))


MMEB = Benchmark("MMEB", SETS, {})
COLUMN = "x_candidates"


def run(
    data: Manifest, models: Models, settings: EvalSettings = EvalSettings(), options: MMEBOptions = MMEBOptions()
) -> list[Result]:
    """A result for each model: a row for each data set, the meta-tasks' means, in and out of domain, and all.

    Raises:
        ValueError: if there are no questions, a model does not read text, or settings ask for patches or masks.
        UnreadableError: naming all images that cannot be used, unless `settings.on_error` is "skip".
    """
    if settings.distance != "cls" or settings.look.masked:
        raise ValueError("MMEB compares whole images and texts, which have no patches: use the distance cls, no masks")
    deaf = [name for name, model in models.items() if not reads_words(model)]
    if deaf:
        raise ValueError(
            f"models without a text tower: {', '.join(deaf)}; MMEB's classes, answers and captions are texts: "
            "use a VisIDEmbed or dual:REPO"
        )

    sets, notes, bound = _bind(data, models, settings)
    results = []
    for scorer, result in bound.results("mmeb", settings.as_dict(), notes):
        row = options.paper or visme_row("mmeb", result.signature)
        measure_sets(scorer, data, sets, MMEB, settings, row, result)
        results.append(result)
    return results


def _bind(data: Manifest, models: Models, settings: EvalSettings) -> tuple[list[Questions], list[str], Bound]:
    """Models bound to the questions; with on_error "skip", unreadable images are left out with their questions."""
    unusable: set[int] = set()
    text = data.column("text")
    while True:
        sets, notes = ask(data, unusable)
        rows = np.unique(np.concatenate([one.rows() for one in sets]))
        words = {row: text[row] for row in rows.tolist() if text[row]}
        try:
            return sets, notes, bind(data, models, settings, rows, words=words)
        except UnreadableError as error:
            if settings.on_error != "skip":
                raise
            unusable |= set(error.problems)


def ask(data: Manifest, unusable: Collection[int] = ()) -> tuple[list[Questions], list[str]]:
    """The questions of each data set of a manifest from `idmetric data import mmeb`, and notes on those left out.

    Queries of one image are one unit of intervals.

    Args:
        unusable: rows that cannot be embedded; questions that need one are left out, with a note.

    Raises:
        ValueError: if there are no questions, or a candidate has no row.
    """
    import pyarrow as pa

    from idmetric.data.importers.mmeb import candidate_id

    if COLUMN not in data.table.column_names:
        raise ValueError(f"no column {COLUMN}: make the manifest by idmetric data import mmeb, of an evaluation table")
    kind = data.table.schema.field(COLUMN).type
    if not ((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_integer(kind.value_type)):
        raise ValueError(
            f"column {COLUMN} holds {kind} instead of lists of whole numbers: keep manifests of MMEB as Parquet"
        )
    lists = data.table[COLUMN].combine_chunks()  # without a Python object for each of millions of numbers
    values, ends = lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_numpy(zero_copy_only=False)
    names, datasets, splits = (data.column(c) for c in ("id", "dataset", "split"))
    row_of = {name: row for row, name in enumerate(names)}
    units, gone = codes(image_keys(data)), set(unusable)

    @cache
    def candidate(dataset: str, split: str, number: int) -> int:
        name = candidate_id(dataset, split, number)
        if name not in row_of:
            raise ValueError(f"a query lists the candidate {name}, which has no row in the manifest")
        return row_of[name]

    found: dict[str, list[tuple[int, Ints]]] = {}
    lost: dict[str, int] = {}
    for row in np.flatnonzero(np.diff(ends)).tolist():
        place = datasets[row] or "", splits[row] or ""
        ranked = [candidate(*place, number) for number in values[ends[row] : ends[row + 1]].tolist()]
        name = MMEB.known_name(place[0]) or place[0]
        if not gone.isdisjoint([row, *ranked]):
            lost[name] = lost.get(name, 0) + 1
        else:
            found.setdefault(name, []).append((row, np.array(ranked, dtype=np.int64)))

    notes = [
        f"{name}: questions left out, as they need rows that cannot be used: {count}" for name, count in lost.items()
    ]
    if not found:
        raise ValueError("no questions: " + ("; ".join(notes) or f"column {COLUMN} is empty"))
    made = []
    for name, asked in found.items():
        queries = np.array([row for row, _ in asked], dtype=np.int64)
        candidates = [ranked for _, ranked in asked]
        right = [np.arange(len(ranked)) == 0 for ranked in candidates]
        made.append(Questions(name, MMEB.task_of.get(name), queries, units[queries], candidates, right))
    return made, notes


PROTOCOL = Protocol(
    name="mmeb",
    run=run,
    options=MMEBOptions,
)
