"""Drawing the batch of a step (VisME, section 4.2.1): a batch follows from (seed, step) alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from idmetric.train.visme.config import Config
from idmetric.train.visme.pools import Batch, Data, Pool, Rows, ScheduleError, expected_blocks

_TRIES = 500  # draws of a batch before it counts as impossible
_Placed = list[list[tuple[int, int]]]  # of each block: instance and target row of each sample


def draw(data: Data, config: Config, step: int, share: NDArray[np.float64] | None = None) -> Batch:
    """The batch of a step, from the data that `usable` returns.

    Args:
        share: `expected_blocks(data, config)`, if it is known.

    Raises:
        ScheduleError: naming the dataset that cannot fill its block.
    """
    rng = np.random.default_rng([config.seed, 0x5C4ED, step])
    datasets = _choose_blocks(expected_blocks(data, config) if share is None else share, config.blocks, rng)
    if config.sampling == "naive":
        placed, taken = _naive(data, config, datasets, rng), None
    else:
        placed, taken = _aware(data, config, datasets, rng, step)
    samples = [(d, i, target) for d, block in zip(datasets, placed, strict=True) for i, target in block]
    rows = [int(data.pools[d].rows[i]) for d, i, _ in samples]
    query = np.array([data.pools[d].queries[i] for d, i, _ in samples], np.int64)
    owner, _, target = np.array(samples, np.int64).T.copy()
    return Batch(owner, query, target, _hard_candidates(data, config, rows, query, taken, rng))


def _choose_blocks(share: NDArray[np.float64], blocks: int, rng: np.random.Generator) -> list[int]:
    """A dataset for each block; a dataset occurs `share` times on average, rounded up or down (systematic sampling)."""
    order = rng.permutation(len(share))
    ends = np.cumsum(share[order])
    points = (rng.random() + np.arange(blocks)) * (ends[-1] / blocks)
    picked = order[np.minimum(np.searchsorted(ends, points, side="right"), len(share) - 1)]
    return [int(d) for d in rng.permutation(picked)]


def _naive(data: Data, config: Config, datasets: Sequence[int], rng: np.random.Generator) -> _Placed:
    """Instances drawn evenly, none twice in a batch, whatever their identities (Table 2, first row)."""
    drawn: dict[int, Iterator[int]] = {d: _shuffled(len(data.pools[d]), rng) for d in dict.fromkeys(datasets)}
    placed: _Placed = []
    for d in datasets:
        block = list(islice(drawn[d], config.samples))
        placed.append(_with_targets(data.pools[d], block, rng))
    return placed


def _aware(
    data: Data, config: Config, datasets: Sequence[int], rng: np.random.Generator, step: int
) -> tuple[_Placed, dict[int, int]]:
    """Blocks without repeated identities, and the block of each identity.

    Instances fill a block in an even random order, except for instances with an identity of the batch: so an identity
    is drawn in proportion to its instances. The scarcest datasets go first. If a block cannot be filled, the batch is
    drawn again, and that block goes first.
    """
    wanted = Counter(datasets)
    spare = [data.identities[d] - wanted[d] * config.samples for d in datasets]
    first: list[int] = []
    for _ in range(_TRIES):
        order = first + sorted(set(range(len(datasets))) - set(first), key=lambda b: (spare[b], b))
        filling = _Filling(data, config, datasets, rng)
        failed = next((b for b in order if not filling.fill(b)), -1)
        if failed < 0:
            return filling.finished(), filling.taken
        first = [failed, *(b for b in first if b != failed)]
    own = datasets[failed]
    name = data.pools[own].name
    others = ", ".join(sorted({repr(data.pools[d].name) for d in datasets} - {repr(name)}))
    raise ScheduleError(
        f"step {step}: dataset {name!r} cannot fill {wanted[own]} blocks of {config.samples} samples: it has "
        f"{data.identities[own]} identities, and the batch's other datasets show too many of them as well "
        f"({others or 'none'}). Lower samples or batch, or give datasets that share identities one name in column "
        "dataset"
    )


class _Filling:
    """The blocks of a batch while they are filled."""

    def __init__(self, data: Data, config: Config, datasets: Sequence[int], rng: np.random.Generator) -> None:
        self.data, self.config, self.datasets, self.rng = data, config, datasets, rng
        self.taken: dict[int, int] = {}  # identity -> block
        self.placed: _Placed = [[] for _ in datasets]

    def fill(self, block: int) -> bool:
        """Put M samples into a block; False if that is impossible."""
        placed = self.placed[block]
        for i in _shuffled(len(self.data.pools[self.datasets[block]]), self.rng):
            if len(placed) == self.config.samples:
                return True
            self._place(block, i)
        return len(placed) == self.config.samples

    def finished(self) -> _Placed:
        """Instances with their targets, in random order within a block."""
        out: _Placed = []
        for d, placed in zip(self.datasets, self.placed, strict=True):
            pool = self.data.pools[d]
            out.append(_with_targets(pool, [i for i, _ in placed], self.rng) if pool.same else placed)
        return out

    def _place(self, block: int, instance: int) -> None:
        """Put an instance into a block, unless the batch has one of its identities."""
        pool, shown = self.data.pools[self.datasets[block]], self.data.shown
        first = int(shown[pool.queries[instance]])
        if first in self.taken:
            return
        target = -1  # drawn at the end
        if not pool.same:
            target = int(pool.draw_targets(np.array([instance]), self.rng)[0])
            if int(shown[target]) in self.taken:
                return
            self.taken[int(shown[target])] = block
        self.taken[first] = block
        self.placed[block].append((instance, target))


def _with_targets(pool: Pool, instances: Sequence[int], rng: np.random.Generator) -> list[tuple[int, int]]:
    """Instances with drawn targets."""
    targets = pool.draw_targets(np.array(instances, np.int64), rng)
    return list(zip(instances, targets.tolist(), strict=True))


def _shuffled(count: int, rng: np.random.Generator) -> Iterator[int]:
    """0 .. count - 1 in an even random order; the first few of many numbers are cheap."""
    seen: set[int] = set()
    if count > 4096:
        for _ in range(4):
            for i in rng.integers(count, size=count // 32).tolist():
                if i not in seen:
                    seen.add(i)
                    yield i
    for i in rng.permutation(count).tolist():
        if i not in seen:
            yield i


# Hard negatives


def _hard_candidates(
    data: Data,
    config: Config,
    rows: Sequence[int],
    query: Rows,
    taken: Mapping[int, int] | None,
    rng: np.random.Generator,
) -> tuple[Rows, ...]:
    """At most k designated hard negatives of each sample; their identities are nowhere else in the batch.

    With naive sampling (`taken` is None) they only must not show the identity of their query.
    """
    used = set(taken or ())
    out = []
    for row, own in zip(rows, data.shown[query].tolist(), strict=True):
        found: list[int] = []
        near = data.designated(row)
        for r in rng.permutation(near).tolist() if config.hard and len(near) else ():
            what = int(data.shown[r])
            if len(found) < config.hard and what != own and what not in used:
                found.append(r)
                if taken is not None:
                    used.add(what)
        out.append(np.array(found, np.int64))
    return tuple(out)
