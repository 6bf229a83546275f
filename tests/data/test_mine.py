from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from idmetric.data import nearest as neighbors
from idmetric.data.curate.mine import Placed, grouped, hard_negatives, hard_pairs
from idmetric.data.nearest import nearest_other
from idmetric.data.old_manifest.lineage import followers, lineages
from idmetric.data.old_manifest.table import Manifest, Row


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
    expected = brute_force(vectors, groups, k, ceiling=ceiling)
    found = nearest_other(vectors, groups, k, ceiling=ceiling)
    np.testing.assert_array_equal(found.rows, expected)
    assert (np.isnan(found.similarity) == (found.rows < 0)).all()


def test_near_copies_of_the_own_identity_do_not_crowd_the_answer_out() -> None:
    rng = np.random.default_rng(0)
    center, dims = rng.normal(size=32), 32
    own = center + 1e-3 * rng.normal(size=(300, dims))  # all nearer than any stranger
    strangers = rng.normal(size=(50, dims))
    vectors = np.concatenate([own, strangers]).astype(np.float32)
    groups = np.r_[np.zeros(300, int), np.arange(1, 51)]
    found = nearest_other(vectors, groups, 2)
    np.testing.assert_array_equal(found.rows, brute_force(vectors, groups, 2))
    assert (found.rows[:300] >= 300).all()


def test_strangers_alike_in_six_decimals_are_taken_in_order_of_rows() -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(size=64)
    # strangers at similarities within 1e-5 of each other: float32 products order many of them at random
    vectors = (base + 1e-3 * rng.normal(size=(400, 64))).astype(np.float32)
    groups = np.arange(400) // 2
    found = nearest_other(vectors, groups, 3)
    np.testing.assert_array_equal(found.rows, brute_force(vectors, groups, 3))
    naive = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    product = naive @ naive.T
    product[groups[:, None] == groups[None]] = -2
    assert (product.argmax(1) != found.rows[:, 0]).any()  # or the case would be too easy


def test_the_answer_does_not_depend_on_blocks_or_on_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, groups = cloud(3, 300)
    whole = nearest_other(vectors, groups, 2)
    monkeypatch.setattr(neighbors, "_CELLS", 1000)
    calls: list[tuple[int, int]] = []
    small = nearest_other(vectors * 37.5, groups, 2, progress=lambda *n: calls.append(n))
    np.testing.assert_array_equal(whole.rows, small.rows)
    assert calls[-1] == (300, 300)
    assert len(calls) > 20  # several blocks
    assert calls == sorted(calls)


def test_rows_outside_anchors_and_pool_may_hold_anything() -> None:
    vectors, groups = cloud(5, 60)
    vectors = vectors.copy()
    vectors[::3] = np.nan
    anchors, pool = np.arange(1, 60, 3), np.r_[np.arange(2, 60, 3), np.arange(1, 60, 6)]
    found = nearest_other(vectors, groups, 2, anchors=anchors, pool=pool)
    np.testing.assert_array_equal(found.rows, brute_force(vectors, groups, 2, anchors, np.sort(pool)))
    with pytest.raises(ValueError, match="row 1 is zero or not finite"):
        nearest_other(vectors, groups)
    with pytest.raises(ValueError, match="row 7 is zero"):
        nearest_other(np.r_[np.ones((6, 2)), np.zeros((1, 2))], np.arange(7))
    with pytest.raises(ValueError, match="k must be"):
        nearest_other(np.ones((2, 2)), np.arange(2), 0)
    assert nearest_other(vectors, groups, anchors=np.array([], int)).rows.shape == (0, 1)


# Negatives of a manifest


def world() -> tuple[Manifest, NDArray[np.float32]]:
    """Six identities with an anchor and a positive each, in two splits, and vectors of the rows."""
    rows = [Row(f"i{k}", f"{k}{slot}.jpg", split="train" if k < 4 else "val", group=f"i{k}", slot=slot)
            for k in range(6) for slot in ("anchor", "positive")]  # fmt: skip
    return Manifest.from_rows(rows), np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)


def test_triplets_hold_anchor_positive_and_the_nearest_stranger_of_the_split() -> None:
    manifest, vectors = world()
    out = hard_negatives(manifest, vectors)
    assert out.column("slot") == ["anchor", "positive", "negative"] * 6
    splits = np.array(manifest.column("split"))
    names = np.array(manifest.column("identity"))
    for k in range(6):
        pool = np.flatnonzero(splits == splits[2 * k])
        row = int(brute_force(vectors, names, 1, np.array([2 * k]), pool)[0, 0])
        group = out.filter(group=f"i{k}")
        assert group.column("x_source") == [f"i{k}/anchor/{k}anchor.jpg", f"i{k}/positive/{k}positive.jpg",
                                            manifest[row].id]  # fmt: skip
        assert group[2].identity != group[0].identity == group[1].identity
        assert len(set(group.column("split"))) == 1
        cosine = float(vectors[2 * k] @ vectors[row] / np.linalg.norm(vectors[2 * k]) / np.linalg.norm(vectors[row]))
        assert abs(group.column("x_similarity")[2] - cosine) < 1e-6
    again = hard_negatives(out, np.concatenate([vectors[manifest.column("id").index(s)][None]
                                                for s in out.column("x_source")]))  # fmt: skip
    assert again.column("x_source") == out.column("x_source")  # mining what was mined changes nothing


