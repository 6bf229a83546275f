"""UnED's info files, from their import to the classes of ILGen's recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from idmetric.cli import data as cli
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import read
from idmetric.metric.images import read_image
from idmetric.train.ilgen.data import classes_of
from tests.import_parts import refuses
from tests.runner import Runner


def per_dataset(table: pd.DataFrame) -> dict[str, int]:
    counts: dict[str, int] = table.groupby("dataset")["identity"].nunique().to_dict()
    return counts


# UnED


@pytest.fixture
def uned(tmp_path: Path) -> Path:
    """UnED's folder data: five sets of small pictures, four to six of each class."""
    rng = np.random.default_rng(0)
    folders = {"met": "MET", "gldv2": "images/train", "sop": "chair_final", "inshop": "img", "rp2k": "all/train"}
    for name, folder in folders.items():
        entries: list[dict[str, Any]] = []
        for label in range(4):
            for k in range(3 + label):
                file = f"百/{label}_{k}.png" if name == "rp2k" else f"{label}/{k}.png"
                entries.append({"path": f"{name}/{folder}/{file}", "class_id": label, "domain": 1})
                path = tmp_path / "data/images" / name / folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
        info = tmp_path / "data/info_files" / name
        info.mkdir(parents=True)
        (info / "train.json").write_text(json.dumps(entries), encoding="utf-8")
    return tmp_path / "data"


def test_uned_is_imported_and_curated_for_training(
    uned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole chain from local copies to the classes that ILGen's recipe trains on."""
    monkeypatch.chdir(tmp_path)
    run = Runner(cli.main, capsys)
    assert run("import uned data -o uned.parquet --quiet") == 0
    whole = read(tmp_path / "uned.parquet")
    assert len(whole) == 5 * (3 + 4 + 5 + 6)
    assert set(zip(whole["dataset"], whole["domain"], strict=True)) == {
        ("MET", "art"), ("GLDv2", "landmark"), ("SOP", "product"), ("InShop", "product"), ("RP2k", "product"),
    }  # fmt: skip
    assert whole["identity"][0] == "uned/met/0"
    assert "百" in whole["path"][whole["dataset"] == "RP2k"].iloc[0]

    out = run.prints("wrote all.parquet: 52 images of 13 identities",
                     "curate uned.parquet --recipe ilgen-real --count 13 -o all.parquet --quiet")  # fmt: skip
    assert "GLDv2" in out
    made = read(tmp_path / "all.parquet")
    assert per_dataset(made) == {"SOP": 3, "InShop": 3, "RP2k": 3, "GLDv2": 2, "MET": 2}
    classes = classes_of(made, 4)
    assert (len(classes), classes.images, classes.left_out) == (13, 4, 0)
    assert read_image(made["path"][int(classes.flat[0])]).size == (8, 8)

    assert run("curate uned.parquet --recipe ilgen-real --variant art -o art.csv --quiet") == 0
    assert per_dataset(read(tmp_path / "art.csv")) == {"MET": 3}
    generic = "curate uned.parquet --recipe ilgen-real --variant generic -o x.csv"
    run.fails("generic", generic)
    run.fails("ilgen-real has no --any-category", "curate uned.parquet --recipe ilgen-real --any-category -o x.csv",
              status=2)  # fmt: skip


def test_images_of_several_classes_have_no_identity(uned: Path) -> None:
    file = uned / "info_files/gldv2/train.json"
    file.write_text(json.dumps([{"path": "gldv2/images/train/0/0.png", "class_id": [3, 5]}]))
    assert import_dataset("uned", uned).query("dataset == 'GLDv2'")["identity"].tolist() == [None]


def test_faults_of_uneds_files_are_named(uned: Path) -> None:
    file = uned / "info_files/met/train.json"
    file.unlink()
    refuses(r"met.train\.json", "uned", uned)
    for content, message in (
        ('{"path": 1}', "list"),
        ('[{"path": "met/a.png"}]', "met/train.json: .*class_id"),
        ('[{"path": "../../a.png", "class_id": 1}]', "outside the dataset's folder"),
    ):
        file.write_text(content)
        refuses(message, "uned", uned)
