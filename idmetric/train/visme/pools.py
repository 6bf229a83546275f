"""The sub-datasets that batches are drawn from (VisME, section 4.2.1).

A batch joins K blocks of M samples, each block from one sub-dataset (Eq. 1). With identity-aware sampling no identity
occurs twice in a batch, even across datasets, and an identity is drawn in proportion to its instances.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from idmetric.train.visme.config import Config

Rows = NDArray[np.int64]


class ScheduleError(ValueError):
    """Batches that cannot be drawn from this data."""


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


def usable(data: Data, config: Config) -> Data:
    """The data without datasets that cannot give M samples.

    Raises:
        ScheduleError: naming them, unless `small_datasets` skips them; or if the others cannot fill a batch.
    """
    counted = list(zip(data.pools, _rooms(data, config), strict=True))
    few = [(pool.name, n) for pool, n in counted if n < config.samples]
    what = "identities" if config.sampling == "identity" else "samples"
    if few and config.small_datasets == "stop":
        listed = "; ".join(f"dataset {name!r} has {n}" for name, n in few[:10])
        more = f"; and {len(few) - 10} more" if len(few) > 10 else ""
        raise ScheduleError(
            f"{listed}{more}: fewer {what} than the {config.samples} samples of a block. Lower samples to at most "
            f"{max(1, min(n for _, n in few))}, leave these out (small_datasets=skip), or give them one "
            "name in column dataset"
        )
    kept = [(pool, n) for pool, n in counted if n >= config.samples]
    if not kept:
        raise ScheduleError(f"no dataset has {config.samples} {what} that have a target: lower samples")
    data = replace(data, pools=tuple(pool for pool, _ in kept))
    room = int(sum(_most_blocks(data, config)))
    if room < config.blocks:
        names = ", ".join(f"{pool.name!r} ({n})" for pool, n in kept)
        raise ScheduleError(
            f"a batch of {config.batch_size} takes {config.blocks} blocks of {config.samples} samples, and the "
            f"datasets' {what} fill {room}: {names}. Lower batch_size to {room * config.samples}, or samples"
        )
    return data


def _rooms(data: Data, config: Config) -> tuple[int, ...]:
    return data.identities if config.sampling == "identity" else tuple(len(p) for p in data.pools)


def _most_blocks(data: Data, config: Config) -> Rows:
    """Most blocks of a batch that each dataset gives: one if there are enough datasets, else as many as it can fill."""
    most = np.array(_rooms(data, config), dtype=np.int64) // config.samples
    return np.minimum(most, 1) if len(data.pools) >= config.blocks else most


def expected_blocks(data: Data, config: Config) -> NDArray[np.float64]:
    """Blocks that each dataset gives to a batch on average: by weight, but no more than it can fill; they sum to K."""
    weight = np.array([len(p) if config.mixing == "size" else 1 for p in data.pools], dtype=np.float64)
    most = _most_blocks(data, config).astype(np.float64)
    share = np.zeros(len(weight))
    free = np.ones(len(weight), dtype=bool)
    while free.any():  # the excess over a limit goes to the other datasets
        share[free] = weight[free] / weight[free].sum() * (config.blocks - most[~free].sum())
        over = free & (share > most)
        if not over.any():
            break
        share[over] = most[over]
        free &= ~over
    return share
