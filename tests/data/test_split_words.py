"""Splits of other people: their usual words in any case, as folders and as columns, are one split in every importer."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.data.importers.run import import_dataset
from idmetric.data.old_manifest.table import read
from tests.import_parts import put_all, refuses

ANIMALS = [("rex", 1, "train"), ("tom", 2, "train"), ("rex", 3, "test"), ("tom", 4, "test")]


@pytest.mark.parametrize(
    "pattern",
    ["{split}/{name}/{number}.png", "{name}/{split}/{number}.png", "photos/{split}/{name}/{number}.png"],
)
@pytest.mark.parametrize("words", [("train", "test"), ("Train", "Test"), ("TRAIN", "TEST"), ("Training", "testing")])
def test_photos_of_one_animal_in_two_splits_are_one_identity(
    tmp_path: Path, pattern: str, words: tuple[str, str]
) -> None:
    for name, number, split in ANIMALS:
        word = words[split == "test"]
        put_all(tmp_path / "zoo", pattern.format(split=word, name=name, number=number))
    manifest = import_dataset("folder", tmp_path / "zoo")
    names = {identity.rpartition("/")[2] for identity in manifest.column("identity")}
    assert names == {"rex", "tom"}
    assert len(set(manifest.column("identity"))) == 2
    assert sorted(manifest.column("split")) == ["test", "test", "train", "train"]
    assert [row.split for row in manifest if (row.path or "").endswith("3.png")] == ["test"]


def test_query_and_gallery_are_folders_of_splits(tmp_path: Path) -> None:
    put_all(tmp_path / "zoo", "Query/rex/1.png", "Gallery/rex/2.png", "Gallery/tom/3.png")
    manifest = import_dataset("folder", tmp_path / "zoo")
    assert set(manifest.column("identity")) == {"zoo/rex", "zoo/tom"}
    assert manifest.column("split") == ["gallery", "gallery", "query"]


def test_an_identity_called_test_among_others_stays_one_and_is_named(tmp_path: Path) -> None:
    put_all(tmp_path / "people", "anna/1.png", "dev/1.png", "test/1.png", "test/2.png", "dogs/rex/1.png")
    with pytest.warns(UserWarning, match=r"taken as identities, .*: dev, test$"):
        manifest = import_dataset("folder", tmp_path / "people")
    assert manifest.column("identity") == [f"people/{n}" for n in ("anna", "dev", "dogs/rex", "test", "test")]
    assert set(manifest.column("split")) == {None}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["Train/rex/1.png", "Test/rex/2.png", "extra/rex/3.png"], "Test"),  # one folder that is no split
        (["train/rex/1.png", "train/2.png", "test/rex/3.png"], "test"),  # an image without an identity
        (["rex/1.png", "rex/test/2.png", "tom/1.png"], "rex/test"),  # an identity with a split in it
        (["rex/train/1.png", "rex/test/2.png", "tom/1.png"], "rex/test"),
        (["Val/1.png", "Test/2.png"], "Test"),  # no identities
        (["dogs/train/rex/1.png", "dogs/test/rex/2.png", "cats/tom/3.png"], "dogs/test"),
    ],
)
def test_folders_that_may_be_splits_or_identities_are_refused_by_name(
    tmp_path: Path, files: list[str], named: str
) -> None:
    put_all(tmp_path / "zoo", *files)
    refuses(rf"zoo/{named}: this name is that of a split", "folder", tmp_path / "zoo")


@pytest.mark.parametrize("words", [("QUERY", "Gallery"), ("Query", "GALLERY"), ("probe", "database")])
def test_columns_of_splits_in_tables_and_manifests(tmp_path: Path, words: tuple[str, str]) -> None:
    put_all(tmp_path, "1.png", "2.png")
    table = tmp_path / "t.csv"
    table.write_text(f"identity,path,split\nrex,1.png,{words[0]}\nrex,2.png,{words[1]}\n")
    for manifest in (import_dataset("table", table), read(table)):
        assert manifest.column("split") == ["query", "gallery"]
        assert len(manifest.filter(split=words[1])) == len(manifest.filter(split="gallery")) == 1
    metadata = tmp_path / "wild" / "metadata.csv"
    put_all(tmp_path / "wild", "1.png", "2.png")
    metadata.write_text(f"identity,path,split\nrex,1.png,{words[0]}\nrex,2.png,{words[1]}\n")
    assert import_dataset("wildlife", tmp_path / "wild").column("split") == ["query", "gallery"]
