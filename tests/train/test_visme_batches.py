from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmetric.metric.errors import RequestError
from idmetric.train.visme.batch_sampler import Batch, Data, Pool, check, draw
from idmetric.train.visme.config import VisMETraining as Plan


def identities(*datasets: Sequence[int], hard: dict[int, list[int]] | None = None) -> Data:
    """Datasets of images, each given by its identity; an image's target is another one of its identity, or itself."""
    pools, shown = [], [n for images in datasets for n in images]
    first = 0
    for number, images in enumerate(datasets):
        rows = range(first, first + len(images))
        targets = [tuple(row for row in rows if shown[row] == name) for name in images]
        pools.append(Pool(f"d{number}", rows, rows, targets))
        first += len(images)
    return Data(tuple(pools), np.array(shown), {row: found for row, found in (hard or {}).items() if found})


def slow_faults(batch: Batch, data: Data, plan: Plan) -> list[str]:
    """Everything that a batch promises, looked at one by one."""
    faults = []
    if not len(batch.query) == len(batch.target) == len(batch.dataset) == len(batch.hard) == plan.batch_size:
        faults.append("size")
    for k in range(plan.blocks):
        if len(set(batch.dataset[k * plan.samples : (k + 1) * plan.samples].tolist())) != 1:
            faults.append(f"block {k} is of several datasets")
    seen: list[int] = []
    for d, q, t, hard in zip(batch.dataset, batch.query, batch.target, batch.hard, strict=True):
        pool = data.pools[d]
        allowed = pool.targets[list(pool.queries).index(q)]
        if t not in allowed or (t == q and len(set(allowed)) > 1):
            faults.append(f"target {t} of {q}")
        seen += sorted({int(data.shown[q]), int(data.shown[t])})
        seen += [int(data.shown[h]) for h in hard]
        if len(hard) > plan.hard:
            faults.append(f"{len(hard)} hard negatives")
        if not set(hard) <= set(data.hard.get(int(q), ())):
            faults.append(f"hard negatives of {q} were not designated")
    if len(set(batch.query.tolist())) < len(batch.query):
        faults.append("an instance occurs twice")
    if plan.sampling == "identity" and len(set(seen)) < len(seen):
        faults.append("an identity occurs twice")
    return faults


@st.composite
def worlds(draws: Any) -> tuple[Data, Plan]:
    """Random datasets that share identities, with random hard negatives, and a plan."""
    images = st.lists(st.integers(0, 14), min_size=1, max_size=16)
    datasets = draws(st.lists(images, min_size=1, max_size=5))
    rows = sum(map(len, datasets))
    hard = draws(st.dictionaries(st.integers(0, rows - 1), st.lists(st.integers(0, rows - 1), max_size=4), max_size=8))
    samples = draws(st.integers(1, 4))
    plan = Plan(
        steps=3,
        samples=samples,
        batch_size=samples * draws(st.integers(1, 5)),
        hard=draws(st.integers(0, 3)),
        sampling=draws(st.sampled_from(["identity", "naive"])),
        seed=draws(st.integers(0, 99)),
    )
    return identities(*datasets, hard={r: sorted(set(h) - {r}) for r, h in hard.items()}), plan


@settings(max_examples=200, deadline=None)
@given(worlds(), st.integers(0, 1000))
def test_a_batch_is_refused_or_keeps_every_promise(world: tuple[Data, Plan], step: int) -> None:
    data, plan = world
    try:
        check(data, plan)
        batch = draw(data, plan, step)
    except RequestError:
        return
    assert slow_faults(batch, data, plan) == []


def test_scarce_datasets_get_what_the_others_can_spare() -> None:
    data = identities([0, 0, 1, 1, 2, 2, 3, 3], [2, 2, 3, 3, 4, 4, 5, 5], [0, 0, 1, 1, 4, 4, 5, 5])
    plan = Plan(batch_size=6, samples=2)
    for step in range(100):
        assert slow_faults(draw(data, plan, step), data, plan) == []


def test_identities_are_drawn_in_proportion_to_their_instances() -> None:
    sizes = [2, 2, 4, 8, 16, 32, *[2] * 200]
    data, plan = identities([n for n, size in enumerate(sizes) for _ in range(size)]), Plan(batch_size=2, samples=2)
    steps = 4000
    found = Counter(int(data.shown[q]) for step in range(steps) for q in draw(data, plan, step).query)
    share = np.array(sizes) / sum(sizes)
    # two draws without replacement: first in proportion, second among what is left
    chance = share + sum(p * np.where(np.arange(len(sizes)) == n, 0, share / (1 - p)) for n, p in enumerate(share))
    expected = steps * chance
    for n in range(6):
        assert found[n] == pytest.approx(expected[n], abs=5 * np.sqrt(expected[n]))
    assert sum(found.values()) == 2 * steps


def test_every_other_image_of_an_identity_is_an_equally_likely_target() -> None:
    data, plan = identities([0, 0, 0, 0, 1, 1]), Plan(batch_size=1, samples=1)
    found = Counter((int(b.query[0]), int(b.target[0])) for b in (draw(data, plan, s) for s in range(6000)))
    assert set(found) == {(q, t) for q in range(4) for t in range(4) if q != t} | {(4, 5), (5, 4)}
    for (q, _), count in found.items():
        expected = 1000 / 3 if q < 4 else 1000
        assert count == pytest.approx(expected, abs=5 * np.sqrt(expected))


