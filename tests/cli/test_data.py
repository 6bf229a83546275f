from __future__ import annotations

from pathlib import Path

import datasets
import pytest
from PIL import Image

from idmetric.cli.data import main
from idmetric.data.old_manifest.check import faults, without
from idmetric.data.old_manifest.split import leaks
from idmetric.data.old_manifest.table import Manifest, Row, read
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
    manifest = read(folder / "out" / "m.csv")
    assert manifest.column("path")[0] == "../toys/cup/0.png"
    assert manifest.image(8).size == (9, 7)
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
    made_files = [Path(str(source)) for source in read(folder / "m.parquet").sources()]
    assert [file.read_bytes() for file in made_files] == [cell["bytes"] for cell in cells]
    assert all(file.is_relative_to(folder / "m_images") for file in made_files)
    assert cli("import pods", folder / "pods", "-o", folder / "e.parquet", "--embed", "--limit", 2) == 0
    assert read(folder / "e.parquet")[1].image_bytes == cells[1]["bytes"]
    assert len(read(folder / "e.parquet")) == 2
    assert not (folder / "e_images").exists()


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
    kept = [p.removeprefix("toys/") for p in read(broken / "m.csv").column("path")]
    assert kept == ["cup/0.png", "cup/2.png", "mug/2.png", "pot/0.png", "pot/1.png"]
    assert cli("import folder", broken / "toys", "-o", broken / "all.csv", "--no-check") == 0
    assert len(read(broken / "all.csv")) == 9


def test_errors_of_import_are_one_message(folder: Path, capsys: pytest.CaptureFixture[str], cli: Runner) -> None:
    out = ("-o", folder / "m.csv")
    for arguments, message in (
        (("folder", folder / "none", *out), "no such folder"),
        (("folder", folder / "toys", "-o", folder / "m.txt"), "ends in"),
        (("folder", folder / "toys", *out, "--embed"), "--embed"),
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
        Row("a", "toys/cup/0.png", split="train"), Row("a", "toys/cup/1.png", split="test"),
        Row("b", "toys/mug/0.png", id="b1", split="train"), Row("c", "toys/mug/0.png", id="c1", split="train"),
        Row("b", "toys/mug/9.png", split="train", mask="toys/mug/9_mask.png"),
        Row("b/d", "toys/pot/0.png", role="distractor", parent="gone", oracle=0.5),
        Row("d", "toys/pot/1.png", group="g", slot="anchor"),
    ]  # fmt: skip
    Manifest.from_rows(rows, folder).write(folder / "m.csv")
    assert cli("info", folder / "m.csv") == 0
    out = capsys.readouterr().out
    for line in (
        "1 identities are in more than one split", "a: train, test", "1 files show more than one identity",
        "2 files are missing", "row 5, column 'path': ", "row 5, column 'mask': ", "the file does not exist",
    ):  # fmt: skip
        assert line in out
    tables = [line.split() for line in out.splitlines()]
    for cells in (["train", "4", "3"], ["(empty)", "2", "2"], ["distractor", "1", "1"]):
        assert cells in tables
    assert cli("info", folder / "m.csv", "--strict") == 1


# Checking files


def test_faults_name_every_row_that_uses_a_file(broken: Path) -> None:
    whole = (broken / "toys/cup/0.png").read_bytes()
    rows = [
        Row("a", "toys/mug/0.png", group="g", slot="anchor"), Row("a", "toys/mug/0.png", group="h", slot="anchor"),
        Row("a", image_bytes=whole[:50], mask_bytes=b"x"), Row("a", image_bytes=whole),
        Row("a", "toys/cup/0.png", mask="toys/none.png"), Row("a", "toys/cup/1.png", part_mask="toys/cup/1_mask.png"),
    ]  # fmt: skip
    manifest = Manifest.from_rows(rows, broken)
    found = faults(manifest)
    expected = [(0, "path"), (1, "path"), (2, "path"), (2, "mask"), (4, "mask")]  # an empty part is no fault
    assert [(f.row, f.column) for f in found] == expected
    assert [f.missing for f in found] == [False, False, False, False, True]
    assert [(f.row, f.column) for f in faults(manifest, decode=False)] == [(4, "mask")]


