"""What batches are drawn from: the plan of a run, and its sub-datasets (VisME, section 4.2.1).

A batch joins K blocks of M samples, each block from one sub-dataset (Eq. 1). With identity-aware sampling no identity
occurs twice in a batch, even across datasets, and an identity is drawn in proportion to its instances.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class ScheduleError(ValueError):
    """Batches that cannot be drawn from this data."""


@dataclass(frozen=True)
class Plan:
    """How batches are drawn; defaults are the paper's.

    Args:
        steps: batches (section 5.1). batch_size: samples of each, hard negatives not counted (section 5.1).
        samples: M of Eq. 1, the paper's interleave batch size (Table 4). K is batch_size / samples.
        hard: most hard negatives of a sample, k (section 5.1): further candidates of the batch, without a query.
        sampling: "identity" for identity-aware sampling; "naive" for Table 2's baseline, which draws a block's
            instances evenly, whatever they show.
        mixing: how often a dataset gives a block: by its "size" in instances, or all "equal". The paper is silent.
        small_datasets: "stop" with an error at datasets of fewer than M identities, or "skip" them.
    """

    steps: int = 3000
    batch_size: int = 1024
    samples: int = 64
    hard: int = 5
    sampling: Literal["identity", "naive"] = "identity"
    mixing: Literal["size", "equal"] = "size"
    small_datasets: Literal["stop", "skip"] = "stop"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size % self.samples:
            raise ScheduleError(
                f"batch_size {self.batch_size} is not a multiple of samples {self.samples} (K blocks of M samples)"
            )

    @property
    def blocks(self) -> int:
        """K of Eq. 1."""
        return self.batch_size // self.samples


@dataclass(frozen=True)
class Pool:
    """A sub-dataset: n instances, each of which can become a sample.

    Args:
        name: of the dataset.
        rows: the row (n,) of each instance; its hard negatives are those of this row.
        queries: row (n,) of its query.
        targets: rows, flat: instance i draws its target from targets[start[i]:stop[i]], but never its own query if
            there is another.
        start, stop: (n,). own: place of the query in targets (n,), -1 if it is not there.
        same: whether targets always show the identity of their query.
    """

    name: str
    rows: Rows
    queries: Rows
    targets: Rows
    start: Rows
    stop: Rows
    own: Rows
    same: bool = True

    def __len__(self) -> int:
        return len(self.queries)

    def draw_targets(self, chosen: Rows, rng: np.random.Generator) -> Rows:
        """A target row for each of these instances, drawn evenly from its targets."""
        start, own = self.start[chosen], self.own[chosen]
        count = self.stop[chosen] - start
        skips = (own >= 0) & (count > 1)
        at = start + (rng.random(len(chosen)) * (count - skips)).astype(np.int64)
        return self.targets[at + (skips & (at >= own))]


@dataclass(frozen=True)
class Data:
    """The data from which batches are drawn.

    Args:
        pools: the sub-datasets.
        shown: number (N,) of the identity that each row of the manifest shows, whatever the dataset.
        hard: rows, flat: the designated hard negatives of row r are hard[hard_start[r]:hard_start[r + 1]].
        content: digest of the manifest's rows, which the other arrays only number.
    """

    pools: tuple[Pool, ...]
    shown: Rows
    hard: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    hard_start: Rows | None = None
    content: str = ""

    def designated(self, row: int) -> Rows:
        """Hard negatives of a row."""
        return self.hard[:0] if self.hard_start is None else self.hard[self.hard_start[row] : self.hard_start[row + 1]]

    @cached_property
    def identities(self) -> tuple[int, ...]:
        """Number of different identities that each pool's queries show."""
        return tuple(len(np.unique(self.shown[p.queries])) for p in self.pools)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that batches depend on."""
        start = np.zeros(0, np.int64) if self.hard_start is None else self.hard_start
        parts = [
            (json.dumps([p.name, len(p), p.same]).encode(), (p.rows, p.queries, p.targets, p.start, p.stop, p.own))
            for p in self.pools
        ]
        digest = hashlib.sha256(self.content.encode())
        for text, arrays in [*parts, (b"", (self.shown, self.hard, start))]:
            digest.update(text)
            for array in arrays:
                digest.update(np.ascontiguousarray(array, np.int64).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Batch:
    """One step's samples, block after block.

    Args:
        dataset: number of the sub-dataset, (B,). query, target: rows, (B,).
        hard: rows of each sample's hard negatives, B arrays.
    """

    dataset: Rows
    query: Rows
    target: Rows
    hard: tuple[Rows, ...]


# Which datasets


def usable(data: Data, plan: Plan) -> Data:
    """The data without datasets that cannot give M samples.

    Raises:
        ScheduleError: naming them, unless the plan skips them; or if the others cannot fill a batch.
    """
    counted = list(zip(data.pools, _rooms(data, plan), strict=True))
    few = [(pool.name, n) for pool, n in counted if n < plan.samples]
    what = "identities" if plan.sampling == "identity" else "samples"
    if few and plan.small_datasets == "stop":
        listed = "; ".join(f"dataset {name!r} has {n}" for name, n in few[:10])
        more = f"; and {len(few) - 10} more" if len(few) > 10 else ""
        raise ScheduleError(
            f"{listed}{more}: fewer {what} than the {plan.samples} samples of a block. Lower samples to at most "
            f"{max(1, min(n for _, n in few))}, leave these out (small_datasets=skip), or give them one "
            "name in column dataset"
        )
    kept = [(pool, n) for pool, n in counted if n >= plan.samples]
    if not kept:
        raise ScheduleError(f"no dataset has {plan.samples} {what} that have a target: lower samples")
    data = replace(data, pools=tuple(pool for pool, _ in kept))
    room = int(sum(_most_blocks(data, plan)))
    if room < plan.blocks:
        names = ", ".join(f"{pool.name!r} ({n})" for pool, n in kept)
        raise ScheduleError(
            f"a batch of {plan.batch_size} takes {plan.blocks} blocks of {plan.samples} samples, and the datasets' "
            f"{what} fill {room}: {names}. Lower batch_size to {room * plan.samples}, or samples"
        )
    return data


def _rooms(data: Data, plan: Plan) -> tuple[int, ...]:
    return data.identities if plan.sampling == "identity" else tuple(len(p) for p in data.pools)


def _most_blocks(data: Data, plan: Plan) -> Rows:
    """Most blocks of a batch that each dataset gives: one if there are enough datasets, else as many as it can fill."""
    most = np.array(_rooms(data, plan), dtype=np.int64) // plan.samples
    return np.minimum(most, 1) if len(data.pools) >= plan.blocks else most


def expected_blocks(data: Data, plan: Plan) -> NDArray[np.float64]:
    """Blocks that each dataset gives to a batch on average: by weight, but no more than it can fill; they sum to K."""
    weight = np.array([len(p) if plan.mixing == "size" else 1 for p in data.pools], dtype=np.float64)
    most = _most_blocks(data, plan).astype(np.float64)
    share = np.zeros(len(weight))
    free = np.ones(len(weight), dtype=bool)
    while free.any():  # the excess over a limit goes to the other datasets
        share[free] = weight[free] / weight[free].sum() * (plan.blocks - most[~free].sum())
        over = free & (share > most)
        if not over.any():
            break
        share[over] = most[over]
        free &= ~over
    return share
