"""The triplets that ID-Sim trains on, and the pictures of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.data.manifest import ManifestError
from idmetric.train.batches import Pictures, batch_rows, fingerprint, generator, rows_in, share

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = NDArray[np.int64]
SLOTS = ("anchor", "positive", "negative")
_MAKE = (
    "`idmetric data mine triplets` makes them; for a folder of photos alone `idmetric data mine negatives` does, and "
    "`idmetric train ilgen` needs none"
)


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
        rows = [self.rows.ravel()]
        for positives, negatives in self.others.values():
            rows += [positives, negatives]
        return np.unique(np.concatenate(rows))

    def draw(self, triplet: int, key: Sequence[int | str]) -> list[int]:
        """Rows of a triplet's anchor, positive and negative."""
        anchor, positive, negative = self.rows[triplet].tolist()
        if triplet in self.others:
            rng = generator(*key, "of several")
            positive, negative = (int(rng.choice(rows)) for rows in self.others[triplet])
        return [anchor, positive, negative]


def read_triplets(data: DataFrame, splits: Sequence[str]) -> Triplets:
    """The triplets in the rows of these splits: groups with slots anchor, positive and negative."""
    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: {slot: [] for slot in SLOTS})
    rows_of_splits = rows_in(data, splits)
    columns = data.loc[rows_of_splits, ["group", "slot"]]
    for row, group, slot in columns[columns["slot"].isin(SLOTS)].itertuples():
        groups[group][slot].append(row)
    if not groups:
        there = ", ".join(sorted(data["split"].fillna("(none)").unique()))
        raise ManifestError(
            f"no triplets in split {splits[-1]} of {len(data)} rows: no group has the slots {', '.join(SLOTS)} there "
            f"(the splits are {there}); {_MAKE}"
        )
    identities = data["identity"].tolist()
    facts = data[["id", "identity", "role"]].to_numpy().tolist()
    codes, _ = data["identity"].factorize()
    codes = np.where(codes < 0, -1 - np.arange(len(data)), codes)

    rows = []
    others = {}
    digested = []
    for triplet, (name, group) in enumerate(groups.items()):
        _check(name, group, identities)
        anchors, positives, negatives = (group[slot] for slot in SLOTS)
        rows.append([anchors[0], positives[0], negatives[0]])
        if len(positives) > 1 or len(negatives) > 1:
            others[triplet] = np.array(positives, np.int64), np.array(negatives, np.int64)
        digested.append([[facts[row] for row in group[slot]] for slot in SLOTS])
    return Triplets(np.array(rows, np.int64), others, codes, fingerprint(digested))


def _check(name: str, group: dict[str, list[int]], identities: Sequence[str | None]) -> None:
    """Check that a group is whole, has one anchor, and agrees with its identities."""
    anchors, positives, negatives = ({identities[row] for row in group[slot]} for slot in SLOTS)
    is_complete = len(group["anchor"]) == 1 and positives and negatives
    if not is_complete or anchors != positives or anchors & {None, *negatives}:
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
class TripletLoader:
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
        start = number * self.batch_size
        triplets = []
        for place in range(start, start + self.batch_size):
            triplets.append(self.triplets.draw(int(chosen[place]), (self.seed, step, place)))
        rows = np.array(triplets).T

        pixels = []
        for slot, slot_rows in enumerate(rows.tolist()):
            for place, row in enumerate(slot_rows, start):
                pixels.append(self.pictures.read_bytes(row, generator(self.seed, step, 3 * place + slot)))
        return MicroBatch(
            pixels=torch.stack(pixels).view(*rows.shape, *pixels[0].shape),
            identity=torch.from_numpy(self.triplets.identity[rows]),
            place=(step, number),
            rows=rows.tolist(),
        )
