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
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.manifest import ManifestError
from idmetric.data.split import image_keys, parent_rows
from idmetric.evaluate.protocols.common.columns import own
from idmetric.metric.visid.config import TASKS, VisIDConfig
from idmetric.train.batches import TRAINING, rows_in
from idmetric.train.visme.batch_sampler import Data, Pool, Rows
from idmetric.train.visme.wording import QueryWording, SampleKind

if TYPE_CHECKING:
    from pandas import DataFrame

_NEAR = ("distractor", "identity-edit")  # roles of another identity in the parent's context


@dataclass(frozen=True)
class Prepared:
    """A manifest ready for training: the data of a schedule, the words, and notes on rows that are left out."""

    data: Data
    wording: QueryWording
    notes: tuple[str, ...]


def prepare(
    data: DataFrame,
    settings: VisIDConfig | None = None,
    *,
    splits: Sequence[str] = TRAINING,
    instructions: Sequence[str] = (),
) -> Prepared:
    """Find the samples in a manifest.

    Args:
        splits: of the rows that may be samples.
        instructions: "DATASET=WORDS" for a dataset's queries without text; WORDS is an instruction, or one of
            idmetric.metric.visid.config.TASKS. The default is "recognition".
    """
    table = _Table(data, splits)
    samples = _Samples()
    in_groups = _add_groups(samples, table)
    _add_rows(samples, table, in_groups)
    notes = tuple(f"{count} {reason}" for reason, count in sorted(samples.left_out.items()))
    if not samples.instances:
        raise ManifestError(
            f"no samples in {len(data)} rows ({'; '.join(notes)}): VisME needs identities with two images, "
            "queries with positives, edits with parents, or images with texts"
        )

    pools = tuple(_pool(name, samples, table) for name in sorted(samples.instances))
    hard = {}
    for row, negatives in sorted(samples.hard.items()):
        negatives.discard(row)
        if negatives:
            hard[row] = sorted(negatives)
    dataset_words = _instructions(instructions, set(table.dataset))
    wording = QueryWording(
        settings=settings or VisIDConfig(),
        kind=samples.kinds(len(data)),
        text=table.text,
        answer=table.answer,
        role=table.role,
        parent=table.parent,
        query=frozenset(samples.queries),
        asks=[dataset_words.get(dataset, TASKS["recognition"]) for dataset in table.dataset],
        alone=table.alone,
    )
    return Prepared(Data(pools, table.shown, hard, table.digest(data)), wording, notes)


class _Table:
    """The manifest's relevant columns, with copies resolved to their originals."""

    def __init__(self, data: DataFrame, splits: Sequence[str]) -> None:
        self.identity = data["identity"].tolist()
        self.role: list[str] = data["role"].tolist()
        self.text: list[str | None] = data["text"].tolist()
        self.group = data["group"].tolist()
        self.slot = data["slot"].tolist()
        self.label: list[float] = data["label"].tolist()  # NaN without one
        self.dataset: list[str] = data["dataset"].fillna("data").tolist()
        self.keys = image_keys(data)
        self.alone = frozenset(np.flatnonzero(data["path"].isna()).tolist())
        self.usable = np.isin(np.arange(len(data)), rows_in(data, splits))
        self.answer = own(data, "x_target")
        self.origin = _origins(data)
        parents = parent_rows(data)
        self.parent = np.where(parents < 0, -1, np.array(self.origin, dtype=np.int64)[parents])
        self.shown = _shown(data)

    def digest(self, data: DataFrame) -> str:
        """Digest of everything that decides samples and their words; pixels do not enter it."""
        names = ("id", "identity", "text", "dataset", "role", "parent", "group", "slot", "label", "split")
        columns = [data[name].tolist() for name in names]
        digest = hashlib.sha256()
        for cells in zip(*columns, self.answer, self.origin, self.shown.tolist(), strict=True):
            digest.update(repr(cells).encode())
        return digest.hexdigest()[:16]

    def has_text(self, row: int) -> bool:
        """Whether a row has a text."""
        return bool((self.text[row] or "").strip())


