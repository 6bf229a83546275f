"""MMEB beside identities in training: texts and images on both sides, batches, loss, validation, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame
from torch import Tensor

from idmetric.cli.eval import main as evaluate
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import merge, read, take, write
from idmetric.metric.images import read_image
from idmetric.metric.visid.config import VisIDConfig
from idmetric.train.visme.batch_sampler import draw
from idmetric.train.visme.data import prepare
from idmetric.train.visme.items import precision_at_1
from idmetric.train.visme.wording import WordedRow
from tests.mmeb_files import COLORS, image, write_eval, write_train
from tests.table_parts import a_row, a_table
from tests.train.test_visme import made, noisy, trained

pytest.importorskip("transformers")
MMEB = ("mmeb/ImageNet_1K", "mmeb/MSCOCO_t2i", "mmeb/WebQA")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Three subsets of MMEB, and two datasets of identities, as `idmetric data merge` joins them."""
    root = tmp_path_factory.mktemp("mixed")
    general = import_dataset("mmeb", write_train(root / "MMEB-train"))
    rows = []
    for n in range(12):
        for view in (0, 1):
            path = image(root, f"mveb/{n}-{view}.png", 500 + 2 * n + view)
            rows.append(a_row(f"mveb/{n}", path, id=f"{n}-{view}", dataset=f"mveb/{n % 2}", split="train"))
    write(merge([a_table(rows, root), general]), root / "data.parquet")
    return read(root / "data.parquet")


@pytest.fixture(scope="module")
def mixed() -> dict[str, Any]:
    return {"batch_size": 20, "samples": 4, "hard": 1}


# Samples


def test_queries_and_targets_are_texts_images_or_both(data: DataFrame) -> None:
    found = prepare(data, VisIDConfig(text_instruction="Read", instruction="Look"))  # their texts stay as they are
    assert {p.name: len(p) for p in found.data.pools} == {"mveb/0": 12, "mveb/1": 12, **dict.fromkeys(MMEB, 8)}
    ids = data["id"].tolist()
    cls, t2i, web = (ids.index(f"{name}/train/000001/0") for name in MMEB)
    asked = WordedRow(cls, "\nIdentify the color\n")
    assert found.wording.pair(cls, cls + 1) == (asked, WordedRow(None, "green"))
    asked = WordedRow(None, "Find the image: number 1")
    assert found.wording.pair(t2i, t2i + 1) == (asked, WordedRow(t2i + 1, "\nRepresent the given image."))
    asked = WordedRow(None, "Find a page: question 1")
    assert found.wording.pair(web, web + 1) == (asked, WordedRow(web + 1, "\nRepresent the page: 1"))
    [near] = found.data.hard[cls]
    assert found.wording.candidate(near) == WordedRow(None, COLORS[2])


# Batches


def test_a_batch_mixes_blocks_of_one_source_each(data: DataFrame, mixed: dict[str, Any]) -> None:
    found = made(data, **mixed)
    sources = data["dataset"].tolist()
    paths = data["path"].tolist()
    together = set()
    for step in range(20):
        batch = draw(found.data, found.config, step)
        blocks = [{sources[row] for row in batch.query[k : k + 4].tolist()} for k in range(0, 20, 4)]
        assert all(len(block) == 1 for block in blocks)
        assert all(sources[q] == sources[t] for q, t in zip(batch.query.tolist(), batch.target.tolist(), strict=True))
        together |= set().union(*blocks)
        used = [paths[row] for q, t in zip(batch.query.tolist(), batch.target.tolist(), strict=True) for row in {q, t}]
        shown = [path for path in used if path is not None]
        assert len(shown) == len(set(shown))
        assert len(set(batch.query.tolist())) == 20
    assert together == {"mveb/0", "mveb/1", *MMEB}


# Loss


def test_a_hard_negative_with_the_text_of_a_target_is_no_negative_of_its_query(tmp_path: Path) -> None:
    rows = []
    for n in range(4):
        path, group = image(tmp_path, f"{n}.png", n), {"group": f"g{n}", "dataset": "d"}
        rows += [
            a_row(None, path, text="Which color?", slot="query", **group),
            a_row(None, text=COLORS[n % 2], slot="positive", **group),
            a_row(None, text=COLORS[1 - n % 2].upper(), slot="negative", **group),
        ]
    data = a_table(rows, tmp_path)
    found = made(data, batch_size=4, samples=4, hard=1)
    batch = found.load(0)
    answers = [word.casefold() for word in batch["words"][4:8]]
    negatives = [word.casefold() for word in batch["words"][8:]]
    equal = batch["identity"][:, None] == batch["negative_identity"][None]
    assert equal.tolist() == [[a == n for n in negatives] for a in answers]
    assert equal.sum() == 8


# Validation


def test_validation_is_that_of_single_embeddings_and_skips_equal_texts(data: DataFrame) -> None:
    found = made(data, batch_size=4, samples=4)
    own = take(data, data["dataset"] == "mmeb/ImageNet_1K")
    prepared = prepare(own, found.model.settings)
    pictures = type(found.loader.pictures)(own, found.model.size_for, found.model.interpolation)
    rates = precision_at_1(noisy(found).model.eval(), pictures, prepared, queries=100)

    def embed(row: int) -> Tensor:
        picture = own["path"][row] and read_image(own["path"][row])
        return found.model.embed(picture, texts=own["text"][row] or "", instruction="", patches=False).cls[0].double()

    vectors = [embed(row) for row in range(len(own))]
    won = []
    for q in range(0, len(own), 3):
        best = float(vectors[q] @ vectors[q + 1])
        others = [r for r in range(len(own)) if r % 3 and own["text"][r] != own["text"][q + 1]]
        won.append(all(best > float(vectors[q] @ vectors[r]) for r in others))
    assert rates["p@1"] == pytest.approx(np.mean(won))
    assert 0 < np.mean(won) < 1


# Runs


def test_a_run_on_both_is_evaluated_on_both(data: DataFrame, mixed: dict[str, Any], tmp_path: Path) -> None:
    trained(data, tmp_path / "run", **mixed, steps=2)
    folder = write_eval(tmp_path / "MMEB-eval")
    images = import_dataset("mmeb", folder, options={"image_dir": str(folder / "images")})
    write(images, tmp_path / "e.parquet")
    options = ["--model", f"r={tmp_path / 'run'}", "--device", "cpu", "--bootstrap", "0", "--quiet"]
    assert evaluate(["mmeb", "--data", str(tmp_path / "e.parquet"), *options]) == 0
