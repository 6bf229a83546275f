"""The triplets that ID-Sim trains on, and the pictures of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.train.batches import Pictures, batch_rows, fingerprint, generator, rows_in, share

Rows = NDArray[np.int64]
SLOTS = ("anchor", "positive", "negative")
_MAKE = "`idmetric data mine triplets` makes them"


@dataclass(frozen=True)
class Triplets:
    """Rows of a manifest in threes.

    Attributes:
        rows: (T, 3) rows of anchor, positive and negative: the only ones of a group, as in the paper, or its first.
        others: triplet -> its positives and negatives, if it has several: one of each is drawn each time.
        identity: number of each row's identity (N,), unique if the identity is unknown.
        fingerprint: of the triplets' ids, identities and roles, not of their pixels.
    """

    rows: Rows
    others: dict[int, tuple[Rows, Rows]]
    identity: Rows
    fingerprint: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def used(self) -> Rows:
        """All rows of the triplets."""
        several = (rows for parts in self.others.values() for rows in parts)
        return np.unique(np.concatenate([self.rows.ravel(), *several]))

    def draw(self, triplet: int, key: Sequence[int | str]) -> list[int]:
        """Rows of a triplet's anchor, positive and negative."""
        anchor, positive, negative = self.rows[triplet].tolist()
        if triplet in self.others:
            rng = generator(*key, "of several")
            positive, negative = (int(rng.choice(rows)) for rows in self.others[triplet])
        return [anchor, positive, negative]


def read_triplets(data: Manifest, splits: Sequence[str]) -> Triplets:
    """The triplets in the rows of these splits: groups with slots anchor, positive and negative."""
    names, slots = data.column("group"), data.column("slot")
    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: {slot: [] for slot in SLOTS})
    for row in rows_in(data, splits).tolist():
        if names[row] is not None and slots[row] in SLOTS:
            groups[names[row]][slots[row]].append(row)
    if not groups:
        there = ", ".join(sorted({split or "(none)" for split in data.column("split")}))
        raise ManifestError(
            f"no triplets in split {splits[-1]} of {len(data)} rows: no group has the slots {', '.join(SLOTS)} there "
            f"(the splits are {there}); {_MAKE}"
        )
    ids, identities, roles = (data.column(name) for name in ("id", "identity", "role"))
    for name, group in groups.items():
        _check(name, group, identities)
    number = {name: k for k, name in enumerate(dict.fromkeys(n for n in identities if n is not None))}
    codes = [number.get(name, -1 - row) for row, name in enumerate(identities)]
    sets = [tuple(np.array(group[slot], np.int64) for slot in SLOTS) for group in groups.values()]
    named = [[[(ids[row], identities[row], roles[row]) for row in part] for part in parts] for parts in sets]
    return Triplets(
        np.array([[part[0] for part in parts] for parts in sets], np.int64),
        {t: (p, n) for t, (_, p, n) in enumerate(sets) if len(p) > 1 or len(n) > 1},
        np.array(codes, np.int64),
        fingerprint(named),
    )


def _check(name: str, group: dict[str, list[int]], identities: Sequence[str | None]) -> None:
    """Check that a group is whole, has one anchor, and agrees with its identities."""
    anchors, positives, negatives = ([identities[row] for row in group[slot]] for slot in SLOTS)
    own = {*anchors, *positives}
    if len(anchors) != 1 or not positives or not negatives or len(own) != 1 or own & {None, *negatives}:
        raise ManifestError(
            f"group {name!r} must be a triplet: one anchor, positives of its identity, and negatives of others; "
            f"fix columns 'slot' and 'identity', or make new triplets ({_MAKE})"
        )


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of B triplets.

    Attributes:
        pixels: (3, B, 3, H, W) of anchors, positives, negatives, in uint8. identity: their numbers (3, B).
        place: step and number of the micro-batch. rows: rows (3, B) of the pictures in the manifest.
    """

    pixels: Tensor
    identity: Tensor
    place: tuple[int, int]
    rows: list[list[int]]


@dataclass(frozen=True)
class Loader:
    """Draws the triplets of a step and reads their pictures.

    Args:
        batch_size, accumulation: triplets of a micro-batch, micro-batches of a step.
    """

    triplets: Triplets
    pictures: Pictures
    batch_size: int
    accumulation: int
    seed: int

    def load(self, step: int, rank: int, count: int) -> list[MicroBatch]:
        """A process's share of a step; an epoch shows each triplet once, without an incomplete last batch."""
        chosen = batch_rows(step, len(self.triplets), self.batch_size * self.accumulation, self.seed)
        return [self._micro_batch(step, number, chosen) for number in share(self.accumulation, rank, count)]

    def _micro_batch(self, step: int, number: int, chosen: Rows) -> MicroBatch:
        places = range(number * self.batch_size, (number + 1) * self.batch_size)
        rows = np.array([self.triplets.draw(int(chosen[k]), (self.seed, step, k)) for k in places]).T
        pixels = [
            self.pictures.read_bytes(int(row), generator(self.seed, step, 3 * k + slot))
            for slot, own in enumerate(rows)
            for k, row in zip(places, own, strict=True)
        ]
        identity = torch.from_numpy(self.triplets.identity[rows])
        return MicroBatch(
            torch.stack(pixels).view(*rows.shape, *pixels[0].shape), identity, (step, number), rows.tolist()
        )