def _shown(data: DataFrame) -> Rows:
    """A number for each identity; an image without one shows the identity of a row with its image, or itself.

    Each text without an image has a number of its own: equal answers and classes may meet in a batch, as "the only
    match of a query" (section 4.2.1) is a matter of the loss.
    """
    table = data[["identity"]].assign(image=image_keys(data))
    of_image = table.groupby("image")["identity"].transform("last")  # of the last row that names it
    subject = table["identity"].fillna(of_image).fillna("\0" + table["image"])
    numbers: Rows = subject.factorize()[0]
    return numbers


def _origins(data: DataFrame) -> list[int]:
    """The row of which each row is a copy, or the first copy if that row is missing; for other rows the row itself."""
    row_of = {name: row for row, name in enumerate(data["id"])}
    first_copy: dict[str, int] = {}
    origins = []
    for row, (name, source) in enumerate(zip(data["id"], own(data, "x_source"), strict=True)):
        if source is None or source == name:
            origins.append(row)
        else:
            origins.append(row_of.get(source, first_copy.setdefault(source, row)))
    return origins


@dataclass
class _Samples:
    """What is collected from a manifest.

    Attributes:
        instances: of each dataset: row, row of the query, rows of the targets (none: the identity's other images).
        members: dataset and identity -> rows of its different images.
        queries: rows that are queries of groups. hard: row -> rows of its designated hard negatives.
        kind: row of a target -> kind of its sample. left_out: reason -> number of rows.
    """

    instances: dict[str, list[tuple[int, int, tuple[int, ...]]]] = field(default_factory=lambda: defaultdict(list))
    members: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    queries: set[int] = field(default_factory=set)
    hard: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    kind: dict[int, SampleKind] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, dataset: str, row: int, query: int, targets: tuple[int, ...], kind: SampleKind) -> None:
        """Add an instance."""
        self.instances[dataset].append((row, query, targets))
        self.kind |= dict.fromkeys(targets or (row,), kind)

    def kinds(self, count: int) -> Rows:
        """The kind of each row."""
        return np.array([self.kind.get(row, SampleKind.IDENTITY) for row in range(count)], np.int64)


def _add_groups(samples: _Samples, table: _Table) -> set[int]:
    """Add the samples of groups; returns the rows that are not samples on their own."""
    groups: dict[str, dict[str, list[int]]] = {}
    for row, (group, slot) in enumerate(zip(table.group, table.slot, strict=True)):
        if group is None or not table.usable[row]:
            continue
        if slot == "candidate":
            slot = _slot_of_candidate(table.label[row])
        groups.setdefault(group, defaultdict(list))[slot].append(row)

    in_groups: set[int] = set()
    for slots in groups.values():
        if "query" in slots:
            in_groups |= _add_queries(samples, table, slots)
        else:
            in_groups |= _add_anchors(samples, table, slots)
    return in_groups


def _slot_of_candidate(label: float) -> str:
    if math.isnan(label):
        return "unknown"
    return "positive" if label > 0 else "negative"


def _add_queries(samples: _Samples, table: _Table, slots: Mapping[str, list[int]]) -> set[int]:
    """Add the queries of a group, and return all of its rows."""
    rows = {row for slot_rows in slots.values() for row in slot_rows}
    positives = tuple(slots.get("positive", ()))
    negatives = [table.origin[row] for row in slots.get("negative", ())]
    for query in slots["query"]:
        if not positives:
            samples.left_out["queries without a positive"] += 1
            continue
        samples.add(table.dataset[query], query, query, positives, SampleKind.QUERY)
        samples.queries.add(query)
        samples.hard[query].update(negatives)
    samples.kind |= dict.fromkeys(rows, SampleKind.QUERY)
    return rows


