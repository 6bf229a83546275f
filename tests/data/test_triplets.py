from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from idmetric.data.curate.balance import shares
from idmetric.data.curate.mine import hard_negatives
from idmetric.data.curate.triplets import PAIRINGS, mixture, parse_ratio
from idmetric.data.generate.engines import open_engine
from idmetric.data.generate.idsim import noise_task
from idmetric.data.generate.wording import read_wording
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.split import leaks
from idmetric.data.old_manifest.table import Manifest, Row, read


def mined(count: int, split: str = "train") -> Manifest:
    rows = [Row(f"real{k}", f"r{k}{slot}.jpg", split=split, group=f"real{k}", slot=slot)
            for k in range(count) for slot in ("anchor", "positive")]  # fmt: skip
    vectors = np.random.default_rng(0).normal(size=(len(rows), 6)).astype(np.float32)
    return hard_negatives(Manifest.from_rows(rows), vectors)


def context(count: int, split: str = "train", edits: int = 2) -> Manifest:
    rows = []
    for k in range(count):
        rows += [Row(f"film{k}", f"f{k}-{i}.jpg", split=split) for i in range(2)]
        rows += [Row(f"film{k}", f"f{k}-{i}e.jpg", split=split, role="context-edit", parent=f"f{k}-{i % 2}.jpg")
                 for i in range(edits)]  # fmt: skip
    return Manifest.from_rows(rows)


def edited(count: int, split: str = "train") -> Manifest:
    rows = []
    for k in range(count):
        rows += [Row(f"dress{k}", f"d{k}-{i}.jpg", split=split) for i in range(3)]
        rows += [Row(f"dress{k}*{i}", f"d{k}-{i}e.jpg", split=split, role="identity-edit", parent=f"d{k}-{i}.jpg")
                 for i in range(2)]  # fmt: skip
    return Manifest.from_rows(rows)


