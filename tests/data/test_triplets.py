from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from idmetric.data.curate.balance import shares
from idmetric.data.curate.mine import hard_negatives
from idmetric.data.curate.triplets import mixture, parse_ratio
from idmetric.data.generate.engines import open_engine
from idmetric.data.generate.idsim import noise_task
from idmetric.data.generate.wording import read_wording
from idmetric.data.manifest import ManifestError, checked, merge, read, take, write
from idmetric.data.split import leaks

Source = Callable[..., pd.DataFrame]


def made(rows: list[dict[str, Any]], split: str) -> pd.DataFrame:
    return checked(pd.DataFrame(rows, dtype=object).assign(split=split), "/")


def mined(count: int, split: str = "train", name: str = "real") -> pd.DataFrame:
    rows = [{"identity": f"{name}{k}", "path": f"{name}{k}{slot}", "group": f"{name}{k}", "slot": slot}
            for k in range(count) for slot in ("anchor", "positive")]  # fmt: skip
    vectors = np.random.default_rng(0).normal(size=(len(rows), 6)).astype(np.float32)
    return hard_negatives(made(rows, split), vectors)


def context(count: int, split: str = "train", name: str = "film", edits: int = 2) -> pd.DataFrame:
    rows = []
    for k in range(count):
        for i in range(2):
            rows.append({"identity": f"{name}{k}", "path": f"{name}{k}-{i}", "id": f"{name}{k}-{i}"})
        for i in range(edits):
            edit = {"identity": f"{name}{k}", "path": f"{name}{k}-{i}e", "role": "context-edit"}
            rows.append(edit | {"parent": f"{name}{k}-{i % 2}"})
    return made(rows, split)


def edited(count: int, split: str = "train", name: str = "dress") -> pd.DataFrame:
    rows = []
    for k in range(count):
        for i in range(3):
            rows.append({"identity": f"{name}{k}", "path": f"{name}{k}-{i}", "id": f"{name}{k}-{i}"})
        for i in range(2):
            edit = {"identity": f"{name}{k}*{i}", "path": f"{name}{k}-{i}e", "role": "identity-edit"}
            rows.append(edit | {"parent": f"{name}{k}-{i}", "engine": "flux_fill"})
    return made(rows, split)


