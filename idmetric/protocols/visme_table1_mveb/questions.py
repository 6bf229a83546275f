"""MVEB's questions: queries, the rows ranked for each query, and the texts that go with the images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from idmetric.data.manifest.same_image import image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.models.visid import TASKS
from idmetric.protocols.common.arrays import Ints, Truths
from idmetric.protocols.common.intervals import codes, owners
from idmetric.protocols.common.ranked import Search
from idmetric.protocols.visme_table1_mveb.datasets import TASK_OF, known_name

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
        data: the manifest; an image without a group is in it twice, as query and as candidate.
        origin: (rows of data,), their rows in the given manifest.
        sets: the questions of each data set. notes: on rows that were left out.
    """

    data: Manifest
    origin: Ints
    sets: Sequence[Questions]
    notes: list[str] = field(default_factory=list)

    def instructed(self) -> dict[int, str]:
        """Row -> the text for a model that takes instructions; rows without an entry get its default.

        A query has its own text, or else its meta-task's instruction; a candidate has its own text.
        """
        text, group = self.data.column("text"), self.data.column("group")
        said: dict[int, str] = {}
        for one in self.sets:
            asked = set(one.queries.tolist())
            for row in one.rows().tolist():
                if row in asked:
                    words = text[row] or (TASKS[INSTRUCTIONS[one.task]] if one.task else None)
                else:  # the text of a single image belongs to its query
                    words = text[row] if group[row] is not None else None
                if words:
                    said[row] = words

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
            label, right if it has the query's identity), or slots positive and negative. Images without a group but
            with an identity ask for each other.
        tasks: data set -> meta-task, for sets that are not MVEB's.

    Raises:
        ValueError: if there are no questions, or a candidate is neither right nor wrong.
    """
    named = _sets(data)
    plain = [row for rows, groups in named.values() if not groups for row in rows]
    origin = np.array([*range(len(data)), *plain], dtype=np.int64)
    whole = _doubled(data, plain)
    twin = {row: len(data) + k for k, row in enumerate(plain)}
    columns = _Columns(whole)
    made, notes = [], []

    for name, (rows, groups) in named.items():
        own = known_name(name)
        task = tasks.get(name, tasks.get(own or name, TASK_OF.get(own or "")))
        if groups:
            found, more = columns.grouped(own or name, task, rows, groups)
        else:
            found, more = columns.plain(own or name, task, rows, [twin[row] for row in rows])
        notes += more
        if found is not None:
            made.append(found)

    if not made:
        raise ValueError("no questions: " + ("; ".join(notes) or "give groups of a query and its candidates"))
    return Asked(whole, origin, made, notes)


def _sets(data: Manifest) -> dict[str, tuple[list[int], dict[Group, list[int]]]]:
    """Data set -> rows of images without a group, and group -> rows; groups of one name in two splits are two."""
    found: dict[str, tuple[list[int], dict[Group, list[int]]]] = {}
    columns = (data.column(c) for c in ("dataset", "group", "split", "slot", "identity"))
    for row, (name, group, split, slot, identity) in enumerate(zip(*columns, strict=True)):
        rows, groups = found.setdefault(name or "all", ([], defaultdict(list)))
        if slot == "query" or slot in _RANKED:
            groups[group, split].append(row)
        elif identity is not None:
            rows.append(row)
    return found


def _doubled(data: Manifest, rows: Sequence[int]) -> Manifest:
    """The manifest with copies of these rows at the end, under new ids."""
    if not rows:
        return data
    names = data.column("id")
    taken = data.take(np.array([*range(len(data)), *rows], dtype=np.int64))
    return taken.replace(id=[*names, *(f"{names[row]} (query)" for row in rows)])


class _Columns:
    """Columns of a manifest, and the questions that they make."""

    def __init__(self, data: Manifest) -> None:
        self.slot, self.label, self.name = (data.column(c) for c in ("slot", "label", "identity"))
        self.identity, self.image = codes(self.name), codes(image_keys(data))

    def grouped(
        self, dataset: str, task: str | None, rows: Sequence[int], groups: Mapping[Group, Sequence[int]]
    ) -> tuple[Questions | None, list[str]]:
        """Queries with their own candidates; if none has a wrong candidate, with all targets of the set."""
        notes = [f"{dataset}: {len(rows)} images outside of groups are left out"] if rows else []
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

    def plain(
        self, dataset: str, task: str | None, rows: Sequence[int], twins: Sequence[int]
    ) -> tuple[Questions | None, list[str]]:
        """Questions of single images: each searches the other images of its identity among all images of the set."""
        if not rows:
            return None, []
        search = Search(np.array(twins, dtype=np.int64), np.array(rows, dtype=np.int64), self.identity, self.image)
        has = search.positives() > 0
        if not has.any():
            return None, [f"{dataset}: no identity has two images"]
        lone = int((~has).sum())
        text = f"{dataset}: {lone} images are the only one of their identity: ranked, but not queried"
        notes = [text] if lone else []
        return self._of_pool(dataset, task, search.only(has)), notes

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
        return self._of_pool(dataset, task, search.only(search.positives() > 0))

    def _of_pool(self, dataset: str, task: str | None, search: Search) -> Questions:
        none = np.zeros(0, dtype=np.int64)
        owner = search.identity[search.queries]
        return Questions(dataset, task, search.queries, owner, none, none, none.astype(bool), search)
