"""The triplets that ID-Sim trains on, and the pictures of a step."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.train.batches import Pictures, batch_rows, generator, rows_in, share

Rows = NDArray[np.int64]
SLOTS = ("anchor", "positive", "negative")
_MAKE = "`idmetric data mine triplets` makes them"


@dataclass(frozen=True)
class Triplets:
    """Rows of a manifest in threes.

    Attributes:
        names: of the T groups.
        rows: (T, 3) rows of anchor, positive and negative: the only ones of a group, as in the paper, or its first.
        others: triplet -> its positives and negatives, if it has several: one of each is drawn each time.
        identity: number of each row's identity (N,), unique if the identity is unknown.
        mixtures: number of triplets of each x_mixture (real, context, identity); empty without that column.
        fingerprint: of the triplets' ids, identities and roles, not of their pixels.
    """

    names: tuple[str, ...]
    rows: Rows
    others: dict[int, tuple[Rows, Rows]]
    identity: Rows
    mixtures: dict[str, int]
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
    """The triplets in the rows of these splits: groups with slots anchor, positive and negative.

    Raises:
        ManifestError: if there are none, or a group is incomplete or contradicts its identities, with how to fix it.
    """
    names, slots = data.column("group"), data.column("slot")
    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_in(data, splits).tolist():
        if names[row] is not None and slots[row] in SLOTS:
            groups[names[row]][slots[row]].append(row)
    if not groups:
        raise ManifestError(_none(data, splits))
    identities = data.column("identity")
    _check(groups, identities)
    number = {name: k for k, name in enumerate(dict.fromkeys(n for n in identities if n is not None))}
    codes = [number.get(name, -1 - row) for row, name in enumerate(identities)]
    sets = [tuple(np.array(group[slot], np.int64) for slot in SLOTS) for group in groups.values()]
    rows = np.array([[part[0] for part in parts] for parts in sets], np.int64)
    return Triplets(
        tuple(groups), rows, {t: (p, n) for t, (_, p, n) in enumerate(sets) if len(p) > 1 or len(n) > 1},
        np.array(codes, np.int64), _mixtures(data, rows), _digest(data, sets),
    )  # fmt: skip


def _none(data: Manifest, splits: Sequence[str]) -> str:
    what = f"of split {splits[-1]} " if "" not in splits else ""
    if any(slot in SLOTS for slot in data.column("slot")):
        there = ", ".join(sorted({(split or "(none)").casefold() for split in data.column("split")}))
        return f"no triplets {what}to train on: the splits are {there}; training takes train or none"
    return f"no triplets {what}among {len(data)} rows: none has a group and the slot {', '.join(SLOTS)}; {_MAKE}"


def _check(groups: dict[str, dict[str, list[int]]], identities: Sequence[str | None]) -> None:
    """Check that groups are whole, have one anchor each, and agree with their identities."""
    for name, slots in groups.items():
        if fault := _fault(slots, identities):
            raise ManifestError(
                f"group {name!r} has {fault}: fix columns 'slot' and 'identity', or make new triplets ({_MAKE})"
            )


def _fault(slots: dict[str, list[int]], identities: Sequence[str | None]) -> str:
    if lacking := [slot for slot in SLOTS if not slots[slot]]:
        return f"no {lacking[0]}"
    if len(slots["anchor"]) > 1:
        return "several anchors"
    anchor = identities[slots["anchor"][0]]
    if anchor is None:
        return "an anchor without identity"
    if any(identities[row] != anchor for row in slots["positive"]):
        return "a positive of another identity than its anchor's"
    if any(identities[row] == anchor for row in slots["negative"]):
        return "a negative of its anchor's identity"
    return ""


def _mixtures(data: Manifest, rows: Rows) -> dict[str, int]:
    if "x_mixture" not in data.table.column_names:
        return {}
    names = data.column("x_mixture")
    return dict(Counter(str(names[row]) for row in rows[:, 0] if names[row] is not None))


def _digest(data: Manifest, sets: Sequence[tuple[Rows, ...]]) -> str:
    columns = [data.column(name) for name in ("id", "identity", "role")]
    digest = blake2b(digest_size=8)
    for parts in sets:
        values = [[[column[row] for column in columns] for row in part] for part in parts]
        digest.update(json.dumps(values).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Share:
    """A process's share of a step: whole micro-batches, or an equal part of each if there are too few.

    Attributes:
        micro: numbers of its micro-batches. own: its triplets in each of them.
    """

    micro: range
    own: range

    @classmethod
    def of(cls, batch_size: int, accumulation: int, rank: int, count: int) -> Share:
        """The share of process `rank` of `count`, with `accumulation` micro-batches of `batch_size` triplets.

        Raises:
            ValueError: if neither the micro-batches nor the triplets in them can be shared equally.
        """
        if accumulation % count == 0:
            return cls(share(accumulation, rank, count), range(batch_size))
        if batch_size % count == 0:
            return cls(range(accumulation), share(batch_size, rank, count))
        raise ValueError(
            f"{count} processes can share neither {accumulation} micro-batches nor {batch_size} triplets of each "
            f"equally: choose an accumulation (or a batch_size) that is a multiple of {count}, or start fewer processes"
        )


@dataclass(frozen=True)
class Part:
    """A process's part of one micro-batch of B triplets.

    Attributes:
        pixels: (3, b, 3, H, W) of anchors, positives, negatives: uint8 after augmentation (noise is rounded), or in
            [0, 1] without it.
        identity: (3, B) numbers, of all B triplets.
        first: place of its first triplet. place: step and micro-batch.
        rows: rows (3, b) of the pictures in the manifest.
    """

    pixels: Tensor
    identity: Tensor
    first: int
    place: tuple[int, int]
    rows: list[list[int]]


@dataclass(frozen=True)
class Loader:
    """Draws the triplets of a step and reads their pictures.

    Args:
        batch_size, accumulation: triplets of a micro-batch, micro-batches of a step.
        noise: standard deviation of Gaussian noise on every picture. On anchor and positive alone, it would tell which
            picture is the negative (`idmetric.data.generate.idsim` has the paper's generative noise).
    """

    triplets: Triplets
    pictures: Pictures
    batch_size: int
    accumulation: int
    noise: float
    seed: int

    def load(self, step: int, rank: int, count: int) -> list[Part]:
        """A process's share of a step; an epoch shows each triplet once, without an incomplete last batch."""
        mine = Share.of(self.batch_size, self.accumulation, rank, count)
        chosen = batch_rows(step, len(self.triplets), self.batch_size * self.accumulation, self.seed)
        return [self._part(step, micro, chosen, mine.own) for micro in mine.micro]

    def _part(self, step: int, micro: int, chosen: Rows, own: range) -> Part:
        first = micro * self.batch_size
        drawn = np.array([
            self.triplets.draw(int(chosen[first + k]), (self.seed, step, first + k)) for k in range(self.batch_size)
        ])  # fmt: skip
        rows = drawn[own.start : own.stop].T  # slot by slot
        places = [3 * (first + k) + slot for slot in range(3) for k in own]
        pixels = self.pictures.batch(rows.ravel(), (self.seed, step), places=places, noise=[self.noise] * rows.size)
        if self.pictures.augment is not None:
            pixels = (pixels * 255).round().to(torch.uint8)  # a quarter of the memory that loading processes share
        identity = torch.from_numpy(self.triplets.identity[drawn.T])
        return Part(pixels.view(3, len(own), *pixels.shape[1:]), identity, own.start, (step, micro), rows.tolist())
