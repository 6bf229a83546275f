"""Batches without repeated identities (VisME, section 4.2.1): a batch follows from (seed, step) alone.

A batch joins K blocks of M samples, each block from one sub-dataset (Eq. 1). With identity-aware sampling no identity
occurs twice in a batch, even across datasets, and an identity is drawn in proportion to its instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from idmetric.train.visme.config import Config

Rows = NDArray[np.int64]
_TRIES = 500  # draws of a batch before it counts as impossible


class ScheduleError(ValueError):
    """Batches that cannot be drawn from this data."""


@dataclass(frozen=True)
class Pool:
    """A sub-dataset: n instances, each of which can become a sample.

    Args:
        name: of the dataset.
        rows: the row of each instance; its hard negatives are those of this row.
        queries: row of its query. targets: rows of its targets; those of an identity share one tuple.
    """

    name: str
    rows: Sequence[int]
    queries: Sequence[int]
    targets: Sequence[tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.queries)

    def draw_target(self, instance: int, rng: Generator) -> int:
        """A random target of an instance, never its own query if there is another."""
        query = self.queries[instance]
        others = [row for row in self.targets[instance] if row != query]
        return others[rng.integers(len(others))] if others else query


@dataclass(frozen=True)
class Data:
    """The data from which batches are drawn.

    Args:
        pools: the sub-datasets.
        shown: number (N,) of the identity that each row of the manifest shows, whatever the dataset.
        hard: row -> rows of its designated hard negatives.
        fingerprint: of the manifest's rows, which the other values only number.
    """

    pools: tuple[Pool, ...]
    shown: Rows
    hard: Mapping[int, Sequence[int]]
    fingerprint: str = ""

    @cached_property
    def identities(self) -> tuple[int, ...]:
        """Number of different identities that each pool's queries show."""
        return tuple(len(np.unique(self.shown[list(pool.queries)])) for pool in self.pools)

    def describe(self) -> dict[str, dict[str, int]]:
        """For each dataset the numbers of instances, of identities, and of instances with hard negatives."""
        found = {}
        for pool, identities in zip(self.pools, self.identities, strict=True):
            hard = sum(row in self.hard for row in pool.rows)
            found[pool.name] = {"instances": len(pool), "identities": identities, "with hard negatives": hard}
        return found


@dataclass(frozen=True)
class Batch:
    """One step's samples, block after block.

    Args:
        dataset: number of the sub-dataset, (B,). query, target: rows, (B,).
        hard: rows of each sample's hard negatives, B lists.
    """

    dataset: Rows
    query: Rows
    target: Rows
    hard: Sequence[Sequence[int]]


def check(data: Data, config: Config) -> None:
    """Check that every dataset fills a block, and that they fill a batch together."""
    what = "identities" if config.sampling == "identity" else "samples"
    named = {pool.name: n for pool, n in zip(data.pools, _rooms(data, config), strict=True)}
    few = {name: n for name, n in named.items() if n < config.samples}
    if few:
        listed = "; ".join(f"dataset {name!r} has {n}" for name, n in few.items())
        raise ScheduleError(
            f"{listed}: fewer {what} than the {config.samples} samples of a block. Lower --samples to at most "
            f"{max(1, min(few.values()))}, leave these out, or give them one name in column dataset"
        )
    room = int(_most_blocks(data, config).sum())
    if room < config.blocks:
        raise ScheduleError(
            f"a batch of {config.batch_size} takes {config.blocks} blocks of {config.samples} samples, and the "
            f"datasets' {what} fill {room}: {named}. Lower --batch-size to {room * config.samples}, or --samples"
        )


def _rooms(data: Data, config: Config) -> tuple[int, ...]:
    return data.identities if config.sampling == "identity" else tuple(map(len, data.pools))


def _most_blocks(data: Data, config: Config) -> Rows:
    """Most blocks of a batch that each dataset gives: one if there are enough datasets, else as many as it can fill."""
    most = np.array(_rooms(data, config), dtype=np.int64) // config.samples
    return np.minimum(most, 1) if len(data.pools) >= config.blocks else most


