from __future__ import annotations

import os
import warnings
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmetric.data.manifest import checked, take
from idmetric.data.split import (
    blocks,
    followers,
    image_keys,
    leaks,
    parent_rows,
    split,
    split_name,
    split_rows,
    split_word,
    without_orphans,
)

Records = list[dict[str, Any]]


def made(rows: Records) -> pd.DataFrame:
    return checked(rows)


def flat(identities: int, images: int = 3, dataset: str = "d") -> Records:
    numbers = [(identity, image) for identity in range(identities) for image in range(images)]
    return [{"identity": f"{dataset}/{i}", "path": f"{dataset}/{i}/{k}.jpg", "dataset": dataset} for i, k in numbers]


@st.composite
def path(draw: st.DrawFn, row: int) -> str:
    """A file of the row's own, or one that others may use too, by one of its names."""
    if draw(st.integers(0, 3)):
        return f"{row}.jpg"
    name = draw(st.sampled_from(["s{}.jpg", "./s{}.jpg", "a/../s{}.jpg", os.path.abspath("s{}.jpg")]))
    return name.format(draw(st.integers(0, 30)))


@st.composite
def manifests(draw: st.DrawFn) -> pd.DataFrame:
    """Rows with or without identities, parents anywhere (also later, or absent), groups and files that rows share."""
    rows = []
    for k in range(draw(st.integers(0, 25))):
        identity = draw(st.none() | st.integers(0, 8))
        parent = draw(st.none() | st.integers(0, 30))
        group = draw(st.none() | st.integers(0, 6))
        row = {
            "identity": None if identity is None else f"i{identity}",
            "id": f"r{k}",
            "path": draw(path(k)),
            "dataset": draw(st.sampled_from(["a", "b", None])),
            "parent": None if parent is None else f"r{parent}",
            "group": None if group is None else f"g{group}",
            "slot": None if group is None else "query",
        }
        rows.append(row)
    return made(rows)


def belong(table: pd.DataFrame) -> list[set[int]]:
    """Blocks the slow way: rows that share an identity, a group, a parent or an image, until nothing changes."""
    rows = table.to_dict("records")
    found = [{k} for k in range(len(rows))]

    def linked(a: dict[str, Any], b: dict[str, Any]) -> bool:
        shared = any(a[name] is not None and a[name] == b[name] for name in ("identity", "group", "parent", "path"))
        return shared or a["parent"] == b["id"] or b["parent"] == a["id"]

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
def test_blocks_are_what_hangs_together(table: pd.DataFrame) -> None:
    block = blocks(table)
    rows_of: dict[int, set[int]] = {}
    for row, number in enumerate(block.tolist()):
        rows_of.setdefault(number, set()).add(row)
    assert sorted(map(sorted, rows_of.values())) == sorted(map(sorted, belong(table)))
    assert list(rows_of) == list(range(len(rows_of)))  # in order of appearance
    lineage = blocks(table, groups=False)
    assert np.array_equal(lineage, blocks(table.assign(group=None)))


@given(manifests(), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(0, 99), st.booleans())
@settings(max_examples=80, deadline=None)
def test_no_identity_is_ever_in_two_splits(
    table: pd.DataFrame, shares: list[float], seed: int, by_dataset: bool
) -> None:
    total = max(1.0, sum(shares))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of splits that stay empty
        done = split(table, {f"s{k}": s / total for k, s in enumerate(shares)}, seed, by_dataset)
    assert not leaks(done)
    for hanging in belong(table):
        assert done["split"][list(hanging)].nunique(dropna=False) == 1
    pd.testing.assert_frame_equal(done.assign(split=table["split"]), table)  # nothing else changes
    assert done["split"].dtype == object
    assert all(name is None or isinstance(name, str) for name in done["split"])


