from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from idmetric.data import nearest as neighbors
from idmetric.data.curate.mine import grouped, hard_negatives, hard_pairs
from idmetric.data.manifest import checked, take
from idmetric.data.nearest import nearest_other
from idmetric.data.split import blocks, followers


def made(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return checked(pd.DataFrame(rows, dtype=object), "/")


def brute_force(
    vectors: NDArray[Any],
    groups: NDArray[Any],
    k: int = 1,
    anchors: NDArray[Any] | None = None,
    pool: NDArray[Any] | None = None,
    ceiling: float = np.inf,
) -> NDArray[np.int64]:
    """One pair at a time, in float64; those that agree in six decimals by row."""
    unit = vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit = unit.astype(np.float32).astype(np.float64)
    rows = []
    for a in range(len(vectors)) if anchors is None else anchors:
        found = []
        for b in range(len(vectors)) if pool is None else pool:
            similarity = round(float((unit[a] * unit[b]).sum()), 6)
            if groups[a] != groups[b] and similarity < ceiling:
                found.append((-similarity, int(b)))
        best = [b for _, b in sorted(found)[:k]]
        rows.append(best + [-1] * (k - len(best)))
    return np.array(rows)


def cloud(seed: int, count: int, dims: int = 8, kinds: int = 5) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Vectors with many exact duplicates, and their groups."""
    rng = np.random.default_rng(seed)
    few = rng.normal(size=(max(1, count // 2), dims)).astype(np.float32)
    return few[rng.integers(len(few), size=count)], rng.integers(kinds, size=count)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 4), st.integers(1, 6),
       st.sampled_from([np.inf, 0.9, 0.0]))  # fmt: skip
def test_the_mined_negative_is_that_of_a_loop_over_all_pairs(
    seed: int, count: int, k: int, kinds: int, ceiling: float
) -> None:
    vectors, groups = cloud(seed, count, kinds=kinds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors, "_CELLS", 200)  # several blocks
        rows, similarity = nearest_other(vectors * 37.5, groups, k, ceiling=ceiling)
    np.testing.assert_array_equal(rows, brute_force(vectors, groups, k, ceiling=ceiling))
    assert (np.isnan(similarity) == (rows < 0)).all()


def test_rows_outside_anchors_and_pool_may_hold_anything() -> None:
    vectors, groups = cloud(5, 60)
    vectors[::3] = np.nan
    anchors, pool = np.arange(1, 60, 3), np.r_[np.arange(2, 60, 3), np.arange(1, 60, 6)]
    rows, _ = nearest_other(vectors, groups, 2, anchors=anchors, pool=pool)
    np.testing.assert_array_equal(rows, brute_force(vectors, groups, 2, anchors, np.sort(pool)))
    with pytest.raises(ValueError, match="row 1 "):
        nearest_other(vectors, groups)
    with pytest.raises(ValueError, match="row 7 "):
        nearest_other(np.r_[np.ones((6, 2)), np.zeros((1, 2))], np.arange(7))
    with pytest.raises(ValueError, match="k must be"):
        nearest_other(np.ones((2, 2)), np.arange(2), 0)
    assert nearest_other(vectors, groups, anchors=anchors[:0], pool=pool)[0].shape == (0, 1)
    assert nearest_other(vectors, groups, anchors=anchors, pool=pool[:0])[0].tolist() == [[-1]] * len(anchors)


# Negatives of a manifest


def world() -> tuple[pd.DataFrame, NDArray[np.float32]]:
    """Six identities with an anchor and a positive each, in two splits, and vectors of the rows."""
    rows = [{"identity": f"i{k}", "path": f"{k}{slot}.jpg", "split": "train" if k < 4 else "val", "group": f"i{k}",
             "slot": slot} for k in range(6) for slot in ("anchor", "positive")]  # fmt: skip
    return made(rows), np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)


def test_triplets_hold_anchor_positive_and_the_nearest_stranger_of_the_split() -> None:
    table, vectors = world()
    out = hard_negatives(table, vectors)
    assert out["slot"].tolist() == ["anchor", "positive", "negative"] * 6
    for k in range(6):
        pool = np.flatnonzero(table["split"] == table["split"][2 * k])
        row = int(brute_force(vectors, table["identity"].to_numpy(), 1, np.array([2 * k]), pool)[0, 0])
        group = take(out, out["group"] == f"i{k}")
        assert group["x_source"].tolist() == [*table["id"][[2 * k, 2 * k + 1, row]]]
        assert group["split"].nunique() == 1
        cosine = float(vectors[2 * k] @ vectors[row] / np.linalg.norm(vectors[2 * k]) / np.linalg.norm(vectors[row]))
        assert abs(group["x_similarity"][2] - cosine) < 1e-6
    rows = pd.Index(table["id"]).get_indexer(out["x_source"])
    again = hard_negatives(out, vectors[rows])
    assert again["x_source"].tolist() == out["x_source"].tolist()  # mining what was mined changes nothing


def test_images_without_groups_are_anchors_with_a_random_positive() -> None:
    rows = [{"identity": f"i{k % 5}", "path": f"{k}.jpg"} for k in range(15)]
    table = made([*rows, {"identity": "single", "path": "s.jpg"}, {"path": "nobody.jpg"}])
    vectors = np.random.default_rng(2).normal(size=(17, 8)).astype(np.float32)
    out = hard_negatives(table, vectors, 2)
    assert Counter(out["slot"]) == {"anchor": 16, "positive": 15, "negative": 32}
    for _, group in out.groupby("group"):
        anchor, *others = group.to_dict("records")
        for row in others:
            assert (row["identity"] == anchor["identity"]) == (row["slot"] == "positive")
            assert row["identity"] is not None
            assert row["path"] != anchor["path"]
    other = hard_negatives(table, vectors, 2, seed=1)
    for slot, is_same in (("negative", True), ("positive", False)):
        paths = [drawn["path"][drawn["slot"] == slot].tolist() for drawn in (out, other)]
        assert (paths[0] == paths[1]) == is_same


@pytest.mark.parametrize("mine", [hard_negatives, hard_pairs])
def test_a_table_that_pandas_sorted_is_mined_as_if_numbered(mine: Any) -> None:
    table, vectors = world()
    shuffled = table.assign(text="red").sample(frac=1, random_state=0)
    mined = mine(shuffled, vectors)
    pd.testing.assert_frame_equal(mined, mine(shuffled.reset_index(drop=True), vectors))


def test_what_was_made_from_an_image_is_no_mined_negative_of_it() -> None:
    table = made([
        {"identity": "x", "path": "x0.jpg"}, {"identity": "x", "path": "x1.jpg"},
        {"identity": "x2", "path": "edit.jpg", "role": "identity-edit", "parent": "x0.jpg"},
        {"identity": "x3", "path": "context under a wrong name.jpg", "parent": "x0.jpg"},
        {"identity": "y", "path": "y.jpg"},
    ])  # fmt: skip
    vectors = np.array([[1, 0], [1, 0.1], [1, 0.01], [1, 0.02], [0, 1]], np.float32)
    out = hard_negatives(table, vectors)
    negatives = out[(out["group"] == "x0.jpg") & (out["slot"] == "negative")]
    assert negatives["x_source"].tolist() == ["y.jpg"]


def test_copies_in_groups_name_a_copy_as_their_parent() -> None:
    edits = {
        "xe": ("x", "context-edit", "x0"),
        "ze": ("z", "identity-edit", "y1"),
        "we": ("w", "identity-edit", "gone"),
    }
    rows = [{"id": name, "identity": name[0], "path": name} for name in ("x0", "x1", "y0", "y1")]
    rows += [{"id": name, "identity": identity, "path": name, "role": role, "parent": parent}
             for name, (identity, role, parent) in edits.items()]  # fmt: skip
    slots = ["anchor", "positive", "negative"] * 3
    first = pd.DataFrame({"row": [1, 4, 5, 0, 4, 3, 0, 1, 6], "group": list("ggghhhiii"), "slot": slots})
    second = first.assign(row=range(9), group=first["group"] + "2")
    once = grouped(made(rows), first)
    for out, placed in ((once, first), (grouped(once, second), second)):
        starts = placed["group"] + "/" + placed["slot"] + "/"
        assert all(name.startswith(start) for name, start in zip(out["id"], starts, strict=True))
        row_of = {name: row for row, name in enumerate(out["id"])}
        # of the own group first (h), else anywhere; what is nowhere keeps its first name
        assert [row_of.get(p, p) for p in out["parent"]] == [None, 3, 5, None, 3, None, None, None, "gone"]
        families = blocks(out, groups=False)
        assert families[2] == families[5] != families[0]
        assert np.flatnonzero(followers(out)).tolist() == [2]


def test_the_ceiling_leaves_out_the_same_subject_under_another_name() -> None:
    table = made([{"identity": name, "path": f"/{name}.jpg"} for name in "abc"])
    vectors = np.array([[1, 0], [1, 1e-3], [1, 1]], np.float32)

    def negatives(ceiling: float | None) -> list[str]:
        out = hard_negatives(table, vectors, ceiling=ceiling)
        return out["path"][out["slot"] == "negative"].tolist()

    assert negatives(None) == ["/b.jpg", "/a.jpg", "/b.jpg"]
    assert negatives(0.99) == ["/c.jpg", "/c.jpg", "/b.jpg"]
    assert negatives(0.5) == []


# Pairs


def test_pairs_share_the_text_differ_in_identity_and_are_nearest() -> None:
    table = made([
        {"identity": f"i{k % 7}", "path": f"/{k}", "text": ("Make it red", "make it  RED", "add a hat", None)[k % 4]}
        for k in range(40)
    ])  # fmt: skip
    vectors = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    expected = set()
    for pool in (np.flatnonzero(np.arange(40) % 4 < 2), np.arange(2, 40, 4)):
        nearest = brute_force(vectors, table["identity"].to_numpy(), 1, pool, pool)[:, 0]
        expected |= {frozenset((f"/{a}", f"/{b}")) for a, b in zip(pool, nearest, strict=True)}
    out = hard_pairs(table, vectors)
    pairs = out.groupby("group")["path"].agg(frozenset)
    assert len(pairs) == len(expected)
    assert set(pairs) == expected
    similarity = out["x_similarity"].dropna()
    assert similarity.is_monotonic_decreasing
    cut = hard_pairs(table, vectors, ceiling=similarity.max())
    assert cut["x_similarity"].max() < similarity.max()
    assert len(hard_pairs(table, vectors, ceiling=-1)) == 0
