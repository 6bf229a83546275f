"""MMEB's questions: queries, each with its own list of candidates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from idmetric.data.importers.mmeb import candidate_id
from idmetric.data.importers.mmeb_sets import known_name
from idmetric.data.manifest.same_image import image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common.arrays import Ints
from idmetric.protocols.common.intervals import codes

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
                known[number] = _row(row_of, candidate_id(*place, number), names[row])
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
    return Asked(tuple(_questions(name, asked, units) for name, asked in found.items()), notes)


def _row(row_of: dict[str, int], candidate: str, query: str) -> int:
    if candidate not in row_of:
        raise ValueError(f"query {query} lists the candidate {candidate}, which has no row in the manifest")
    return row_of[candidate]


def _questions(name: str, asked: list[tuple[int, Ints]], units: Ints) -> Questions:
    queries = np.array([row for row, _ in asked], dtype=np.int64)
    return Questions(name, queries, tuple(ranked for _, ranked in asked), units[queries])