def draw(data: Data, config: Config, step: int) -> Batch:
    """The batch of a step, from data that `check` accepts."""
    rng = np.random.default_rng([config.seed, 0x5C4ED, step])
    datasets = _choose_blocks(data, config, rng)
    if config.sampling == "naive":
        samples, taken = _naive(data, config, datasets, rng), None
    else:
        samples, taken = _aware(data, config, datasets, rng, step)
    hard = [_hard(data, config, data.pools[d].rows[i], data.pools[d].queries[i], taken, rng) for d, i, _ in samples]
    query = np.array([data.pools[d].queries[i] for d, i, _ in samples], np.int64)
    dataset, _, target = np.array(samples, np.int64).T.copy()
    return Batch(dataset, query, target, hard)


def _choose_blocks(data: Data, config: Config, rng: Generator) -> list[int]:
    """A dataset for each block, in proportion to its instances, as far as it can fill them."""
    most = _most_blocks(data, config)
    slots = np.repeat(np.arange(len(most)), most)
    weight = np.array([len(pool) for pool in data.pools]) / most
    chance = weight[slots] / weight[slots].sum()
    return [int(d) for d in rng.choice(slots, config.blocks, replace=False, p=chance)]


Sample = tuple[int, int, int]  # dataset, instance, row of the target


def _naive(data: Data, config: Config, datasets: Sequence[int], rng: Generator) -> list[Sample]:
    """Instances drawn evenly, none twice in a batch, whatever their identities (Table 2, first row)."""
    drawn = {d: iter(rng.permutation(len(data.pools[d])).tolist()) for d in dict.fromkeys(datasets)}
    chosen = [(d, next(drawn[d])) for d in datasets for _ in range(config.samples)]
    return [(d, i, data.pools[d].draw_target(i, rng)) for d, i in chosen]


def _aware(
    data: Data, config: Config, datasets: Sequence[int], rng: Generator, step: int
) -> tuple[list[Sample], set[int]]:
    """Blocks without repeated identities, and the identities.

    Instances fill a block in an even random order, except for instances with an identity of the batch: so an identity
    is drawn in proportion to its instances. The scarcest datasets go first. If a block cannot be filled, the batch is
    drawn again, and that block goes first.
    """
    order = sorted(
        range(len(datasets)), key=lambda b: data.identities[datasets[b]] - datasets.count(datasets[b]) * config.samples
    )
    for _ in range(_TRIES):
        taken: set[int] = set()
        blocks: dict[int, list[Sample]] = {}
        for block in order:
            blocks[block] = _fill(data, datasets[block], config.samples, taken, rng)
            if len(blocks[block]) < config.samples:
                break
        else:
            return [sample for block in range(len(datasets)) for sample in blocks[block]], taken
        order = [block, *(b for b in order if b != block)]
    own = datasets[block]
    name, others = data.pools[own].name, sorted({data.pools[d].name for d in datasets} - {data.pools[own].name})
    raise ScheduleError(
        f"step {step}: dataset {name!r} cannot fill {datasets.count(own)} blocks of {config.samples} samples: it has "
        f"{data.identities[own]} identities, and the batch's other datasets show too many of them as well "
        f"({', '.join(others) or 'none'}). Lower --samples or --batch-size, or give datasets that share identities one "
        "name in column dataset"
    )


def _fill(data: Data, dataset: int, samples: int, taken: set[int], rng: Generator) -> list[Sample]:
    """At most M samples of a dataset without the identities that are taken, which then include theirs."""
    pool, found = data.pools[dataset], list[Sample]()
    for i in rng.permutation(len(pool)):
        if len(found) == samples:
            break
        query = int(data.shown[pool.queries[i]])
        if query in taken:
            continue
        target = pool.draw_target(i, rng)
        if int(data.shown[target]) not in taken:
            taken |= {query, int(data.shown[target])}
            found.append((dataset, int(i), target))
    return found


def _hard(data: Data, config: Config, row: int, query: int, taken: set[int] | None, rng: Generator) -> list[int]:
    """At most k designated hard negatives of a sample; their identities are nowhere else in the batch.

    With naive sampling (`taken` is None) they only must not show the identity of their query.
    """
    found: list[int] = []
    near = data.hard.get(row, ()) if config.hard else ()
    for other in rng.permutation(near).tolist() if near else ():
        what = int(data.shown[other])
        if len(found) < config.hard and what != data.shown[query] and what not in (taken or ()):
            found.append(int(other))
            if taken is not None:
                taken.add(what)
    return found
