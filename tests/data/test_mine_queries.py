"""Hard negatives of queries, again by a full sort of each ranking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idmetric.cli.data import main
from idmetric.data.curate.mine import query_negatives
from idmetric.data.importers.run import import_dataset
from idmetric.data.old_manifest.table import Manifest, merge, read
from idmetric.train.visme.data import prepare
from tests.mmeb_files import write_train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return import_dataset("mmeb", write_train(tmp_path_factory.mktemp("MMEB-train"), 12))


@pytest.fixture(scope="module")
def vectors(data: Manifest) -> np.ndarray:
    """Equal items have equal vectors, as a model gives them."""
    rng = np.random.default_rng(0)
    known: dict[object, np.ndarray] = {}
    return np.array([known.setdefault((row.text, row.path), rng.normal(size=4)) for row in data])


def window(data: Manifest, vectors: np.ndarray, query: int, skip: int, depth: int) -> list[Any]:
    """Text and path of the targets that may be drawn, by a sort of all of them."""
    row = data[query]
    own = {(r.text, r.path) for r in data if r.group == row.group and r.slot == "positive"}
    scores = {}
    for k, other in enumerate(data):
        if other.dataset == row.dataset and other.slot == "positive" and (other.text, other.path) not in own:
            a, b = vectors[query], vectors[k]
            scores[other.text, other.path] = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    return sorted(scores, key=lambda item: -scores[item])[skip : skip + depth]


@pytest.mark.parametrize(("k", "skip", "depth"), [(2, 1, 3), (5, 0, 4), (3, 1, 100)])
def test_negatives_are_drawn_from_the_window_of_the_ranking(
    data: Manifest, vectors: np.ndarray, k: int, skip: int, depth: int
) -> None:
    mined = query_negatives(data, vectors, k, skip=skip, depth=depth)
    for query, row in enumerate(data):
        if row.slot != "query":
            continue
        allowed = window(data, vectors, query, skip, depth)
        found = [(r.text, r.path) for r in mined.filter(group=row.group)]
        assert len(found) == len(set(found)) == min(k, len(allowed))
        assert [item for item in allowed if item in found] == found  # the nearest first
    assert set(mined.column("slot")) == {"negative"}


def test_the_draw_follows_from_seed_and_query(data: Manifest, vectors: np.ndarray) -> None:
    first, again, other = (query_negatives(data, vectors, 2, skip=0, seed=s) for s in (0, 0, 1))
    assert list(first) == list(again)
    assert list(first) != list(other)
    part = data.filter(dataset="mmeb/WebQA")
    chosen = np.array([d == "mmeb/WebQA" for d in data.column("dataset")])
    alone = query_negatives(part, vectors[chosen], 2, skip=0)
    assert alone.column("id") == first.filter(dataset="mmeb/WebQA").column("id")
    draws = [tuple(query_negatives(part, vectors[chosen], 2, skip=0, seed=s).column("id")) for s in range(20)]
    assert len(set(draws)) > 10


def test_merged_negatives_are_trained_on(data: Manifest, vectors: np.ndarray) -> None:
    plain = data.filter(dataset="mmeb/MSCOCO_t2i")
    chosen = np.array([d == "mmeb/MSCOCO_t2i" for d in data.column("dataset")])
    mined = query_negatives(plain, vectors[chosen], 3, skip=0)
    whole = merge([plain, mined], shared=True)
    found = prepare(whole)
    names = whole.column("id")
    assert len(found.data.pools[0]) == 12  # negatives are no samples
    for query in range(0, 24, 2):
        near = {names[row] for row in found.data.hard.get(query, ())}
        assert near == set(mined.filter(group=whole[query].group).column("x_source"))


def test_the_command(data: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from idmetric.train.visme.small_qwen import write

    write(tmp_path / "qwen")
    data.write(tmp_path / "m.parquet")
    command = ["mine", "queries", str(tmp_path / "m.parquet"), "-o", str(tmp_path / "n.parquet"), "--model",
               str(tmp_path / "qwen"), "--device", "cpu", "--quiet", "--k", "2"]  # fmt: skip
    assert main([*command, "--skip", "1"]) == 0
    mined = read(tmp_path / "n.parquet")
    assert f"{len(mined)} negatives; similarity" in capsys.readouterr().out
    assert len(mined) == 12 * 1 + 12 * 2 + 12 * 2  # three classes: two others, one behind the first
    assert main([*command[:-1], "1"]) != 0
    assert "no data set has more than 30 different targets: lower --skip" in capsys.readouterr().err