def test_naive_batches_repeat_identities_but_no_instance() -> None:
    data = identities([0] * 20 + [1] * 20, list(range(2, 42)))
    plan = Plan(batch_size=16, samples=8, sampling="naive")
    repeats = 0
    for step in range(50):
        batch = draw(data, plan, step)
        assert slow_faults(batch, data, plan) == []
        assert len(set(batch.query.tolist())) == 16
        repeats += len(set(data.shown[batch.query].tolist())) < 16
    assert repeats == 50
    with pytest.raises(RequestError, match="'d0' has 2: fewer identities"):
        check(data, replace(plan, sampling="identity"))


def test_hard_negatives_come_as_many_as_are_free() -> None:
    hard = {row: [(row + k) % 40 for k in range(2, 14, 2)] for row in range(40)}
    data, plan = identities([n // 2 for n in range(40)], hard=hard), Plan(batch_size=4, samples=4, hard=3)
    for step in range(100):
        batch = draw(data, plan, step)
        assert slow_faults(batch, data, plan) == []
        used = {int(data.shown[r]) for r in [*batch.query, *(h for part in batch.hard for h in part)]}
        for query, found in zip(batch.query.tolist(), batch.hard, strict=True):
            free = {h for h in hard[query] if int(data.shown[h]) not in used}
            assert len(found) == 3 or not free
    assert sum(map(len, batch.hard)) > 4


def test_samples_of_several_identities_keep_them_apart() -> None:
    rows = range(0, 20, 2)
    pool = Pool("pairs", rows, rows, [(row + 1,) for row in rows])
    # neighbors' targets show the same: of each two neighbors only one fits
    shown = np.array([n if n % 2 == 0 else 100 + n // 4 for n in range(20)])
    data, plan = Data((pool,), shown, {}), Plan(batch_size=5, samples=5)
    for step in range(50):
        assert slow_faults(draw(data, plan, step), data, plan) == []
    with pytest.raises(RequestError, match="step 7: dataset 'pairs' cannot fill"):
        draw(data, Plan(batch_size=6, samples=6), 7)


def test_a_batch_follows_from_seed_and_step_alone() -> None:
    data = identities(*[[n // 3 + 100 * d for n in range(60)] for d in range(5)])
    plan = Plan(batch_size=12, samples=4, seed=3)
    later, first = draw(data, plan, 9), draw(data, plan, 8)
    again = draw(identities(*[[n // 3 + 100 * d for n in range(60)] for d in range(5)]), plan, 9)
    assert later.query.tolist() == again.query.tolist()
    assert later.target.tolist() == again.target.tolist()
    assert later.query.tolist() != first.query.tolist()
    assert later.query.tolist() != draw(data, replace(plan, seed=4), 9).query.tolist()


def test_datasets_give_blocks_by_their_size_and_none_more_than_it_can() -> None:
    data = identities(*[[n // 2 + 1000 * d for n in range(size)] for d, size in enumerate((400, 40, 20, 20))])

    def blocks(plan: Plan, of: Data) -> list[float]:
        found = Counter(int(d) for s in range(400) for d in draw(of, plan, s).dataset[:: plan.samples])
        return [found[d] / 400 for d in range(len(of.pools))]

    assert blocks(Plan(batch_size=12, samples=3), data) == [1, 1, 1, 1]
    large, small, *least = blocks(Plan(batch_size=6, samples=3), data)
    assert 0.9 < large <= 1  # at most one block each, as there are enough datasets
    assert small == pytest.approx(0.5, abs=0.1)
    assert least == pytest.approx([0.27] * 2, abs=0.1)
    # fewer datasets than blocks: the larger ones give several
    two = identities(list(range(60)), list(range(100, 120)))
    assert blocks(Plan(batch_size=40, samples=10), two) == pytest.approx([3, 1], abs=0.3)
    assert blocks(Plan(batch_size=80, samples=10), two) == [6, 2]


def test_datasets_that_cannot_fill_a_block_are_named() -> None:
    data = identities(list(range(20)), [50, 50, 51, 51], list(range(100, 130)))
    plan = Plan(batch_size=8, samples=4)
    with pytest.raises(
        RequestError, match=r"'d1' has 2: fewer identities than the 4 samples.*--samples to at most 2 .*--batch-size"
    ):
        check(data, plan)
    check(data, replace(plan, sampling="naive"))
    data = replace(data, pools=(data.pools[0], data.pools[2]))
    with pytest.raises(RequestError, match=r"takes 16 blocks.*fill 12: \{'d0': 20, 'd2': 30\}.*batch-size to 48"):
        check(data, Plan(batch_size=64, samples=4))


def test_impossible_neighbors_are_named() -> None:
    data, plan = identities([1, 2, 3], [1, 2, 3]), Plan(batch_size=4, samples=2)
    with pytest.raises(RequestError, match=r"step 5: dataset 'd\d' cannot fill 1 blocks of 2.*them as well \(d\d\)"):
        draw(data, plan, 5)


def test_a_batch_has_whole_blocks() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        Plan(batch_size=10, samples=4)
