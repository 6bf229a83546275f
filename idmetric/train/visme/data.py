"""From a manifest to VisME's training data: instances of sub-datasets for the schedule, and words for each sample.

Five kinds of rows become samples (VisME, sections 3 and 4.2.1); `dataset` names the sub-dataset:

| rows | query | target |
|---|---|---|
| with an identity | the image, and its text or an instruction | another image of its identity, drawn at random |
| an edit: role context-edit with parent and text | the parent, and the editing instruction with the text | the edit |
| groups of slot query | the query, with its text | one of its positives, or of its candidates of a label above 0 |
| with x_target, e.g. questions | the image, with its text | the text x_target alone |
| without identity and group, with text: captions | the image | its text alone |

A query in a group, and each of its targets and negatives, is an image, a text, or both.

Groups designate hard negatives: rows of slot negative (or candidates of label 0 or less) for their query or anchor, and
the pairs of `idmetric data mine pairs` for each other. Distractors and identity-edits are hard negatives of their
parent. Rows of groups with an x_source are copies of that row.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from idmetric.data.manifest.lineage import has_image, image_keys
from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.metric.models.visid import TASKS, VisIDConfig
from idmetric.train.batches import TRAINING, rows_in
from idmetric.train.visme.batch_sampler import Data, Pool, Rows
from idmetric.train.visme.wording import Kind, Wording

_NEAR = ("distractor", "identity-edit")  # roles of another identity in the parent's context


@dataclass(frozen=True)
class Prepared:
    """A manifest ready for training: the data of a schedule, the words, and notes on rows that are left out."""

    data: Data
    wording: Wording
    notes: tuple[str, ...]


def prepare(
    manifest: Manifest,
    settings: VisIDConfig | None = None,
    *,
    splits: Sequence[str] = TRAINING,
    instructions: Sequence[str] = (),
) -> Prepared:
    """Find the samples in a manifest.

    Args:
        splits: of the rows that may be samples.
        instructions: "DATASET=WORDS" for a dataset's queries without text; WORDS is an instruction, or one of
            idmetric.metric.models.visid.TASKS. The default is "recognition".
    """
    table = _Table(manifest, splits)
    found = _Samples(table)
    words = _instructions(instructions, set(table.dataset))
    notes = tuple(f"{count} {what}" for what, count in sorted(found.left.items()))
    if not found.of:
        raise ManifestError(
            f"no samples in {len(manifest)} rows ({'; '.join(notes)}): VisME needs identities with two images, "
            "queries with positives, edits with parents, or images with texts"
        )
    pools = tuple(found.pool(name) for name in sorted(found.of))
    hard = {row: sorted(rows - {row}) for row, rows in sorted(found.hard.items()) if rows - {row}}
    wording = Wording(
        settings or VisIDConfig(), found.kind, table.text, table.answer, table.role, table.parent,
        frozenset(found.queries), [words.get(d, TASKS["recognition"]) for d in table.dataset], table.alone,
    )  # fmt: skip
    return Prepared(Data(pools, table.shown, hard, table.digest(manifest)), wording, notes)


class _Table:
    """The manifest's relevant columns, with copies resolved to their originals."""

    def __init__(self, manifest: Manifest, splits: Sequence[str]) -> None:
        self.identity, self.role, self.text = (manifest.column(c) for c in ("identity", "role", "text"))
        self.group, self.slot, self.label = (manifest.column(c) for c in ("group", "slot", "label"))
        self.keys = image_keys(manifest)
        self.alone = frozenset(np.flatnonzero(~has_image(manifest)).tolist())
        self.dataset: list[str] = [d or "data" for d in manifest.column("dataset")]
        self.usable = np.isin(np.arange(len(manifest)), rows_in(manifest, splits))
        self.answer, sources = (_column(manifest, name) for name in ("x_target", "x_source"))
        names = manifest.column("id")
        row = {name: i for i, name in enumerate(names)}
        self.origin = _origins(names, sources, row)
        parents = (row.get(p, -1) for p in manifest.column("parent"))
        self.parent = np.array([self.origin[p] if p >= 0 else -1 for p in parents], dtype=np.int64)
        self.shown = self._shown()

    def digest(self, manifest: Manifest) -> str:
        """Digest of all that decides samples and their words, not of pixels."""
        names = ("id", "identity", "text", "dataset", "role", "parent", "group", "slot", "label", "split")
        columns = (*map(manifest.column, names), self.answer, self.origin, self.shown.tolist())
        found = hashlib.sha256()
        for row in zip(*columns, strict=True):
            found.update(repr(row).encode())
        return found.hexdigest()[:16]

    def _shown(self) -> Rows:
        """A number for each identity; an image without one shows the identity of a row with its image, or itself.

        Each text without an image has a number of its own: equal answers and classes may meet in a batch, as "the only
        match of a query" (section 4.2.1) is a matter of the loss.
        """
        known = {key: name for key, name in zip(self.keys, self.identity, strict=True) if name is not None}
        shown = []
        for key, name in zip(self.keys, self.identity, strict=True):
            whole = known.get(key) if name is None else name
            shown.append(("image", key) if whole is None else ("identity", whole))
        number = {what: k for k, what in enumerate(dict.fromkeys(shown))}
        return np.array([number[what] for what in shown], np.int64)


def _column(manifest: Manifest, name: str) -> list[Any]:
    """A free column; None in all rows if the manifest lacks it."""
    return manifest.column(name) if name in manifest.table.column_names else [None] * len(manifest)


