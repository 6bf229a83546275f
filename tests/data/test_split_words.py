"""Splits of other people: their usual words in any case, as folders and as columns, are one split in every importer."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import ManifestError, read
from tests.import_parts import column, put_all, refuses

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
    table = import_dataset("folder", tmp_path / "zoo")
    names = {identity.rpartition("/")[2] for identity in column(table, "identity")}
    assert names == {"rex", "tom"}
    assert len(set(column(table, "identity"))) == 2
    assert sorted(column(table, "split")) == ["test", "test", "train", "train"]
    assert table["split"][table["path"].str.endswith("3.png")].tolist() == ["test"]


def test_query_and_gallery_are_folders_of_splits(tmp_path: Path) -> None:
    put_all(tmp_path / "zoo", "Query/rex/1.png", "Gallery/rex/2.png", "Gallery/tom/3.png")
    table = import_dataset("folder", tmp_path / "zoo")
    assert set(column(table, "identity")) == {"zoo/rex", "zoo/tom"}
    assert column(table, "split") == ["gallery", "gallery", "query"]


def test_an_identity_called_test_among_others_stays_one_and_is_named(tmp_path: Path) -> None:
    put_all(tmp_path / "people", "anna/1.png", "dev/1.png", "test/1.png", "test/2.png", "dogs/rex/1.png")
    with pytest.warns(UserWarning, match=r"taken as identities, .*: dev, test$"):
        table = import_dataset("folder", tmp_path / "people")
    assert column(table, "identity") == [f"people/{n}" for n in ("anna", "dev", "dogs/rex", "test", "test")]
    assert set(column(table, "split")) == {None}


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("train2017/rex", "val2017/rex"), ("fold0/rex", "fold1/rex"), ("entrenamiento/rex", "prueba/rex"),
        ("bounding_box_train/0001", "bounding_box_test/0001"), ("rex/front", "tom/front"),
        ("photos/old/dogs/rex", "photos/new/dogs/rex"),
    ],
)  # fmt: skip
def test_identities_of_one_name_below_sibling_folders_are_refused_with_both_paths(
    tmp_path: Path, first: str, second: str
) -> None:
    put_all(tmp_path / "zoo", f"{first}/1.png", f"{second}/2.png", "lone/1.png")
    with pytest.raises(ManifestError) as caught:
        import_dataset("folder", tmp_path / "zoo")
    for folder in (first, second):
        assert str(tmp_path / "zoo" / folder) in str(caught.value)


def test_equal_names_that_are_no_siblings_are_two_identities(tmp_path: Path) -> None:
    put_all(tmp_path / "zoo", "dogs/rex/1.png", "cats/old/rex/2.png", "rex/3.png")
    assert import_dataset("folder", tmp_path / "zoo")["identity"].nunique() == 3


@pytest.mark.parametrize("words", [("QUERY", "Gallery"), ("Query", "GALLERY"), ("probe", "database")])
def test_columns_of_splits_in_tables_and_manifests(tmp_path: Path, words: tuple[str, str]) -> None:
    put_all(tmp_path, "1.png", "2.png")
    metadata = tmp_path / "metadata.csv"
    metadata.write_text(f"identity,path,split\nrex,1.png,{words[0]}\nrex,2.png,{words[1]}\n")
    for table in (import_dataset("table", metadata), import_dataset("wildlife", tmp_path), read(metadata)):
        assert column(table, "split") == ["query", "gallery"]
