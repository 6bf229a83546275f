from __future__ import annotations

import os
from pathlib import Path

import datasets
import pandas as pd
import pytest
from PIL import Image

from idmetric.cli.data import main
from idmetric.data.check import faults, without
from idmetric.data.manifest import checked, read, write
from idmetric.data.split import leaks
from tests.runner import Runner


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three identities with three photos, the first with masks."""
    for k, name in enumerate(("cup", "mug", "pot")):
        (tmp_path / "toys" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (9, 7), (50 * k, 50 * i, 9)).save(tmp_path / "toys" / name / f"{i}.png")
            if k == 0:
                Image.new("L", (9, 7), 255).save(tmp_path / "toys" / name / f"{i}_mask.png")
    return tmp_path


@pytest.fixture
def broken(folder: Path) -> Path:
    """The same with a cut, an empty and a foreign file, and a mask that selects nothing."""
    whole = (folder / "toys/mug/0.png").read_bytes()
    (folder / "toys/mug/0.png").write_bytes(whole[:40])
    (folder / "toys/mug/1.png").write_bytes(b"")
    (folder / "toys/pot/2.png").write_text("no image")
    Image.new("L", (9, 7), 0).save(folder / "toys/cup/1_mask.png")
    return folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Runner:
    """`idmetric data ...`"""
    return Runner(main, capsys)


# Help


def test_wrong_usage_has_status_2(cli: Runner) -> None:
    for arguments in ([], ["nothing"], ["import", "nothing", "x", "-o", "y.csv"], ["info"], ["split", "x.csv"]):
        assert cli(*arguments) == 2


# import


def test_a_folder_becomes_a_manifest(folder: Path, cli: Runner) -> None:
    cli.prints("9 images of 3 identities", "import folder", folder / "toys", "-o", folder / "out" / "m.csv")
    table = read(folder / "out" / "m.csv")
    assert table["path"].tolist()[::4] == [
        str(folder / "toys" / name) for name in ("cup/0.png", "mug/1.png", "pot/2.png")
    ]
    assert not (folder / "out" / "m_images").exists()  # the images are files already


def test_images_of_a_dataset_become_files_beside_the_manifest(
    folder: Path, capsys: pytest.CaptureFixture[str], cli: Runner
) -> None:
    cells = [{"bytes": (folder / f"toys/cup/{i}.png").read_bytes(), "path": None} for i in range(3)]
    made = datasets.Dataset.from_dict({"image": cells, "label": ["cup"] * 3}).cast_column("image", datasets.Image())
    made.save_to_disk(folder / "pods")
    arguments = ("import", "pods", folder / "pods", "-o", folder / "m.parquet", "--quiet")
    cli.prints("would write 3 images", *arguments, "--dry-run")
    assert not (folder / "m.parquet").exists()
    assert not (folder / "m_images").exists()
    assert cli(*arguments) == 0
    out, err = capsys.readouterr()
    assert "wrote 3 images" in out
    assert "img/s" not in err
    made_files = [Path(path) for path in read(folder / "m.parquet")["path"]]
    assert [file.read_bytes() for file in made_files] == [cell["bytes"] for cell in cells]
    assert all(file.is_relative_to(folder / "m_images") for file in made_files)


def test_unreadable_images_stop_an_import_with_the_list(broken: Path, cli: Runner) -> None:
    err = cli.fails("4 images cannot be used", "import folder", broken / "toys", "-o", broken / "m.csv")
    for name in ("cup/1_mask.png", "mug/0.png", "mug/1.png", "pot/2.png"):
        assert name in err or "mask is empty" in err
    assert err.count("row ") == 4
    assert "--on-error skip" in err
    assert not (broken / "m.csv").exists()


def test_unreadable_images_are_left_out_on_request(
    broken: Path, capsys: pytest.CaptureFixture[str], cli: Runner
) -> None:
    assert cli("import folder", broken / "toys", "-o", broken / "m.csv", "--on-error", "skip") == 4
    assert capsys.readouterr().err.count("left out row") == 4
    kept = [str(Path(path).relative_to(broken / "toys")) for path in read(broken / "m.csv")["path"]]
    assert kept == ["cup/0.png", "cup/2.png", "mug/2.png", "pot/0.png", "pot/1.png"]
    assert cli("import folder", broken / "toys", "-o", broken / "all.csv", "--no-check") == 0
    assert len(read(broken / "all.csv")) == 9


def test_errors_of_import_are_one_message(folder: Path, capsys: pytest.CaptureFixture[str], cli: Runner) -> None:
    out = ("-o", folder / "m.csv")
    for arguments, message in (
        (("folder", folder / "none", *out), "no such folder"),
        (("folder", folder / "toys", "-o", folder / "m.txt"), "ends in"),
        (("folder", folder / "toys", *out, "--map", "path"), "--map path: expected NAME=VALUE"),
        (("folder", folder / "toys", *out, "--option", "a=b"), "unknown option 'a' of folder"),
        (("nearid", folder / "toys", *out), "unpack archives"),
    ):
        assert cli("import", *arguments) == 1
        err = capsys.readouterr().err
        assert err.splitlines()[-1].startswith("idmetric data: error: ")
        assert message in err
        assert "Traceback" not in err
    assert not (folder / "m.csv").exists()


# info


def test_info_counts_and_finds_nothing_wrong(folder: Path, cli: Runner) -> None:
    cli("import folder", folder / "toys", "-o", folder / "m.csv", "--quiet")
    out = cli.prints("9 rows, 9 images, 3 identities", "info", folder / "m.csv", "--strict", "--decode", "--quiet")
    assert "images per identity: 3 to 3, median 3" in out
    assert "rows with mask: 3" in out
    assert "no problems found" in out
    cli.prints("6 rows have no mask", "info", folder / "m.csv", "--strict", "--need-masks", status=1)


def test_info_says_what_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str], cli: Runner) -> None:
    rows = [
        {"identity": "a", "path": "toys/cup/0.png", "split": "train"},
        {"identity": "a", "path": "toys/cup/1.png", "split": "test"},
        {"identity": "b", "path": "toys/mug/0.png", "id": "b1", "split": "train"},
        {"identity": "c", "path": "toys/mug/0.png", "id": "c1", "split": "train"},
        {"identity": "b", "path": "toys/mug/9.png", "split": "train", "mask": "toys/mug/9_mask.png"},
        {"identity": "b/d", "path": "toys/pot/0.png", "role": "distractor", "parent": "gone", "oracle": 0.5},
        {"identity": "d", "path": "toys/pot/1.png", "group": "g", "slot": "anchor"},
        {"identity": "d", "text": "a pot", "group": "g", "slot": "query"},
    ]
    write(checked(rows, folder), folder / "m.csv")
    assert cli("info", folder / "m.csv") == 0
    out = capsys.readouterr().out
    for line in (
        "8 rows, 6 images, 5 identities", "images per identity: 1 to 2, median 2", "rows of text alone: 1",
        "1 identities are in more than one split", "a: train, test", "1 files show more than one identity",
        "2 files are missing", "row 5, column 'path': ", "row 5, column 'mask': ", "the file does not exist",
    ):  # fmt: skip
        assert line in out
    tables = [line.split() for line in out.splitlines()]
    for cells in (["train", "4", "3"], ["(empty)", "3", "2"], ["distractor", "1", "1"]):
        assert cells in tables
    assert cli("info", folder / "m.csv", "--strict") == 1


# Checking files


def test_faults_name_every_row_that_uses_a_file(broken: Path) -> None:
    rows = [
        {"path": "toys/mug/0.png", "group": "g", "slot": "anchor"},
        {"path": "toys/mug/0.png", "group": "h", "slot": "anchor"},
        {"path": "toys/cup/0.png", "mask": "toys/none.png"},
        {"path": "toys/cup/1.png", "part_mask": "toys/cup/1_mask.png"},  # an empty part is no fault
        {"text": "a pot", "group": "h", "slot": "query"},
    ]
    table = checked(rows, broken)
    all_faults = faults(table)
    assert [(fault.row, fault.column) for fault in all_faults] == [(0, "path"), (1, "path"), (2, "mask")]
    assert [fault.missing for fault in all_faults] == [False, False, True]
    assert [(fault.row, fault.column) for fault in faults(table, decode=False)] == [(2, "mask")]


def test_masks_have_their_images_shape_if_not_its_size(folder: Path) -> None:
    sizes = {"same": (9, 7), "half": (5, 4), "turned": (7, 9), "double": (18, 14)}
    for name, size in sizes.items():
        Image.new("L", size, 255).save(folder / f"{name}.png")
    Image.new("RGB", (7, 9)).save(folder / "upright.png")
    rows = [{"path": "toys/cup/0.png", "id": name, "mask": f"{name}.png", "part_mask": "same.png"} for name in sizes]
    rows.append({"path": "upright.png", "mask": "turned.png", "part_mask": "same.png"})
    table = checked(rows, folder)
    all_faults = faults(table)
    assert [(fault.row, fault.column) for fault in all_faults] == [(2, "mask"), (4, "part_mask")]
    assert "7x9" in str(all_faults[0])
    assert "9x7" in str(all_faults[0])
    assert not faults(table, decode=False)
    assert [fault.row for fault in faults(table, most_ratio=1.2) if fault.column == "path"] == [0, 1, 2, 3, 4]


def test_what_depends_on_a_row_leaves_with_it() -> None:
    rows = [
        {"path": "1", "id": "a"}, {"path": "2", "id": "d", "parent": "a"}, {"path": "3", "id": "e", "parent": "d"},
        {"path": "4", "id": "b"}, {"path": "5", "id": "q", "group": "g", "slot": "query"},
        {"path": "6", "id": "p", "group": "g", "slot": "positive"}, {"path": "7", "id": "x", "parent": "p"},
    ]  # fmt: skip
    table = checked(rows)
    assert without(table, [0])["id"].tolist() == ["b", "q", "p", "x"]
    assert without(table, {4})["id"].tolist() == ["a", "d", "e", "b"]
    assert without(table[::-1], [6])["id"].tolist() == ["x", "p", "q", "b"]  # rows count in the order that is given
    assert without(table, [])["id"].tolist() == table["id"].tolist()
    assert len(without(table, range(7))) == 0
    slots = [{"path": f"{k}", "group": "g", "slot": "query", "split": "train" if k < 2 else "val"} for k in range(4)]
    assert without(checked(slots), [3])["path"].map(os.path.basename).tolist() == ["0", "1"]


# split


@pytest.fixture
def many(tmp_path: Path) -> Path:
    rows = []
    for i in range(50):
        rows += [{"identity": f"d/{i}", "path": f"{i}_{k}.png"} for k in range(2)]
        rows.append({"identity": f"d/{i}/x", "path": f"{i}_x.png", "role": "distractor", "parent": f"{i}_0.png"})
    write(checked(pd.DataFrame(rows).assign(dataset="d"), tmp_path), tmp_path / "m.parquet")
    return tmp_path


def test_split_by_shares_and_by_numbers(many: Path, capsys: pytest.CaptureFixture[str], cli: Runner) -> None:
    out = ("-o", many / "s.parquet")
    assert cli("split", many / "m.parquet", *out, "--part", "train=0.8", "--part", "val=0.2") == 0
    table = read(many / "s.parquet")
    assert (table["split"] == "train").sum() == 120
    assert not leaks(table)
    assert "train     120          80" in capsys.readouterr().out  # distractors are identities too
    again = ("--part", "train=rest", "--part", "val=5", "--part", "test=10", "--seed", 3)
    assert cli("split", many / "m.parquet", *out, *again) == 0
    assert read(many / "s.parquet")["split"].value_counts().to_dict() == {"train": 105, "test": 30, "val": 15}
    assert cli("split", many / "m.parquet", *out, "--part", "train=rest", "--part", "val=0.1") == 0
    assert (read(many / "s.parquet")["split"] == "val").sum() == 15


def test_split_keeps_splits_that_are_there(many: Path, cli: Runner) -> None:
    part = ("--part", "train=0.5", "--part", "test=0.5")
    assert cli("split", many / "m.parquet", "-o", many / "s.csv", *part) == 0
    cli.fails("--overwrite", "split", many / "s.csv", "-o", many / "t.csv", *part)
    assert cli("split", many / "s.csv", "-o", many / "t.csv", *part, "--overwrite", "--seed", 1) == 0
    assert not read(many / "t.csv")["split"].equals(read(many / "s.csv")["split"])


def test_split_by_row_says_that_identities_leak(many: Path, cli: Runner) -> None:
    part = ("--part", "train=0.5", "--part", "test=0.5", "--by-row")
    cli.prints("identities are in more than one split", "split", many / "m.parquet", "-o", many / "s.csv", *part)
    assert leaks(read(many / "s.csv"))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["train"], "expected NAME=SHARE"), (["=0.5"], "expected NAME=SHARE"), (["train=most"], "expected NAME=SHARE"),
        (["train=-1"], "expected NAME=SHARE"), (["a=0.5", "a=0.5"], "given twice"),
        (["train=rest", "val=0.7", "test=0.7"], "sum to 1.4, more than 1"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be_are_named(many: Path, parts: list[str], message: str, cli: Runner) -> None:
    arguments = [a for part in parts for a in ("--part", part)]
    cli.fails(message, "split", many / "m.parquet", "-o", many / "s.csv", *arguments)
    assert not (many / "s.csv").exists()


# Merge


def test_manifests_are_merged_with_paths_from_the_new_one(folder: Path, cli: Runner) -> None:
    for name in ("a", "b"):
        assert cli("import folder", folder / "toys", "-o", folder / name / "m.csv", "--name", name) == 0
    parts = [folder / "a/m.csv", folder / "b/m.csv"]
    cli.prints("18 images of 6 identities", "merge", *parts, "-o", folder / "both.parquet")
    both = read(folder / "both.parquet")
    assert both["path"].map(os.path.isfile).all()
    assert both["identity"].nunique() == 6


def test_merging_refuses_equal_names_unless_they_are_shared(folder: Path, cli: Runner) -> None:
    for name, path in (("a", "x.png"), ("b", "y.png")):
        (folder / f"{name}.csv").write_text(f"identity,path\n0001,{path}\n")
    parts = [folder / "a.csv", folder / "b.csv"]
    cli.fails("'0001'", "merge", *parts, "-o", folder / "both.csv")
    assert not (folder / "both.csv").exists()
    assert cli("merge", *parts, "-o", folder / "both.csv", "--shared") == 0
    assert len(read(folder / "both.csv")) == 2