def test_masks_have_their_images_shape_if_not_its_size(folder: Path) -> None:
    for name, size in (("same", (9, 7)), ("half", (5, 4)), ("turned", (7, 9)), ("double", (18, 14))):
        Image.new("L", size, 255).save(folder / f"{name}.png")
    Image.new("RGB", (7, 9)).save(folder / "upright.png")
    rows = [
        Row("a", "toys/cup/0.png", id=f"{k}", mask=f"{name}.png", part_mask="same.png")
        for k, name in enumerate(("same", "half", "turned", "double"))
    ]
    manifest = Manifest.from_rows([*rows, Row("a", "upright.png", mask="turned.png", part_mask="same.png")], folder)
    found = faults(manifest)
    assert [(f.row, f.column) for f in found] == [(2, "mask"), (4, "part_mask")]
    assert "the mask has 7x9 pixels, its image 9x7: their shapes differ" in str(found[0])
    assert not faults(manifest, decode=False)


def test_what_depends_on_a_row_leaves_with_it() -> None:
    rows = [
        Row("a", "1", id="a"), Row("a/d", "2", id="d", parent="a", role="distractor"),
        Row("a/e", "3", id="e", parent="d", role="part-edit"), Row("b", "4", id="b"),
        Row("c", "5", id="q", group="g", slot="query"), Row("b", "6", id="p", group="g", slot="positive"),
        Row("c", "7", id="x", parent="p", role="context-edit"),
    ]  # fmt: skip
    manifest = Manifest.from_rows(rows)
    assert without(manifest, [0]).column("id") == ["b", "q", "p", "x"]
    assert without(manifest, {4}).column("id") == ["a", "d", "e", "b"]
    assert without(manifest, []).column("id") == manifest.column("id")
    assert len(without(manifest, range(7))) == 0
    slots = [
        Row(f"{k}", f"{k}", id=f"{k}", group="g", slot="query", split="train" if k < 2 else "val") for k in range(4)
    ]
    assert without(Manifest.from_rows(slots), [3]).column("id") == ["0", "1"]  # each split counts its groups


# split


@pytest.fixture
def many(tmp_path: Path) -> Path:
    rows = [Row(f"d/{i}", f"{i}_{k}.png", dataset="d") for i in range(50) for k in range(2)]
    rows += [Row(f"d/{i}/x", f"{i}_x.png", role="distractor", parent=f"{i}_0.png", dataset="d") for i in range(50)]
    Manifest.from_rows(rows, tmp_path).write(tmp_path / "m.parquet")
    return tmp_path


def test_split_by_shares_and_by_numbers(many: Path, capsys: pytest.CaptureFixture[str], cli: Runner) -> None:
    out = ("-o", many / "s.parquet")
    assert cli("split", many / "m.parquet", *out, "--part", "train=0.8", "--part", "val=0.2") == 0
    manifest = read(many / "s.parquet")
    assert len(manifest.filter(split="train")) == 120
    assert not leaks(manifest)
    assert "train     120          80" in capsys.readouterr().out  # distractors are identities too
    again = ("--part", "train=rest", "--part", "val=5", "--part", "test=10", "--seed", 3)
    assert cli("split", many / "m.parquet", *out, *again) == 0
    assert [len(read(many / "s.parquet").filter(split=s)) for s in ("train", "val", "test")] == [105, 15, 30]
    assert cli("split", many / "m.parquet", *out, "--part", "train=rest", "--part", "val=0.1") == 0
    assert len(read(many / "s.parquet").filter(split="val")) == 15


def test_split_keeps_splits_that_are_there(many: Path, cli: Runner) -> None:
    part = ("--part", "train=0.5", "--part", "test=0.5")
    assert cli("split", many / "m.parquet", "-o", many / "s.csv", *part) == 0
    cli.fails("--overwrite", "split", many / "s.csv", "-o", many / "t.csv", *part)
    assert cli("split", many / "s.csv", "-o", many / "t.csv", *part, "--overwrite", "--seed", 1) == 0
    assert read(many / "t.csv").column("split") != read(many / "s.csv").column("split")


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
    assert both[0].path == "toys/cup/0.png"
    assert both.image(17).size == (9, 7)


def test_merging_refuses_equal_names_unless_they_are_shared(folder: Path, cli: Runner) -> None:
    for name, path in (("a", "x.png"), ("b", "y.png")):
        Manifest.from_rows([Row(identity="0001", path=path)], folder).write(folder / f"{name}.csv")
    parts = [folder / "a.csv", folder / "b.csv"]
    cli.fails("'0001'", "merge", *parts, "-o", folder / "both.csv")
    assert not (folder / "both.csv").exists()
    assert cli("merge", *parts, "-o", folder / "both.csv", "--shared") == 0
    assert len(read(folder / "both.csv")) == 2