def test_a_table_that_pandas_sorted_filtered_or_joined_is_split_as_if_numbered() -> None:
    table = made(flat(8))
    parts = {"train": 0.5, "val": 0.5}
    chosen = table[table["identity"] != "d/0"]
    for odd in (table.sample(frac=1, random_state=0), chosen, pd.concat([chosen, chosen])):
        as_numbered = odd.reset_index(drop=True)
        done = split(odd, parts)
        assert not leaks(done)
        assert done["split"].tolist() == split(as_numbered, parts)["split"].tolist()
        assert split_rows(odd, parts)["split"].tolist() == split_rows(as_numbered, parts)["split"].tolist()


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=60), st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_shares_are_met_over_many_small_datasets(sizes: list[int], shares: list[float], seed: int) -> None:
    total = max(1.0, sum(shares))
    parts = {f"s{k}": s / total for k, s in enumerate(shares)}
    table = made([row for k, size in enumerate(sizes) for row in flat(size, 1, f"d{k}")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = Counter(split(table, parts, seed)["split"])
    assert sum(counts.values()) == sum(sizes)
    for name, share in parts.items():
        assert abs(counts[name] - share * sum(sizes)) < 2


def test_a_split_that_stays_empty_is_warned_of() -> None:
    table = made(flat(3, 2))
    with pytest.warns(UserWarning, match=r"test is empty.* 3 "):
        split(table, {"train": 0.9, "test": 0.1})
    with pytest.warns(UserWarning, match=r"val is empty.* 6 rows"):
        split_rows(table, {"train": 6, "val": -1})


def test_each_dataset_is_shared_out_in_proportion() -> None:
    done = split(made(flat(100, 1, "large") + flat(10, 1, "small")), {"Training": 0.8, "test": 0.2})
    counts = done.groupby("dataset")["split"].value_counts()
    assert counts["large", "train"] == 80
    assert counts["small", "train"] == 8


def test_numbers_count_identities_with_all_their_distractors() -> None:
    rows = []
    for i in range(40):  # NearID's shape: two views and a distractor of each (section 3.3)
        for v in (1, 2):
            rows.append({"identity": f"p{i}", "path": f"{i}_{v}.jpg", "id": f"{i}/{v}"})
            distractor = {"role": "distractor", "parent": f"{i}/{v}"}
            rows.append({"identity": f"p{i}/d{v}", "path": f"{i}_{v}_d.jpg", **distractor})
    done = split(made(rows), {"train": -1, "val": 5, "test": 10}, seed=3)
    positives = done[done["role"] == "real"]
    assert Counter(positives.groupby("identity")["split"].first()) == {"train": 25, "val": 5, "test": 10}
    assert Counter(done["split"]) == {"train": 100, "val": 20, "test": 40}
    assert not leaks(done)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": 0.8, "b": 0.3}, "sum to 1.1"), ({"a": 7, "b": 8}, "15 .* 10"),
        ({"a": 0.8, "b": 5}, "a=0.8"), ({"a": 2.5, "b": 3}, "a=2.5"), ({"a": -2, "b": 3}, "a=-2"),
        ({"a": -1, "b": -1}, "-1"), ({"a": float("nan")}, "a=nan"), ({}, "at least one"), ({"": 0.5}, "name"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be_are_refused(parts: dict[str, float], message: str) -> None:
    table = made(flat(10, 1))
    with pytest.raises(ValueError, match=message):
        split(table, parts)
    with pytest.raises(ValueError, match=message):
        split_rows(table, parts)


def test_rows_can_be_split_whatever_they_show() -> None:
    done = split_rows(made(flat(3, 100)), {"train": 0.9, "test": 0.1}, seed=1)
    assert Counter(done["split"]) == {"train": 270, "test": 30}
    assert set(leaks(done)) == {"d/0", "d/1", "d/2"}


def test_leaks_are_found_through_parents_groups_and_names() -> None:
    rows: Records = [
        {"identity": "a", "path": "1.jpg", "split": "train"}, {"identity": "a", "path": "2.jpg", "split": "test"},
        {"identity": "b", "path": "3.jpg", "id": "b", "split": "train"},
        {"identity": "b/edit", "path": "4.jpg", "parent": "b", "role": "identity-edit", "split": "test"},
        {"path": "5.jpg", "id": "g1", "group": "g", "slot": "anchor", "split": "val"},
        {"path": "6.jpg", "group": "g", "slot": "left", "split": "test"},
        {"path": "7.jpg", "id": "h1", "group": "h", "slot": "anchor", "split": "val"},
        {"path": "8.jpg", "group": "h", "slot": "left", "split": "test"},
        {"identity": "c", "path": "9.jpg", "split": "dev2"}, {"identity": "c", "path": "10.jpg"},
        {"identity": "e", "path": "11.jpg", "split": "Train"}, {"identity": "e", "path": "12.jpg", "split": "training"},
    ]  # fmt: skip
    expected = {"a": ("train", "test"), "b": ("train", "test"), "g1": ("val", "test"), "h1": ("val", "test")}
    assert leaks(made(rows)) == expected
    assert leaks(made([])) == {}


def test_followers_leave_with_the_rows_that_they_were_made_from() -> None:
    rows: Records = [
        {"identity": "a", "path": "1", "id": "a"}, {"identity": "a", "path": "2", "parent": "a"},
        {"identity": "b", "path": "3", "id": "b", "parent": "a"}, {"identity": "c", "path": "4", "parent": "b"},
        {"identity": "d", "path": "5", "parent": "gone"}, {"text": "a dog", "group": "g", "slot": "query"},
    ]  # fmt: skip
    table = made(rows)
    assert parent_rows(table).tolist() == [-1, 0, 0, 2, -1, -1]
    assert followers(table).tolist() == [False, False, True, True, False, False]
    keep = np.array([False, True, True, True, True, True])
    kept = take(table, without_orphans(table, keep))
    assert kept["identity"].tolist() == ["a", "d", None]
    assert len(set(image_keys(table))) == 6


@pytest.mark.parametrize(
    ("word", "split"),
    [
        ("Train", "train"), ("TRAINING", "train"), ("train_set", "train"), ("Training data", "train"),
        ("Validation", "val"), ("valid", "val"), ("VAL", "val"), ("Dev", "dev"), ("Test", "test"), (" test ", "test"),
        ("QUERY", "query"), ("Queries", "query"), ("probe", "query"), ("query-images", "query"), ("eval", "eval"),
        ("Gallery", "gallery"), ("database", "gallery"), ("Index", "gallery"),
        ("dev2", None), ("test_dense", None), ("rex", None), ("", None), ("data", None), ("trainer", None),
    ],
)  # fmt: skip
def test_the_usual_words_in_any_case(word: str, split: str | None) -> None:
    assert split_word(word) == split
    assert split_name(word) == (split or word)