def triplets(manifest: Manifest) -> list[tuple[Row, Row, Row]]:
    rows = list(manifest)
    assert [r.slot for r in rows] == ["anchor", "positive", "negative"] * (len(rows) // 3)
    found = [(rows[k], rows[k + 1], rows[k + 2]) for k in range(0, len(rows), 3)]
    assert all(a.group == p.group == n.group for a, p, n in found)
    assert len({a.group for a, _, _ in found}) == len(found)
    return found


def test_an_even_mixture_of_ten_thousand_has_a_third_of_each() -> None:
    assert shares(10_000, (1, 1, 1)) == [3333, 3334, 3333]
    assert shares(10_000, (0.15, 0.7, 0.15)) == [1500, 7000, 1500]
    out = mixture(mined(40), context(40), edited(40), count=100)
    assert Counter(out.column("x_mixture")) == {"real": 99, "context": 102, "identity": 99}


def test_ratios_that_cannot_be_are_refused() -> None:
    assert parse_ratio("0.7:0.15:0.15") == (0.7, 0.15, 0.15)
    for wrong in ("1:1", "a:b:c", "1:-1:1", "0:0:0", "nan:1:1", "inf:1:1", ""):
        with pytest.raises(ValueError, match="is not a ratio"):
            parse_ratio(wrong)


def test_positives_show_the_anchor_and_negatives_never_do() -> None:
    out = mixture(mined(60), context(60), edited(60), count=150, seed=3)
    for a, p, n in triplets(out):
        assert a.identity == p.identity != n.identity
        assert len({a.path, p.path, n.path}) == 3
    of = Counter(a.identity for a, _, _ in triplets(out))
    assert max(of.values()) == 1  # as many instances as triplets


def test_each_subset_has_the_roles_that_the_paper_gives_it() -> None:
    out = mixture(mined(60), context(60), edited(60), count=150)
    kinds = out.column("x_mixture")
    for (a, p, n), kind in zip(triplets(out), kinds[::3], strict=True):
        if kind == "context":
            assert "context-edit" in (a.role, p.role)
            assert n.role in ("real", "context-edit")
        else:
            assert (a.role, p.role) == ("real", "real")
            assert n.role == "real" or kind == "identity"
        if n.role == "identity-edit":  # made from an image of the anchor's identity
            assert (n.identity or "").split("*")[0] == a.identity


def test_the_three_pairings_and_both_kinds_of_negatives_are_equally_likely() -> None:
    count = 2000
    out = mixture(mined(1), context(count), None, count=count, ratio=(0, 1, 0))
    pairings = Counter(out.column("x_pairing")[::3])
    assert set(pairings) == set(PAIRINGS)
    assert all(abs(n - count / 3) < 4 * math.sqrt(count * 2 / 9) for n in pairings.values())
    for (a, p, _), pairing in zip(triplets(out), out.column("x_pairing")[::3], strict=True):
        sides = ["edited" if r.role == "context-edit" else "original" for r in (a, p)]
        assert pairing == "-".join(sides)
    roles = Counter(n.role for _, _, n in triplets(out))
    assert abs(roles["real"] - count / 2) < 4 * math.sqrt(count / 4)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_identity_negatives_are_edits_and_originals_of_others_in_their_share(share: float) -> None:
    count = 2000
    out = mixture(mined(1), None, edited(count), count=count, ratio=(0, 0, 1), originals=share)
    found = triplets(out)
    roles = Counter(n.role for _, _, n in found)
    assert set(roles) <= {"real", "identity-edit"}
    assert abs(roles["real"] - share * count) <= 4 * math.sqrt(count * share * (1 - share))
    assert all(n.identity != a.identity for a, _, n in found)
    others = {n.identity for _, _, n in found if n.role == "real"}
    assert len(others) >= share * count / 2  # spread over the instances


def test_triplets_with_an_original_as_negative_get_no_noise() -> None:
    """ "Whenever a triplet includes an identity-edited negative" (A.2.2): the original negatives have no artifacts."""
    source = edited(60)
    engines = ["flux_fill" if role == "identity-edit" else None for role in source.column("role")]
    out = mixture(mined(1), None, source.replace(engine=engines), count=60, ratio=(0, 0, 1))
    groups = out.column("group")
    task = noise_task(out, open_engine("flux_fill"), read_wording())
    noised = {groups[job.source or 0] for job in task.jobs}
    edits = {n.group for _, _, n in triplets(out) if n.role == "identity-edit"}
    assert noised == edits
    assert 0 < len(edits) < 60


def test_real_triplets_are_those_mined() -> None:
    source = mined(30)
    out = mixture(source, count=20, ratio=(1, 0, 0))
    given_ = {tuple(source.filter(group=g).column("x_source")): source.filter(group=g).column("x_similarity")[2]
              for g in set(source.column("group"))}  # fmt: skip
    for k in range(20):
        part = out.take(np.arange(3 * k, 3 * k + 3))
        assert given_[tuple(part.column("x_source"))] == part.column("x_similarity")[2]


def test_a_subset_that_runs_out_is_named() -> None:
    for name, sources in {
        "real": (mined(5), context(50), edited(50)),
        "context": (mined(50), context(5), edited(50)),
        "identity": (mined(50), context(50), edited(5)),
    }.items():
        with pytest.raises(ManifestError, match=f"subset '{name}' gives 5 of 1[01] triplets, from 5 instances"):
            mixture(*sources, count=31)
    with pytest.raises(ManifestError, match="subset 'context' need its manifest: give it"):
        mixture(mined(50), None, edited(50), count=30)
    with pytest.raises(ManifestError, match="an instance needs an original, two context-edits"):
        mixture(mined(50), context(50, edits=1), count=30, ratio=(1, 1, 0))
    with pytest.raises(ManifestError, match="mine negatives first"):
        mixture(context(50), count=30, ratio=(1, 0, 0))
    with pytest.raises(ManifestError, match="'context' gives 0 of 1 triplets"):
        mixture(mined(50), context(1), count=1, ratio=(0, 1, 0))


def test_splits_are_not_mixed() -> None:
    def both(make: object) -> Manifest:
        train, val = make(20), make(30, "val")  # type: ignore[operator]
        named = val.replace(
            identity=[f"v-{i}" for i in val.column("identity")], id=[f"v-{i}" for i in val.column("id")],
            parent=[p and f"v-{p}" for p in val.column("parent")], group=[g and f"v-{g}" for g in val.column("group")],
        )  # fmt: skip
        return Manifest.from_rows([*train, *named])

    sources = both(mined), both(context), both(edited)
    with pytest.raises(ManifestError, match="has the splits train, val: choose one"):
        mixture(*sources, count=30)
    with pytest.raises(ManifestError, match="no rows of split 'test'; its splits: train, val"):
        mixture(*sources, count=30, split="test")
    with pytest.raises(ManifestError, match="have the splits train, val"):
        mixture(mined(20), context(20, "val"), count=30, ratio=(1, 1, 0))
    out = mixture(*sources, count=60, split="val")
    assert set(out.column("split")) == {"val"}
    assert not leaks(out)


def test_the_same_seed_gives_the_same_mixture_and_files_keep_it(tmp_path: Path) -> None:
    sources = mined(40), context(40), edited(40)
    out = mixture(*sources, count=60, seed=1)
    assert list(out) == list(mixture(*sources, count=60, seed=1))
    assert list(out) != list(mixture(*sources, count=60, seed=2))
    shuffled = [m.take(np.random.default_rng(0).permutation(len(m))) for m in sources]
    assert list(mixture(*shuffled, count=60, seed=1)) == list(out)
    for ending in ("parquet", "csv", "jsonl"):
        out.write(tmp_path / f"mix.{ending}")
        assert [r.id for r in read(tmp_path / f"mix.{ending}")] == [r.id for r in out]
