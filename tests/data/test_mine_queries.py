"""Hard negatives of queries, again by a full sort of each ranking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from idmetric.cli.data import main
from idmetric.data.curate.mine import query_negatives
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import read, take, write
from tests.mmeb_files import write_train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return import_dataset("mmeb", write_train(tmp_path_factory.mktemp("MMEB-train"), 12))


@pytest.fixture(scope="module")
def vectors(data: pd.DataFrame) -> np.ndarray:
    """Equal items have equal vectors, as a model gives them."""
    drawn = np.random.default_rng(0).normal(size=(len(data), 4))
    return drawn[data.groupby(["text", "path"], dropna=False).ngroup()]


def window(data: pd.DataFrame, vectors: np.ndarray, query: int, skip: int, depth: int) -> list[Any]:
    """Text and path of the targets that may be drawn, by a sort of all of them."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = data.assign(similarity=unit @ unit[query])[data["slot"] == "positive"]
    own = items(rows[rows["group"] == data["group"][query]])
    of_set = rows[rows["dataset"] == data["dataset"][query]].drop_duplicates(["text", "path"])
    ranked = items(of_set.sort_values("similarity", ascending=False))
    return [item for item in ranked if item not in own][skip : skip + depth]


def items(rows: pd.DataFrame) -> list[Any]:
    return list(zip(rows["text"].fillna(""), rows["path"].fillna(""), strict=True))


@pytest.mark.parametrize(("k", "skip", "depth"), [(2, 1, 3), (5, 0, 4), (3, 1, 100)])
def test_negatives_are_drawn_from_the_window_of_the_ranking(
    data: pd.DataFrame, vectors: np.ndarray, k: int, skip: int, depth: int
) -> None:
    mined = query_negatives(data, vectors, k, skip=skip, depth=depth)
    for query in np.flatnonzero(data["slot"] == "query"):
        allowed = window(data, vectors, query, skip, depth)
        drawn = items(mined[mined["group"] == data["group"][query]])
        assert len(drawn) == len(set(drawn)) == min(k, len(allowed))
        assert [item for item in allowed if item in drawn] == drawn  # the nearest first
    assert set(mined["slot"]) == {"negative"}


def test_the_draw_follows_from_seed_and_query(data: pd.DataFrame, vectors: np.ndarray) -> None:
    first, again, other = (query_negatives(data, vectors, 2, skip=0, seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    backwards = data[::-1]  # as pandas sorts it
    numbered = backwards.reset_index(drop=True)
    mined = [query_negatives(table, vectors[::-1], 2, skip=0) for table in (backwards, numbered)]
    pd.testing.assert_frame_equal(*mined)
    assert first["id"].tolist() != other["id"].tolist()
    is_chosen = data["dataset"] == "mmeb/WebQA"
    part, part_vectors = take(data, is_chosen), vectors[is_chosen]
    alone = query_negatives(part, part_vectors, 2, skip=0)
    assert alone["id"].tolist() == first["id"][first["dataset"] == "mmeb/WebQA"].tolist()
    draws = {tuple(query_negatives(part, part_vectors, 2, skip=0, seed=seed)["id"]) for seed in range(20)}
    assert len(draws) > 10


def test_the_command(data: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from idmetric.train.visme.small_qwen import write as write_qwen

    write_qwen(tmp_path / "qwen")
    write(data, tmp_path / "m.parquet")
    command = ["mine", "queries", str(tmp_path / "m.parquet"), "-o", str(tmp_path / "n.parquet"), "--model",
               str(tmp_path / "qwen"), "--device", "cpu", "--quiet", "--k", "2"]  # fmt: skip
    assert main([*command, "--skip", "1"]) == 0
    mined = read(tmp_path / "n.parquet")
    assert f"{len(mined)} negatives; similarity" in capsys.readouterr().out
    assert len(mined) == 12 * 1 + 12 * 2 + 12 * 2  # three classes: two others, one behind the first
    assert main([*command[:-1], "1"]) != 0
    assert "--skip" in capsys.readouterr().err
