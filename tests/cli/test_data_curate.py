"""`idmetric data curate` and `idmetric data mine`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from idmetric.cli import data as cli
from idmetric.data.manifest import checked, read, take, write
from idmetric.data.split import leaks
from tests.runner import Runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """`idmetric data ...` in a folder of its own; paths are relative to it."""
    monkeypatch.chdir(tmp_path)
    return Runner(cli.main, capsys)


@pytest.fixture
def photos(tmp_path: Path) -> pd.DataFrame:
    """Two datasets of four and ten identities, three small photos each, written as photos.parquet."""
    rng = np.random.default_rng(0)
    rows = []
    for dataset, size in (("MET", 4), ("DF2", 10)):
        for i in range(size):
            color = rng.integers(0, 256, 3)
            for k in range(3):
                path = f"{dataset}/{i}/{k}.png"
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                noise = rng.integers(-20, 20, (12, 12, 3))
                Image.fromarray((color + noise).clip(0, 255).astype(np.uint8)).save(tmp_path / path)
                rows.append({"identity": f"{dataset}/{i}", "path": path, "dataset": dataset, "text": f"look {k}"})
    table = checked(pd.DataFrame(rows), tmp_path)
    write(table, tmp_path / "photos.parquet")
    return table


def test_curate_balances_and_prints_before_and_after(
    run: Runner, photos: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("curate photos.parquet --recipe idsim --count 11 -o out/train.csv --quiet") == 0
    out = read(tmp_path / "out/train.csv")
    anchors = out[out["slot"] == "anchor"]
    assert Counter(anchors["dataset"]) == {"MET": 4, "DF2": 7}
    assert Counter(anchors["split"]) == {"train": 10, "val": 1}
    assert all(Path(path).is_file() for path in out["path"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["before", "after", "split"]
    assert lines[1] == ["identities", "images", "identities", "images", "train", "val"]
    sizes = {name: numbers for name, *numbers in lines[2:]}
    assert sizes["DF2"][:4] == ["10", "30", "7", "14"]
    assert sizes["MET"][:4] == ["4", "12", "4", "8"]
    assert sizes["all"] == ["14", "42", "11", "22", "10", "1"]


def test_unreadable_images_stop_the_run_or_are_left_out(run: Runner, photos: pd.DataFrame, tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"MET/2/{k}.png").write_bytes(b"")
    (tmp_path / "DF2/3/1.png").unlink()
    command = ("curate", "photos.parquet", "--recipe", "visme", "-o", "x.csv", "--quiet")
    error = run.fails("DF2/3/1.png", *command)
    assert "--on-error skip" in error
    assert not (tmp_path / "x.csv").exists()
    run.fails("4 images", *command, "--on-error", "skip", status=4)
    counts = Counter(read(tmp_path / "x.csv")["identity"])
    assert "MET/2" not in counts  # nothing of it can be read
    assert counts["DF2/3"] == 2
    assert run(*command, "--no-check") == 0
    assert len(read(tmp_path / "x.csv")) == 42


def test_missing_masks_are_errors_of_nearid_unless_told_otherwise(
    run: Runner, photos: pd.DataFrame, tmp_path: Path
) -> None:
    Image.new("L", (12, 12), 255).save(tmp_path / "full.png")
    Image.new("L", (12, 12), 0).save(tmp_path / "empty.png")
    masks = [None, *["full.png"] * 4, "empty.png", *["full.png"] * 36]
    write(checked(photos.assign(mask=masks, text=None), tmp_path), tmp_path / "photos.parquet")
    command = ("curate", "photos.parquet", "--recipe", "nearid", "--split", "train=rest,val=2,test=2", "-o", "x.csv",
               "--quiet")  # fmt: skip
    error = run.fails("MET/0/0.png: it has no mask", *command)
    assert "MET/1/2.png: " in error
    assert run(*command, "--on-error", "skip") == 4
    out = read(tmp_path / "x.csv")
    assert len(out) == 40
    assert out["mask"].notna().all()
    assert out.groupby("split")["identity"].nunique().to_dict() == {"train": 10, "val": 2, "test": 2}


def test_filters_are_printed_edited_and_used(
    run: Runner, photos: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("curate --recipe idsim --print-filters") == 0
    rules = json.loads(capsys.readouterr().out)
    assert any("FORB" in rule.get("drop", "") for rule in rules)
    (tmp_path / "own.json").write_text(json.dumps([*rules, {"drop": "dataset == 'MET'", "why": "test"}]))
    command = ("curate", "photos.parquet", "--recipe", "idsim", "-o", "x.csv", "--quiet")
    assert run(*command, "--filters", "own.json") == 0
    text = capsys.readouterr()
    assert "-12 images, -4 identities" in text.err
    assert "only 10 of 11000 identities are available" in text.err
    assert set(read(tmp_path / "x.csv")["dataset"]) == {"DF2"}
    (tmp_path / "own.json").write_text("""[{"drop": "dataset in ['MET', 'DF2']"}]""")
    run.fails("42 images", *command, "--filters", "own.json")


def test_identities_in_two_splits_are_refused(run: Runner, photos: pd.DataFrame, tmp_path: Path) -> None:
    write(photos.assign(split=["train", "train", "val"] * 14), tmp_path / "photos.parquet")
    run.fails("'MET/0' in train, val", "curate photos.parquet --recipe visme -o x.csv --quiet")
    run.fails("'MET/0' in train, val", "mine negatives photos.parquet --model tiny -o x.csv --quiet")
    command = ("curate", "photos.parquet", "--recipe", "idsim", "-o", "x.csv", "--quiet")
    assert run(*command, "--overwrite-splits") == 0
    assert not leaks(read(tmp_path / "x.csv"))


def test_splits_that_are_there_are_kept_or_overwritten_by_name(
    run: Runner, photos: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = np.where(photos["identity"].isin(["MET/0", "DF2/7"]), "test", "train")
    write(photos.assign(split=parts, text=None, mask=photos["path"]), tmp_path / "photos.parquet")
    for recipe in ("idsim", "nearid"):
        command = ("curate", "photos.parquet", "--recipe", recipe, "-o", "x.csv", "--quiet", "--no-check")
        more = ("--split", "train=rest,test=3") if recipe == "nearid" else ()
        assert run(*command, *more) == 1
        error = capsys.readouterr().err
        for text in ("test: 6 images, train: 36 images", "--keep-splits", "--overwrite-splits"):
            assert text in error
        assert not (tmp_path / "x.csv").exists()
        assert run(*command, *more, "--overwrite-splits") == 0
        assert {"MET/0", "DF2/7"} <= set(read(tmp_path / "x.csv")["identity"])
        assert run(*command, "--keep-splits") == 0
        out = read(tmp_path / "x.csv")
        assert ({"MET/0", "DF2/7"} <= set(out["identity"])) == (recipe == "nearid")
        if recipe == "nearid":
            assert set(out["identity"][out["split"] == "test"]) == {"MET/0", "DF2/7"}
        (tmp_path / "x.csv").unlink()
    assert run("curate photos.parquet --recipe visme -o x.csv --quiet") == 0  # keeps them anyway


def test_options_of_other_recipes_are_refused(
    run: Runner, photos: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    for recipe, *option in (("idsim", "--images", 4), ("nearid", "--variant", "all"), ("ilgen", "--split", "a=1"),
                            ("visme", "--keep-splits")):  # fmt: skip
        message = f"--recipe {recipe} has no {option[0]}"
        run.fails(message, "curate photos.parquet --recipe", recipe, "-o", "x.csv", *option, status=2)
    run.fails("existing='keep'", "curate photos.parquet --recipe nearid -o x.csv --split a=1 --keep-splits")


def test_what_is_wrong_with_the_output_is_said_before_the_work(
    run: Runner, photos: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idmetric.data.embed.embed_rows", None)  # would fail
    monkeypatch.setattr("idmetric.data.check.faults", None)
    mine = ("photos.parquet", "--model", "tiny", "--device", "cpu")
    for command in (("curate", "photos.parquet", "--recipe", "visme"), ("mine", "negatives", *mine),
                    ("mine", "triplets", "photos.parquet")):  # fmt: skip
        run.fails("x.txt", *command, "-o", "x.txt")


def test_wrong_usage_is_said(run: Runner, photos: pd.DataFrame) -> None:
    run.fails("-o", "curate --recipe idsim")
    run.fails("none.csv", "curate none.csv --recipe idsim -o x.csv")
    run.fails("at least 1", "curate photos.parquet --recipe idsim --count 0 -o x.csv", status=2)
    run.fails("--split val:2", "curate photos.parquet --recipe nearid --split val:2 -o x.csv")


def test_from_photos_to_a_mixture_of_triplets(
    run: Runner, photos: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("curate photos.parquet --recipe idsim -o s1.parquet --quiet") == 0
    mine = ("mine", "negatives", "s1.parquet", "-o", "mined.parquet", "--model", "tiny", "--device", "cpu")
    assert run(*mine) == 0
    text = capsys.readouterr()
    assert "13 negatives; similarity" in text.out
    mined = read(tmp_path / "mined.parquet")
    caches = list(tmp_path.glob("embeddings/IDSim-tiny*/*.safetensors"))
    assert len(caches) == 1
    stamp = caches[0].stat().st_mtime_ns
    assert run(*mine, "--quiet") == 0
    assert caches[0].stat().st_mtime_ns == stamp  # nothing was embedded again
    pd.testing.assert_frame_equal(read(tmp_path / "mined.parquet"), mined)
    context = photos.assign(id=photos["id"] + "~", role="context-edit", parent=photos["id"])
    identity = photos.assign(id=photos["id"] + "*", role="identity-edit", parent=photos["id"])
    identity["identity"] += "*"
    edits = pd.concat([photos, context, identity], ignore_index=True)
    write(edits, tmp_path / "edits.parquet")
    mix = ("mine", "triplets", "mined.parquet", "--context", "edits.parquet", "--identity", "edits.parquet", "-o",
           "mix.parquet", "--count", 30, "--quiet")  # fmt: skip
    run.fails("'context' has no rows of split 'train'", *mix, "--split", "train")
    write(edits.assign(split="train"), tmp_path / "edits.parquet")
    run.prints("10 real, 10 context, 10 identity triplets", *mix, "--split", "train")
    out = read(tmp_path / "mix.parquet")
    assert len(out) == 90
    assert all(Path(path).is_file() for path in out["path"])
    run.fails("'identity' gives 14 of 24", *mix, "--split", "train", "--ratio", "1:1:8")


def test_mining_lists_unreadable_images_and_goes_on_where_told(
    run: Runner, photos: pd.DataFrame, tmp_path: Path
) -> None:
    (tmp_path / "MET/2/1.png").write_bytes(b"nothing")
    command = ("mine", "pairs", "photos.parquet", "-o", "x.parquet", "--model", "tiny", "--device", "cpu", "--quiet")
    run.fails("MET/2/1.png", *command)
    assert run(*command, "--on-error", "skip") == 4
    out = read(tmp_path / "x.parquet")
    assert photos["path"][7] not in set(out["path"])
    pairs = out.groupby("group")
    assert (pairs["text"].nunique() == 1).all()
    assert (pairs["identity"].nunique() == 2).all()
    run.fails("no pairs found", *command, "--on-error", "skip", "--ceiling", "-1")
    write(photos.assign(text=None), tmp_path / "photos.parquet")
    run.fails("photos.parquet", *command)
    write(take(photos, [7]), tmp_path / "photos.parquet")
    run.fails("no image", "mine", "negatives", *command[2:], "--on-error", "skip")
