from __future__ import annotations

import os
import warnings
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmetric.data.old_manifest.lineage import blocks
from idmetric.data.old_manifest.split import leaks, split, split_rows
from idmetric.data.old_manifest.table import Manifest, Row


def flat(identities: int, images: int = 3, dataset: str = "d") -> list[Row]:
    return [Row(f"{dataset}/{i}", f"{dataset}/{i}/{k}.jpg", dataset=dataset) for i in range(identities)
            for k in range(images)]  # fmt: skip


@st.composite
def image(draw: st.DrawFn, row: int) -> dict[str, str | bytes]:
    """A file of the row's own, or one that others may use too, by one of its names; or bytes."""
    shared = draw(st.integers(0, 30))
    if draw(st.integers(0, 3)):
        return {"path": f"{row}.jpg"}
    if draw(st.booleans()):
        return {"image_bytes": b"%d" % shared}
    name = draw(st.sampled_from(["s{}.jpg", "./s{}.jpg", "a/../s{}.jpg", os.path.abspath("s{}.jpg")]))
    return {"path": name.format(shared)}


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Rows with or without identities, parents anywhere (also later, or absent), groups and files that rows share."""
    count = draw(st.integers(0, 25))
    rows = []
    for k in range(count):
        identity = draw(st.none() | st.integers(0, 8))
        parent = draw(st.none() | st.integers(0, 30))
        group = draw(st.none() | st.integers(0, 6))
        rows.append(
            Row(
                None if identity is None else f"i{identity}", id=f"r{k}", **draw(image(k)),
                dataset=draw(st.sampled_from(["a", "b", None])),
                parent=None if parent is None else f"r{parent}",
                group=None if group is None else f"g{group}", slot=None if group is None else "query",
            )
        )  # fmt: skip
    return Manifest.from_rows(rows)


def belong(manifest: Manifest) -> list[set[int]]:
    """Blocks the slow way: rows that share an identity, a group, a parent or an image, until nothing changes."""
    rows = list(manifest)
    found = [{k} for k in range(len(rows))]

    def linked(a: Row, b: Row) -> bool:
        return (
            (a.identity is not None and a.identity == b.identity)
            or (a.group is not None and a.group == b.group)
            or a.parent == b.id
            or b.parent == a.id
            or (a.parent is not None and a.parent == b.parent)
            or (a.path is not None and b.path is not None and os.path.abspath(a.path) == os.path.abspath(b.path))
            or (a.image_bytes is not None and a.image_bytes == b.image_bytes)
        )

    changed = True
    while changed:
        changed = False
        for x, y in combinations(found, 2):
            if any(linked(rows[i], rows[j]) for i in x for j in y):
                x |= y
                found.remove(y)
                changed = True
                break
    return found


@given(manifests())
@settings(max_examples=60, deadline=None)
def test_blocks_are_what_hangs_together(manifest: Manifest) -> None:
    block = blocks(manifest)
    got: dict[int, set[int]] = {}
    for row, b in enumerate(block.tolist()):
        got.setdefault(b, set()).add(row)
    assert sorted(map(sorted, got.values())) == sorted(map(sorted, belong(manifest)))
    assert sorted(got) == list(range(len(got)))


@given(manifests(), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(0, 99), st.booleans())
@settings(max_examples=80, deadline=None)
def test_no_identity_is_ever_in_two_splits(
    manifest: Manifest, shares: list[float], seed: int, by_dataset: bool
) -> None:
    total = max(1.0, sum(shares))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of splits that stay empty
        done = split(manifest, {f"s{k}": s / total for k, s in enumerate(shares)}, seed, by_dataset)
    assert not leaks(done)
    part = done.column("split")
    for hanging in belong(manifest):
        assert len({part[row] for row in hanging}) == 1
    assert list(done.replace(split=None)) == list(manifest.replace(split=None))  # nothing else changes


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=60), st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_shares_are_met_over_many_small_datasets(sizes: list[int], shares: list[float], seed: int) -> None:
    total = max(1.0, sum(shares))
    parts = {f"s{k}": s / total for k, s in enumerate(shares)}
    manifest = Manifest.from_rows([row for k, size in enumerate(sizes) for row in flat(size, 1, f"d{k}")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Counter(split(manifest, parts, seed).column("split"))
    assert sum(found.values()) == sum(sizes)
    for name, share in parts.items():
        assert abs(found[name] - share * sum(sizes)) < 2


def test_a_split_that_stays_empty_is_warned_of() -> None:
    manifest = Manifest.from_rows(flat(3, 2))
    with pytest.warns(UserWarning, match=r"split test is empty: there are 3 identities"):
        split(manifest, {"train": 0.9, "test": 0.1})
    with pytest.warns(UserWarning, match=r"split val is empty: there are 6 rows"):
        split_rows(manifest, {"train": 6, "val": -1})


def test_each_dataset_is_shared_out_in_proportion() -> None:
    manifest = Manifest.from_rows(flat(100, 1, "large") + flat(10, 1, "small"))
    done = split(manifest, {"train": 0.8, "test": 0.2})
    for name, count in (("large", 80), ("small", 8)):
        assert Counter(done.filter(dataset=name).column("split"))["train"] == count


def test_numbers_count_identities_with_all_their_distractors() -> None:
    rows = []
    for i in range(40):  # NearID's shape: two views and a distractor of each (section 3.3)
        rows += [Row(f"p{i}", f"{i}_{v}.jpg", id=f"{i}/{v}") for v in (1, 2)]
        rows += [Row(f"p{i}/d{v}", f"{i}_{v}_d.jpg", role="distractor", parent=f"{i}/{v}") for v in (1, 2)]
    done = split(Manifest.from_rows(rows), {"train": -1, "val": 5, "test": 10}, seed=3)
    positives = done.filter(role="real")
    sizes = Counter(dict(zip(positives.column("identity"), positives.column("split"), strict=True)).values())
    assert sizes == {"train": 25, "val": 5, "test": 10}
    assert Counter(done.column("split")) == {"train": 100, "val": 20, "test": 40}
    assert not leaks(done)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": 0.8, "b": 0.3}, "sum to 1.1"), ({"a": 7, "b": 8}, "ask for 15 identities; there are 10"),
        ({"a": 0.8, "b": 5}, "a=0.8"), ({"a": 2.5, "b": 3}, "a=2.5"), ({"a": -2, "b": 3}, "a=-2"),
        ({"a": -1, "b": -1}, "two splits of -1"), ({"a": float("nan")}, "a=nan"), ({}, "at least one"),
        ({"": 0.5}, "name"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be_are_refused(parts: dict[str, float], message: str) -> None:
    manifest = Manifest.from_rows(flat(10, 1))
    with pytest.raises(ValueError, match=message):
        split(manifest, parts)
    with pytest.raises(ValueError, match=message):
        split_rows(manifest, parts)


def test_rows_can_be_split_whatever_they_show() -> None:
    manifest = Manifest.from_rows(flat(3, 100))
    done = split_rows(manifest, {"train": 0.9, "test": 0.1}, seed=1)
    assert Counter(done.column("split")) == {"train": 270, "test": 30}
    assert set(leaks(done)) == {"d/0", "d/1", "d/2"}


def test_leaks_are_found_through_parents_groups_and_names() -> None:
    rows = [
        Row("a", "1.jpg", split="train"), Row("a", "2.jpg", split="test"),
        Row("b", "3.jpg", id="b", split="train"),
        Row("b/edit", "4.jpg", parent="b", role="identity-edit", split="test"),
        Row(None, "5.jpg", id="g1", group="g", slot="anchor", split="val"),
        Row(None, "6.jpg", group="g", slot="left", split="test"),
        Row(None, "7.jpg", id="h1", group="h", slot="anchor", split="val"),
        Row(None, "8.jpg", group="h", slot="left", split="test"),
        Row("c", "9.jpg", split="train"), Row("c", "10.jpg"),
    ]  # fmt: skip
    found = leaks(Manifest.from_rows(rows))
    assert found == {"a": ("train", "test"), "b": ("train", "test"), "g1": ("val", "test"), "h1": ("val", "test")}
    assert leaks(Manifest.from_rows([])) == {}