def _add_anchors(samples: _Samples, table: _Table, slots: Mapping[str, list[int]]) -> set[int]:
    """Add the anchors of a group with their hard negatives, and return the rows that are copies or have no identity."""
    positives = tuple(table.origin[row] for row in slots.get("positive", ()))
    negatives = [table.origin[row] for row in slots.get("negative", ())]
    for row in slots.get("anchor", ()):
        anchor = table.origin[row]
        samples.hard[anchor].update(negatives)
        if not positives:  # a pair that is hard both ways
            for negative in negatives:
                samples.hard[negative].add(anchor)
        elif table.identity[row] is None:
            samples.add(table.dataset[anchor], anchor, anchor, positives, SampleKind.QUERY)

    rows = {row for slot_rows in slots.values() for row in slot_rows}
    return {row for row in rows if table.origin[row] != row or (positives and table.identity[row] is None)}


def _add_rows(samples: _Samples, table: _Table, in_groups: set[int]) -> None:
    """Add the rows that are samples on their own."""
    identity_images: dict[tuple[str, str, str], int] = {}  # dataset, identity, key of the image -> its first row
    for row, identity in enumerate(table.identity):
        if not table.usable[row] or row in in_groups or table.origin[row] != row:
            continue
        if table.role[row] in _NEAR and table.parent[row] >= 0:
            samples.hard[int(table.parent[row])].add(row)

        dataset = table.dataset[row]
        if row in table.alone:
            samples.left_out["texts without an image, in no group of a query"] += 1
        elif table.answer[row]:
            samples.add(dataset, row, row, (row,), SampleKind.ANSWER)
        elif identity is None and table.has_text(row):
            samples.add(dataset, row, row, (row,), SampleKind.CAPTION)
        elif identity is None:
            samples.left_out["images without identity and text"] += 1
        elif table.role[row] == "part-edit":
            samples.left_out["part-edits, whose identity is in question"] += 1
        else:
            identity_images.setdefault((dataset, identity, table.keys[row]), row)

    for (dataset, identity, _), row in identity_images.items():
        samples.members.setdefault((dataset, identity), []).append(row)
    for row in identity_images.values():
        _add_identity(samples, table, row)


def _add_identity(samples: _Samples, table: _Table, row: int) -> None:
    """Add an image with an identity: an edit of its parent, or one of several images."""
    dataset = table.dataset[row]
    parent = int(table.parent[row])
    has_parent = parent >= 0
    is_edit = has_parent and parent != row and table.role[row] == "context-edit" and table.has_text(row)
    if is_edit and table.usable[parent] and table.identity[parent] == table.identity[row]:
        samples.add(dataset, row, parent, (row,), SampleKind.EDIT)
    elif len(samples.members[dataset, table.identity[row]]) > 1:
        samples.add(dataset, row, row, (), SampleKind.IDENTITY)
    elif table.role[row] not in _NEAR or not has_parent:  # those serve as hard negatives
        samples.left_out["images whose identity has no other image"] += 1


def _pool(name: str, samples: _Samples, table: _Table) -> Pool:
    """The instances of a dataset; identities share one tuple of targets."""
    members = {key: tuple(rows) for key, rows in samples.members.items() if key[0] == name}
    rows, queries, targets = zip(*samples.instances[name], strict=True)
    all_targets = []
    for row, instance_targets in zip(rows, targets, strict=True):
        all_targets.append(instance_targets or members[name, table.identity[row]])
    return Pool(name, rows, queries, all_targets)


def _instructions(entries: Sequence[str], datasets: set[str]) -> dict[str, str]:
    """Dataset -> instruction, from "DATASET=WORDS"."""
    instructions = {}
    for entry in entries:
        name, mark, words = entry.partition("=")
        if not mark or not words.strip():
            raise ValueError(f"instruction {entry!r}: write DATASET=WORDS, or DATASET={'|'.join(TASKS)}")
        if name not in datasets:
            raise ValueError(
                f"instruction {entry!r}: there is no dataset {name!r}; there are {', '.join(sorted(datasets))}"
            )
        instructions[name] = TASKS.get(words, words)
    return instructions