def test_images_without_groups_are_anchors_with_a_random_positive() -> None:
    rows = [Row(f"i{k % 5}", f"{k}.jpg") for k in range(15)] + [Row("single", "s.jpg"), Row(None, "nobody.jpg")]
    manifest = Manifest.from_rows(rows)
    vectors = np.random.default_rng(2).normal(size=(17, 8)).astype(np.float32)
    out = hard_negatives(manifest, vectors, 2)
    slots = Counter(out.column("slot"))
    assert slots == {"anchor": 16, "positive": 15, "negative": 32}
    for group in set(out.column("group")):
        part = {slot: out.filter(group=group, slot=slot) for slot in ("anchor", "positive", "negative")}
        anchor = part["anchor"][0]
        assert all(p.identity == anchor.identity and p.path != anchor.path for p in part["positive"])
        assert all(n.identity not in (anchor.identity, None) for n in part["negative"])
    other = hard_negatives(manifest, vectors, 2, seed=1)
    assert other.filter(slot="negative").column("path") == out.filter(slot="negative").column("path")
    assert other.filter(slot="positive").column("path") != out.filter(slot="positive").column("path")


def test_what_was_made_from_an_image_is_no_mined_negative_of_it() -> None:
    rows = [Row("x", "x0.jpg"), Row("x", "x1.jpg"), Row("x2", "edit.jpg", role="identity-edit", parent="x0.jpg"),
            Row("x3", "context under a wrong name.jpg", parent="x0.jpg"), Row("y", "y.jpg")]  # fmt: skip
    manifest = Manifest.from_rows(rows)
    vectors = np.array([[1, 0], [1, 0.1], [1, 0.01], [1, 0.02], [0, 1]], np.float32)

    out = hard_negatives(manifest, vectors)
    assert [row.path for row in out if row.group == "x0.jpg" and row.slot == "negative"] == ["y.jpg"]


def test_copies_in_groups_name_a_copy_as_their_parent() -> None:
    rows = [Row("x", "x0.jpg"), Row("x", "x1.jpg"), Row("y", "y0.jpg"), Row("y", "y1.jpg"),
            Row("x", "xe.jpg", role="context-edit", parent="x0.jpg"),
            Row("z", "ze.jpg", role="identity-edit", parent="y1.jpg"),
            Row("w", "we.jpg", role="identity-edit", parent="gone.jpg")]  # fmt: skip
    manifest = Manifest.from_rows(rows)
    triples = [(1, "g", "anchor", None), (4, "g", "positive", None), (5, "g", "negative", 0.5),
               (0, "h", "anchor", None), (4, "h", "positive", None), (3, "h", "negative", 0.1),
               (0, "i", "anchor", None), (1, "i", "positive", None), (6, "i", "negative", 0.1)]  # fmt: skip
    once = grouped(manifest, [Placed(*triple) for triple in triples])
    again = grouped(once, [Placed(k, f"{g}2", slot, s) for k, (_, g, slot, s) in enumerate(triples)])
    for out, end in ((once, ""), (again, "2")):
        ids = [f"{group}{end}/{slot}" for _, group, slot, _ in triples]
        assert [i.startswith(start) for i, start in zip(out.column("id"), ids, strict=True)] == [True] * 9
        parent = [p and next((k for k, i in enumerate(out.column("id")) if i == p), p) for p in out.column("parent")]
        # of the own group first (h), else anywhere; what is nowhere keeps its first name
        assert parent == [None, 3, 5, None, 3, None, None, None, "gone.jpg"]
        families = lineages(out)
        assert families[2] == families[5] != families[0]
        assert followers(out).tolist() == [k == 2 for k in range(9)]


def test_the_ceiling_leaves_out_the_same_thing_under_another_name() -> None:
    manifest = Manifest.from_rows([Row(c, f"{c}.jpg") for c in "abc"])
    vectors = np.array([[1, 0], [1, 1e-3], [1, 1]], np.float32)
    nearest = hard_negatives(manifest, vectors).filter(slot="negative").column("path")
    assert nearest == ["b.jpg", "a.jpg", "b.jpg"]
    mined = hard_negatives(manifest, vectors, ceiling=0.99)
    assert mined.filter(slot="negative").column("path") == ["c.jpg", "c.jpg", "b.jpg"]
    assert len(hard_negatives(manifest, vectors, ceiling=0.5)) == 0


# Pairs


def test_pairs_share_the_text_differ_in_identity_and_are_nearest() -> None:
    rng = np.random.default_rng(0)
    rows = [Row(f"i{k % 7}", f"{k}.jpg", text=("Make it red", "make it  RED", "add a hat", None)[k % 4],
                role="context-edit") for k in range(40)]  # fmt: skip
    manifest, vectors = Manifest.from_rows(rows), rng.normal(size=(40, 6)).astype(np.float32)
    texts = np.array([" ".join((r.text or "").lower().split()) for r in manifest])
    names = np.array(manifest.column("identity"))
    expected = set()
    for text in ("make it red", "add a hat"):
        pool = np.flatnonzero(texts == text)
        for a, b in zip(pool, brute_force(vectors, names, 1, pool, pool)[:, 0], strict=True):
            expected.add(frozenset((f"{a}.jpg", f"{b}.jpg")))
    out = hard_pairs(manifest, vectors)
    found = [frozenset(out.filter(group=g).column("path")) for g in dict.fromkeys(out.column("group"))]
    assert len(found) == len(set(found))
    assert set(found) == expected
    similarity = [s for s in out.column("x_similarity") if s is not None]
    assert similarity == sorted(similarity, reverse=True)
    cut = hard_pairs(manifest, vectors, ceiling=similarity[0])
    assert max(s for s in cut.column("x_similarity") if s is not None) < similarity[0]