def triplets(table: pd.DataFrame) -> pd.DataFrame:
    """A line for each triplet: its subset, and columns such as identity_anchor."""
    assert table["slot"].tolist() == ["anchor", "positive", "negative"] * (len(table) // 3)
    rows = table.pivot(index="group", columns="slot", values=["identity", "path", "role", "x_source"])
    assert len(rows) == len(table) // 3
    rows.columns = [f"{column}_{slot}" for column, slot in rows.columns]
    return rows.assign(kind=[group.split("-")[0] for group in rows.index])


def test_an_even_mixture_of_ten_thousand_has_a_third_of_each() -> None:
    assert shares(10_000, (1, 1, 1)) == [3333, 3334, 3333]
    assert shares(10_000, (0.15, 0.7, 0.15)) == [1500, 7000, 1500]
    out = mixture(mined(40), context(40), edited(40), count=100)
    assert Counter(out["x_mixture"]) == {"real": 99, "context": 102, "identity": 99}


def test_ratios_that_cannot_be_are_refused() -> None:
    assert parse_ratio("0.7:0.15:0.15") == (0.7, 0.15, 0.15)
    for wrong in ("1:1", "a:b:c", "1:-1:1", "0:0:0", "nan:1:1", "inf:1:1", ""):
        with pytest.raises(ValueError, match="ratio"):
            parse_ratio(wrong)


def test_positives_show_the_anchor_negatives_never_do_and_roles_are_the_papers() -> None:
    rows = triplets(mixture(mined(60), context(60), edited(60), count=150, seed=3))
    assert (rows["identity_anchor"] == rows["identity_positive"]).all()
    assert (rows["identity_anchor"] != rows["identity_negative"]).all()
    assert (rows[["path_anchor", "path_positive", "path_negative"]].nunique(axis=1) == 3).all()
    assert rows["identity_anchor"].is_unique  # as many instances as triplets
    pairs = rows[rows["kind"] != "context"][["role_anchor", "role_positive"]]
    assert (pairs == "real").all(axis=None)
    negatives = rows.groupby("kind")["role_negative"].agg(set).to_dict()
    assert negatives["real"] == {"real"}
    assert negatives["context"] == {"real", "context-edit"}
    assert negatives["identity"] == {"real", "identity-edit"}
    of_edits = rows[rows["role_negative"] == "identity-edit"]  # made from an image of the anchor's identity
    assert (of_edits["identity_negative"].str.split("*").str[0] == of_edits["identity_anchor"]).all()


def test_the_three_pairings_and_both_kinds_of_negatives_are_equally_likely() -> None:
    count = 2000
    rows = triplets(mixture(mined(1), context(count), None, count=count, ratio=(0, 1, 0)))
    pairings = Counter(zip(rows["role_anchor"], rows["role_positive"], strict=True))
    assert len(pairings) == 3
    assert ("real", "real") not in pairings
    assert all(abs(n - count / 3) < 4 * math.sqrt(count * 2 / 9) for n in pairings.values())
    assert abs(Counter(rows["role_negative"])["real"] - count / 2) < 4 * math.sqrt(count / 4)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_identity_negatives_are_edits_and_originals_of_others_in_their_share(share: float) -> None:
    count = 2000
    rows = triplets(mixture(mined(1), None, edited(count), count=count, ratio=(0, 0, 1), originals=share))
    is_original = rows["role_negative"] == "real"
    assert abs(is_original.sum() - share * count) <= 4 * math.sqrt(count * share * (1 - share))
    assert rows["identity_negative"][is_original].nunique() >= share * count / 2  # spread over the instances


def test_triplets_with_an_original_as_negative_get_no_noise() -> None:
    """ "Whenever a triplet includes an identity-edited negative" (A.2.2): the original negatives have no artifacts."""
    out = mixture(mined(1), None, edited(60), count=60, ratio=(0, 0, 1))
    task = noise_task(out, open_engine("flux_fill"), read_wording())
    noised = {out["group"][job.source or 0] for job in task.jobs}
    edits = set(out["group"][out["role"] == "identity-edit"])
    assert noised == edits
    assert 0 < len(edits) < 60


def test_real_triplets_are_those_mined() -> None:
    def groups(table: pd.DataFrame) -> set[tuple[object, ...]]:
        rows = table.fillna({"x_similarity": 0}).groupby("group")[["x_source", "x_similarity"]]
        return {(*group["x_source"], *group["x_similarity"]) for _, group in rows}

    source = mined(30)
    out = groups(mixture(source, count=20, ratio=(1, 0, 0)))
    assert len(out) == 20
    assert out <= groups(source)


def test_a_subset_that_runs_out_is_named() -> None:
    for name, sources in {
        "real": (mined(5), context(50), edited(50)),
        "context": (mined(50), context(5), edited(50)),
        "identity": (mined(50), context(50), edited(5)),
    }.items():
        with pytest.raises(ManifestError, match=f"'{name}' gives 5 of 1[01] "):
            mixture(*sources, count=31)
    with pytest.raises(ManifestError, match="'context' need"):
        mixture(mined(50), None, edited(50), count=30)
    with pytest.raises(ManifestError, match=r"'context' gives 0 of 15 .* two context-edits"):
        mixture(mined(50), context(50, edits=1), count=30, ratio=(1, 1, 0))
    with pytest.raises(ManifestError, match="'real' gives 0 of 30"):
        mixture(context(50), count=30, ratio=(1, 0, 0))
    with pytest.raises(ManifestError, match="'context' gives 0 of 1 "):  # no other instance
        mixture(mined(50), context(1), count=1, ratio=(0, 1, 0))


def test_splits_are_not_mixed() -> None:
    def both(source: Source) -> pd.DataFrame:
        return merge([source(20), source(30, "val", "v")])

    sources = both(mined), both(context), both(edited)
    with pytest.raises(ManifestError, match=r"'real' .*train, val"):
        mixture(*sources, count=30)
    with pytest.raises(ManifestError, match=r"'test'.*train, val"):
        mixture(*sources, count=30, split="test")
    with pytest.raises(ManifestError, match="train, val"):
        mixture(mined(20), context(20, "val"), count=30, ratio=(1, 1, 0))
    out = mixture(*sources, count=60, split="val")
    assert set(out["split"]) == {"val"}
    assert not leaks(out)


def test_the_same_seed_gives_the_same_mixture_and_files_keep_it(tmp_path: Path) -> None:
    sources = mined(40), context(40), edited(40)
    out = mixture(*sources, count=60, seed=1)
    shuffled = [take(table, np.random.default_rng(0).permutation(len(table))) for table in sources]
    for again in (mixture(*sources, count=60, seed=1), mixture(*shuffled, count=60, seed=1)):
        pd.testing.assert_frame_equal(out, again)
    assert out["x_source"].tolist() != mixture(*sources, count=60, seed=2)["x_source"].tolist()
    for ending in ("parquet", "csv", "jsonl"):
        write(out, tmp_path / f"mix.{ending}")
        assert read(tmp_path / f"mix.{ending}")["id"].tolist() == out["id"].tolist()
