"""UnED's info files, and ILGen's Real-S and Real-ALL made of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric.cli import data as cli
from idmetric.data.curate.recipes import ilgen_real
from idmetric.data.importers.run import import_dataset
from idmetric.data.old_manifest.table import Manifest, Row, read
from idmetric.train.ilgen.data import classes_of
from tests.import_parts import refuses
from tests.runner import Runner

# dataset -> number of images of each of its classes; a class needs four
SIZES = {
    "MET": [1] * 3 + [3] * 2 + [4] * 5 + [7] * 5, "GLDv2": [2] * 4 + [5] * 12 + [9] * 8, "SOP": [3] * 2 + [5] * 6,
    "InShop": [4] * 4, "RP2k": [20] * 3,
}  # fmt: skip


def rows_of(sizes: dict[str, list[int]], split: str | None = "train") -> list[Row]:
    return [
        Row(f"{name}/{i}", f"{name}/{i}/{k}.jpg", dataset=name, split=split)
        for name, classes in sizes.items()
        for i, size in enumerate(classes)
        for k in range(size)
    ]


def per_dataset(manifest: Manifest) -> Counter[str]:
    return Counter(dataset for dataset, _ in {(row.dataset or "", row.identity) for row in manifest})


def test_real_all_takes_small_sets_whole_and_the_rest_equally() -> None:
    """Section 4.1: classes of four images of SOP, InShop and RP2k, complemented from GLDv2 and MET."""
    done = ilgen_real(Manifest.from_rows(rows_of(SIZES)), "all", 25)
    assert per_dataset(done.manifest) == {"SOP": 6, "InShop": 4, "RP2k": 3, "GLDv2": 6, "MET": 6}
    assert set(Counter(done.manifest.column("identity")).values()) == {4}
    assert not done.notes
    for name in ("SOP", "InShop", "RP2k"):
        wanted = {f"{name}/{i}" for i, size in enumerate(SIZES[name]) if size >= 4}
        assert wanted == {i for i in done.manifest.column("identity") if i.startswith(name)}

    more = ilgen_real(Manifest.from_rows(rows_of(SIZES)), "all", 39)  # MET has 10 classes, GLDv2 gives more
    assert per_dataset(more.manifest) == {"SOP": 6, "InShop": 4, "RP2k": 3, "GLDv2": 16, "MET": 10}
    short = ilgen_real(Manifest.from_rows(rows_of(SIZES)))
    assert short.notes == ["only 43 of 20000 identities are available"]
    with pytest.raises(ValueError, match=r"whole sets have 13 classes \(SOP 6 \+ InShop 4 \+ RP2k 3\), more than 12"):
        ilgen_real(Manifest.from_rows(rows_of(SIZES)), "all", 12)


@pytest.mark.parametrize(("variant", "dataset", "count"), [("art", "MET", 3000), ("landmark", "GLDv2", 4000),
                                                           ("product", "SOP", 3000)])  # fmt: skip
def test_real_s_has_as_many_instances_as_the_generated_part(variant: str, dataset: str, count: int) -> None:
    many = Manifest.from_rows(rows_of({dataset: [5] * (count + 50), "other": [4] * 9}))
    done = ilgen_real(many, variant)
    assert per_dataset(done.manifest) == {dataset: count}
    assert len(done.manifest) == 4 * count
    small = ilgen_real(many, variant, 30)
    assert per_dataset(small.manifest) == {dataset: 30}
    assert set(small.manifest.column("identity")) < set(done.manifest.column("identity"))
    assert small.manifest.column("id") != ilgen_real(many, variant, 30, seed=1).manifest.column("id")


def test_only_training_images_count() -> None:
    train, test = rows_of({"SOP": [3, 5]}), rows_of({"SOP": [6, 6, 6]}, "test")
    test = [Row(row.identity, f"test/{row.path}", dataset="SOP", split="test") for row in test]
    done = ilgen_real(Manifest.from_rows([*train, *test]), "product")
    assert set(done.manifest.column("identity")) == {"SOP/1"}  # SOP/0 has three training images
    assert set(done.manifest.column("split")) == {"train"}
    assert any("18 images of splits other than train" in note for note in done.notes)


def test_missing_datasets_are_named() -> None:
    manifest = Manifest.from_rows(rows_of({"GLDv2": [4] * 3, "SOP": [4]}, None))
    assert len(ilgen_real(manifest, "landmark").manifest) == 12
    with pytest.raises(ValueError, match="of dataset MET; column dataset has GLDv2, SOP"):
        ilgen_real(manifest, "art")
    with pytest.raises(ValueError, match="of dataset InShop, RP2k, MET;"):
        ilgen_real(manifest)
    with pytest.raises(ValueError, match="unknown variant 'generic'"):
        ilgen_real(manifest, "generic")


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
    assert set(zip(whole.column("dataset"), whole.column("domain"), strict=True)) == {
        ("MET", "art"), ("GLDv2", "landmark"), ("SOP", "product"), ("InShop", "product"), ("RP2k", "product"),
    }  # fmt: skip
    assert whole.column("identity")[0] == "uned/met/0"
    assert "百" in str(whole.filter(dataset="RP2k").source(0))

    out = run.prints("wrote all.parquet: 52 images of 13 identities",
                     "curate uned.parquet --recipe ilgen-real --count 13 -o all.parquet --quiet")  # fmt: skip
    assert "GLDv2" in out
    made = read(tmp_path / "all.parquet")
    assert per_dataset(made) == {"SOP": 3, "InShop": 3, "RP2k": 3, "GLDv2": 2, "MET": 2}
    classes = classes_of(made, 4)
    assert (len(classes), classes.images, classes.left_out) == (13, 4, 0)
    assert made.image(int(classes.flat[0])).size == (8, 8)

    assert run("curate uned.parquet --recipe ilgen-real --variant art -o art.csv --quiet") == 0
    assert per_dataset(read(tmp_path / "art.csv")) == {"MET": 3}
    generic = "curate uned.parquet --recipe ilgen-real --variant generic -o x.csv"
    run.fails("unknown variant 'generic'", generic)
    run.fails("ilgen-real has no --any-category", "curate uned.parquet --recipe ilgen-real --any-category -o x.csv",
              status=2)  # fmt: skip


def test_images_of_several_classes_have_no_identity(uned: Path) -> None:
    file = uned / "info_files/gldv2/train.json"
    file.write_text(json.dumps([{"path": "gldv2/images/train/0/0.png", "class_id": [3, 5]}]))
    assert import_dataset("uned", uned).filter(dataset="GLDv2").column("identity") == [None]


def test_faults_of_uneds_files_are_named(uned: Path) -> None:
    (uned / "info_files/rp2k/train.json").unlink()
    refuses(r"rp2k.train\.json: not readable", "uned", uned)
    file = uned / "info_files/met/train.json"
    for content, message in (
        ('{"path": 1}', "must hold a list"),
        ('[{"path": "met/a.png"}]', r'an image must have a "path" and a "class_id"'),
        ('[{"path": "../../a.png", "class_id": 1}]', "outside the dataset's folder"),
    ):
        file.write_text(content)
        refuses(message, "uned", uned)
