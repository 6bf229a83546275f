"""Batches without repeated identities (VisME, section 4.2.1): a batch follows from (seed, step) alone.

A batch joins K blocks of M samples, each block from one sub-dataset (Eq. 1). With identity-aware sampling no identity
occurs twice in a batch, even across datasets, and an identity is drawn in proportion to its instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from idmetric.metric.errors import RequestError
from idmetric.train.visme.config import VisMETraining

Rows = NDArray[np.int64]
_TRIES = 500  # draws of a batch before it counts as impossible


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
        counts = {}
        for pool, identities in zip(self.pools, self.identities, strict=True):
            hard = sum(row in self.hard for row in pool.rows)
            counts[pool.name] = {"instances": len(pool), "identities": identities, "with hard negatives": hard}
        return counts


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


def check(data: Data, config: VisMETraining) -> None:
    """Check that every dataset fills a block, and that they fill a batch together."""
    what = _units(config)
    counts = {pool.name: count for pool, count in zip(data.pools, _available(data, config), strict=True)}
    too_small = {name: count for name, count in counts.items() if count < config.samples}
    if too_small:
        listed = "; ".join(f"dataset {name!r} has {count}" for name, count in too_small.items())
        raise RequestError(
            f"{listed}: fewer {what} than the {config.samples} samples of a block. Lower --samples to at most "
            f"{max(1, min(too_small.values()))} and --batch-size to a multiple of it, leave these out, or give them "
            "one name in column dataset"
        )
    most_blocks = int(_most_blocks(data, config).sum())
    if most_blocks < config.blocks:
        raise RequestError(
            f"a batch of {config.batch_size} takes {config.blocks} blocks of {config.samples} samples, and the "
            f"datasets' {what} fill {most_blocks}: {counts}. Lower --batch-size to {most_blocks * config.samples}, or "
            "--samples"
        )


def _available(data: Data, config: VisMETraining) -> tuple[int, ...]:
    """What each dataset has to fill blocks with: identities, or with naive sampling instances."""
    return data.identities if config.sampling == "identity" else tuple(map(len, data.pools))


def _units(config: VisMETraining) -> str:
    """What `_available` counts."""
    return "identities" if config.sampling == "identity" else "samples"


def _most_blocks(data: Data, config: VisMETraining) -> Rows:
    """Most blocks of a batch that each dataset gives: one if there are enough datasets, else as many as it can fill."""
    most = np.array(_available(data, config), dtype=np.int64) // config.samples
    return np.minimum(most, 1) if len(data.pools) >= config.blocks else most


def draw(data: Data, config: VisMETraining, step: int) -> Batch:
    """The batch of a step, from data that `check` accepts."""
    rng = np.random.default_rng([config.seed, 0x5C4ED, step])
    datasets = _choose_blocks(data, config, rng)
    taken: set[int] | None = None
    if config.sampling == "naive":
        samples = _naive(data, config, datasets, rng)
    else:
        samples, taken = _aware(data, config, datasets, rng, step)

    hard = [_hard_negatives(data, config, sample, taken, rng) for sample in samples]
    return Batch(
        dataset=np.array([sample.dataset for sample in samples], np.int64),
        query=np.array([data.pools[sample.dataset].queries[sample.instance] for sample in samples], np.int64),
        target=np.array([sample.target for sample in samples], np.int64),
        hard=hard,
    )


def _choose_blocks(data: Data, config: VisMETraining, rng: Generator) -> list[int]:
    """A dataset for each block, in proportion to its instances, as far as it can fill them."""
    most = _most_blocks(data, config)
    slots = np.repeat(np.arange(len(most)), most)
    weight = np.array([len(pool) for pool in data.pools]) / most
    chance = weight[slots] / weight[slots].sum()
    chosen: list[int] = rng.choice(slots, config.blocks, replace=False, p=chance).tolist()
    return chosen


class Sample(NamedTuple):
    """A sample of a batch: number of its dataset, number of the instance in it, row of the target."""

    dataset: int
    instance: int
    target: int


def _naive(data: Data, config: VisMETraining, datasets: Sequence[int], rng: Generator) -> list[Sample]:
    """Instances drawn evenly, none twice in a batch, whatever their identities (Table 2, first row)."""
    orders = {dataset: iter(rng.permutation(len(data.pools[dataset])).tolist()) for dataset in dict.fromkeys(datasets)}
    samples = []
    for dataset in np.repeat(datasets, config.samples).tolist():
        instance = next(orders[dataset])
        target = data.pools[dataset].draw_target(instance, rng)
        samples.append(Sample(dataset, instance, target))
    return samples


def _aware(
    data: Data, config: VisMETraining, datasets: Sequence[int], rng: Generator, step: int
) -> tuple[list[Sample], set[int]]:
    """Blocks without repeated identities, and the identities.

    Instances fill a block in an even random order, except for instances with an identity of the batch: so an identity
    is drawn in proportion to its instances. The scarcest datasets go first. If a block cannot be filled, the batch is
    drawn again, and that block goes first.
    """

    def spare_identities(block: int) -> int:
        dataset = datasets[block]
        return data.identities[dataset] - datasets.count(dataset) * config.samples

    order = sorted(range(len(datasets)), key=spare_identities)
    for _ in range(_TRIES):
        taken: set[int] = set()
        blocks: dict[int, list[Sample]] = {}
        for block in order:
            blocks[block] = _fill(data, datasets[block], config.samples, taken, rng)
            if len(blocks[block]) < config.samples:
                break
        else:
            samples = [sample for _, block_samples in sorted(blocks.items()) for sample in block_samples]
            return samples, taken
        order.remove(block)
        order.insert(0, block)

    dataset = datasets[block]
    name = data.pools[dataset].name
    other_names = sorted({data.pools[number].name for number in datasets} - {name})
    raise RequestError(
        f"step {step}: dataset {name!r} cannot fill {datasets.count(dataset)} blocks of {config.samples} samples: it "
        f"has {data.identities[dataset]} identities, and the batch's other datasets show too many of them as well "
        f"({', '.join(other_names) or 'none'}). Lower --samples or --batch-size, or give datasets that share "
        "identities one name in column dataset"
    )


def _fill(data: Data, dataset: int, count: int, taken: set[int], rng: Generator) -> list[Sample]:
    """At most `count` samples of a dataset without the identities that are taken, which then include theirs."""
    pool = data.pools[dataset]
    samples: list[Sample] = []
    for instance in rng.permutation(len(pool)).tolist():
        if len(samples) == count:
            break
        query_identity = int(data.shown[pool.queries[instance]])
        if query_identity in taken:
            continue
        target = pool.draw_target(instance, rng)
        target_identity = int(data.shown[target])
        if target_identity not in taken:
            taken |= {query_identity, target_identity}
            samples.append(Sample(dataset, instance, target))
    return samples


def _hard_negatives(
    data: Data, config: VisMETraining, sample: Sample, taken: set[int] | None, rng: Generator
) -> list[int]:
    """At most k designated hard negatives of a sample; their identities are nowhere else in the batch.

    With naive sampling (`taken` is None) they only must not show the identity of their query.
    """
    pool = data.pools[sample.dataset]
    candidates = data.hard.get(pool.rows[sample.instance], ())
    if not config.hard or not candidates:
        return []
    excluded = set() if taken is None else taken
    query_identity = data.shown[pool.queries[sample.instance]]
    negatives: list[int] = []
    for row in rng.permutation(candidates).tolist():
        identity = int(data.shown[row])
        if len(negatives) < config.hard and identity != query_identity and identity not in excluded:
            negatives.append(row)
            if taken is not None:
                taken.add(identity)
    return negatives