def _rank(label: float | None) -> str:
    """The slot of a candidate with this label."""
    return "unknown" if label is None else "positive" if label > 0 else "negative"


def _origins(names: Sequence[str], sources: Sequence[str | None], row: Mapping[str, int]) -> list[int]:
    """The row of which each row is a copy, or the first copy if that row is missing; for other rows the row itself."""
    first: dict[str, int] = {}
    return [
        i if source is None or source == name else row.get(source, first.setdefault(source, i))
        for i, (name, source) in enumerate(zip(names, sources, strict=True))
    ]


class _Samples:
    """Instances by dataset: (its row, query, group of targets)."""

    def __init__(self, table: _Table) -> None:
        self.table = table
        self.kind = np.zeros(len(table.role), np.int64)
        self.of: dict[str, list[tuple[int, int, tuple[int, ...]]]] = defaultdict(list)
        self.members: dict[tuple[str, str], list[int]] = {}
        self.queries: set[int] = set()
        self.hard: dict[int, set[int]] = defaultdict(set)
        self.left: Counter[str] = Counter()
        self._rows(self._groups())

    def _groups(self) -> set[int]:
        """Add the samples of the groups; returns the rows that are not samples on their own."""
        table, slots = self.table, defaultdict[str, dict[str, list[int]]](lambda: defaultdict(list))
        for i, (group, slot) in enumerate(zip(table.group, table.slot, strict=True)):
            if group is not None and table.usable[i]:
                slots[group][_rank(table.label[i]) if slot == "candidate" else slot].append(i)
        return set[int]().union(*map(self._group, slots.values()))

    def _group(self, members: Mapping[str, list[int]]) -> set[int]:
        table, negatives = self.table, [self.table.origin[r] for r in members.get("negative", [])]
        everything = {r for rows in members.values() for r in rows}
        if "query" in members:
            positives = tuple(members.get("positive", []))
            for q in members["query"]:
                if positives:
                    self._add(q, q, positives, Kind.QUERY)
                    self.queries.add(q)
                    self.hard[q].update(negatives)
                else:
                    self.left["queries without a positive"] += 1
            self.kind[sorted(everything)] = Kind.QUERY
            return everything
        for anchor in members.get("anchor", []):
            a = table.origin[anchor]
            self.hard[a].update(negatives)
            if "positive" not in members:  # a pair that is hard both ways
                for n in negatives:
                    self.hard[n].add(a)
            elif table.identity[anchor] is None:
                self._add(a, a, tuple(table.origin[r] for r in members["positive"]), Kind.QUERY)
        copies = {r for r in everything if table.origin[r] != r}
        return copies | ({r for r in everything if table.identity[r] is None} if "positive" in members else set())

    def _rows(self, in_groups: set[int]) -> None:
        """Add the rows that are samples on their own."""
        table = self.table
        seen: dict[tuple[str, str, str], int] = {}  # different images of identities
        for i, identity in enumerate(table.identity):
            if not table.usable[i] or i in in_groups or table.origin[i] != i:
                continue
            if table.role[i] in _NEAR and table.parent[i] >= 0:
                self.hard[int(table.parent[i])].add(i)
            if i in table.alone:
                self.left["texts without an image, in no group of a query"] += 1
            elif table.answer[i]:
                self._add(i, i, (i,), Kind.ANSWER)
            elif identity is None:
                if (table.text[i] or "").strip():
                    self._add(i, i, (i,), Kind.CAPTION)
                else:
                    self.left["images without identity and text"] += 1
            elif table.role[i] == "part-edit":
                self.left["part-edits, whose identity is in question"] += 1
            else:
                seen.setdefault((table.dataset[i], identity, table.keys[i]), i)
        for (dataset, identity, _), i in seen.items():
            self.members.setdefault((dataset, identity), []).append(i)
        for i in seen.values():
            self._identity(i)

    def _identity(self, row: int) -> None:
        table, p = self.table, int(self.table.parent[row])
        if (
            p >= 0 and p != row and table.usable[p] and table.role[row] == "context-edit"
            and (table.text[row] or "").strip() and table.identity[p] == table.identity[row]
        ):  # fmt: skip
            self._add(row, p, (row,), Kind.EDIT)
        elif len(self.members[table.dataset[row], table.identity[row]]) > 1:
            self._add(row, row, (), Kind.IDENTITY)
        elif table.role[row] not in _NEAR or p < 0:  # the others serve as hard negatives
            self.left["images whose identity has no other image"] += 1

    def _add(self, row: int, query: int, targets: tuple[int, ...], kind: int) -> None:
        self.of[self.table.dataset[row]].append((row, query, targets))
        self.kind[list(targets) or [row]] = kind

    def pool(self, name: str) -> Pool:
        """The instances of a dataset; identities share one tuple of targets."""
        rows, queries, targets = zip(*self.of[name], strict=True)
        members = {what: tuple(own) for what, own in self.members.items() if what[0] == name}
        whole = [own or members[name, self.table.identity[row]] for row, own in zip(rows, targets, strict=True)]
        return Pool(name, rows, queries, whole)


def _instructions(given: Sequence[str], datasets: set[str]) -> dict[str, str]:
    out = {}
    for entry in given:
        name, mark, words = entry.partition("=")
        if not mark or not words.strip():
            raise ValueError(f"instruction {entry!r}: write DATASET=WORDS, or DATASET={'|'.join(TASKS)}")
        if name not in datasets:
            raise ValueError(
                f"instruction {entry!r}: there is no dataset {name!r}; there are {', '.join(sorted(datasets))}"
            )
        out[name] = TASKS.get(words, words)
    return out
