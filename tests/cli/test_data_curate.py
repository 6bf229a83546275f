"""`idmetric data curate` and `idmetric data mine`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.cli import data as cli
from idmetric.data.old_manifest.split import leaks
from idmetric.data.old_manifest.table import Manifest, Row, read
from tests.runner import Runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """`idmetric data ...` in a folder of its own; paths are relative to it."""
    monkeypatch.chdir(tmp_path)
    return Runner(cli.main, capsys)


@pytest.fixture
def photos(tmp_path: Path) -> Manifest:
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
                rows.append(Row(f"{dataset}/{i}", path, dataset=dataset, text=f"look {k}"))
    manifest = Manifest.from_rows(rows, tmp_path)
    manifest.write(tmp_path / "photos.parquet")
    return manifest


def test_curate_balances_and_prints_before_and_after(
    run: Runner, photos: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("curate photos.parquet --recipe idsim --count 11 -o out/train.csv --quiet") == 0
    out = read(tmp_path / "out/train.csv")
    assert Counter(out.filter(slot="anchor").column("dataset")) == {"MET": 4, "DF2": 7}
    assert Counter(out.filter(slot="anchor").column("split")) == {"train": 10, "val": 1}
    assert all(Path(str(s)).is_file() for s in out.sources())
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["DF2"][:5] == ["10", "30", "->", "7", "14"]
    assert lines["MET"][:5] == ["4", "12", "->", "4", "8"]
    assert lines["all"] == ["14", "42", "->", "11", "22", *lines["all"][5:]]
    assert sorted(lines["all"][5:]) == ["1", "10"]
    assert lines["wrote"][-4:] == ["of", "11", "identities"] or "11" in lines["wrote"]


def test_unreadable_images_stop_the_run_or_are_left_out(run: Runner, photos: Manifest, tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"MET/2/{k}.png").write_bytes(b"")
    (tmp_path / "DF2/3/1.png").unlink()
    command = ("curate", "photos.parquet", "--recipe", "visme", "-o", "x.csv", "--quiet")
    error = run.fails("4 images cannot be used", *command)
    assert "DF2/3/1.png" in error
    assert "--on-error skip" in error
    assert not (tmp_path / "x.csv").exists()
    run.fails("4 images left out", *command, "--on-error", "skip", status=4)
    counts = Counter(read(tmp_path / "x.csv").column("identity"))
    assert "MET/2" not in counts  # nothing of it can be read
    assert counts["DF2/3"] == 2
    assert run(*command, "--no-check") == 0
    assert len(read(tmp_path / "x.csv")) == 42


def test_missing_masks_are_errors_of_nearid_unless_told_otherwise(
    run: Runner, photos: Manifest, tmp_path: Path
) -> None:
    Image.new("L", (12, 12), 255).save(tmp_path / "full.png")
    Image.new("L", (12, 12), 0).save(tmp_path / "empty.png")
    masks = ["full.png"] * 42
    masks[0], masks[5] = None, "empty.png"  # type: ignore[call-overload]
    photos.replace(mask=masks, text=None).write(tmp_path / "photos.parquet")
    command = ("curate", "photos.parquet", "--recipe", "nearid", "--split", "train=rest,val=2,test=2", "-o", "x.csv",
               "--quiet")  # fmt: skip
    error = run.fails("MET/0/0.png: it has no mask", *command)
    assert "MET/1/2.png: the mask is empty" in error
    assert run(*command, "--on-error", "skip") == 4
    out = read(tmp_path / "x.csv")
    assert len(out) == 40
    assert None not in out.column("mask")
    assert {s: len(set(out.filter(split=s).column("identity"))) for s in ("train", "val", "test")} == {
        "train": 10, "val": 2, "test": 2}  # fmt: skip


def test_filters_are_printed_edited_and_used(
    run: Runner, photos: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("curate --recipe idsim --print-filters") == 0
    rules = json.loads(capsys.readouterr().out)
    assert any(rule.get("drop", {}).get("dataset") == "FORB" for rule in rules)
    (tmp_path / "own.json").write_text(json.dumps([*rules, {"drop": {"dataset": "met"}, "why": "test"}]))
    command = ("curate", "photos.parquet", "--recipe", "idsim", "-o", "x.csv", "--quiet")
    assert run(*command, "--filters", "own.json") == 0
    text = capsys.readouterr()
    assert "(test): -12 images, -4 identities" in text.out
    assert "only 10 of 11000 identities are available" in text.err
    assert set(read(tmp_path / "x.csv").column("dataset")) == {"DF2"}
    (tmp_path / "own.json").write_text('[{"drop": {"dataset": ["met", "df2"]}}]')
    run.fails("nothing is left of 42 images", *command, "--filters", "own.json")


def test_identities_in_two_splits_are_refused(run: Runner, photos: Manifest, tmp_path: Path) -> None:
    photos.replace(split=["train", "train", "val"] * 14).write(tmp_path / "photos.parquet")
    run.fails(
        "14 identities are in more than one split: 'MET/0' in train, val",
        "curate photos.parquet --recipe visme -o x.csv --quiet",
    )
    run.fails("14 identities are in more than one split", "mine negatives photos.parquet --model tiny -o x.csv --quiet")
    command = ("curate", "photos.parquet", "--recipe", "idsim", "-o", "x.csv", "--quiet")
    assert run(*command, "--overwrite-splits") == 0
    assert not leaks(read(tmp_path / "x.csv"))


def test_splits_that_are_there_are_kept_or_overwritten_by_name(
    run: Runner, photos: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["test" if i in ("MET/0", "DF2/7") else "train" for i in photos.column("identity")]
    masks = photos.column("path")
    photos.replace(split=parts, text=None, mask=masks).write(tmp_path / "photos.parquet")
    for recipe in ("idsim", "nearid"):
        command = ("curate", "photos.parquet", "--recipe", recipe, "-o", "x.csv", "--quiet", "--no-check")
        more = ("--split", "train=rest,test=3") if recipe == "nearid" else ()
        assert run(*command, *more) == 1
        error = capsys.readouterr().err
        for text in ("has splits already (test: 6 images, train: 36 images)", "--keep-splits", "--overwrite-splits"):
            assert text in error
        assert not (tmp_path / "x.csv").exists()
        assert run(*command, *more, "--overwrite-splits") == 0
        assert {"MET/0", "DF2/7"} <= set(read(tmp_path / "x.csv").column("identity"))
        assert run(*command, "--keep-splits") == 0
        out = read(tmp_path / "x.csv")
        assert ({"MET/0", "DF2/7"} <= set(out.column("identity"))) == (recipe == "nearid")
        if recipe == "nearid":
            assert set(out.filter(split="test").column("identity")) == {"MET/0", "DF2/7"}
        (tmp_path / "x.csv").unlink()
    assert run("curate photos.parquet --recipe visme -o x.csv --quiet") == 0  # keeps them anyway


def test_options_of_other_recipes_are_refused(
    run: Runner, photos: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    for recipe, *option in (("idsim", "--images", 4), ("nearid", "--variant", "all"), ("ilgen", "--split", "a=1"),
                            ("visme", "--keep-splits")):  # fmt: skip
        message = f"--recipe {recipe} has no {option[0]}"
        run.fails(message, "curate photos.parquet --recipe", recipe, "-o", "x.csv", *option, status=2)
    run.fails("exclude each other", "curate photos.parquet --recipe nearid -o x.csv --split a=1 --keep-splits")


def test_what_is_wrong_with_the_output_is_said_before_the_work(
    run: Runner, photos: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idmetric.data.embed.embed_rows", None)  # would fail
    monkeypatch.setattr("idmetric.data.old_manifest.check.faults", None)
    mine = ("photos.parquet", "--model", "tiny", "--device", "cpu")
    for command in (("curate", "photos.parquet", "--recipe", "visme"), ("mine", "negatives", *mine),
                    ("mine", "triplets", "photos.parquet")):  # fmt: skip
        run.fails("x.txt: a manifest ends in .parquet, .csv, .jsonl", *command, "-o", "x.txt")


def test_wrong_usage_is_said(run: Runner, photos: Manifest) -> None:
    run.fails("give the manifest to read", "curate --recipe idsim")
    run.fails("none.csv: no such file", "curate none.csv --recipe idsim -o x.csv")
    run.fails("at least 1", "curate photos.parquet --recipe idsim --count 0 -o x.csv", status=2)
    run.fails("--split val:2: expected NAME=SHARE", "curate photos.parquet --recipe nearid --split val:2 -o x.csv")


def test_from_photos_to_a_mixture_of_triplets(
    run: Runner, photos: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert list(read(tmp_path / "mined.parquet")) == list(mined)
    context = [Row(r.identity, r.path, id=f"{r.id}~", role="context-edit", parent=r.id) for r in photos]
    identity = [Row(f"{r.identity}*", r.path, id=f"{r.id}*", role="identity-edit", parent=r.id) for r in photos]
    edits = Manifest.from_rows([*photos, *context, *identity], tmp_path)
    edits.write(tmp_path / "edits.parquet")
    mix = ("mine", "triplets", "mined.parquet", "--context", "edits.parquet", "--identity", "edits.parquet", "-o",
           "mix.parquet", "--count", 30, "--quiet")  # fmt: skip
    run.fails("subset 'context' has no rows of split 'train'; its splits: (none)", *mix, "--split", "train")
    edits.replace(split="train").write(tmp_path / "edits.parquet")
    run.prints("10 real, 10 context, 10 identity triplets", *mix, "--split", "train")
    out = read(tmp_path / "mix.parquet")
    assert len(out) == 90
    assert all(Path(str(s)).is_file() for s in out.sources())
    run.fails(
        "subset 'identity' gives 14 of 24 triplets, from 14 instances", *mix, "--split", "train", "--ratio", "1:1:8"
    )


def test_mining_lists_unreadable_images_and_goes_on_where_told(run: Runner, photos: Manifest, tmp_path: Path) -> None:
    (tmp_path / "MET/2/1.png").write_bytes(b"nothing")
    command = ("mine", "pairs", "photos.parquet", "-o", "x.parquet", "--model", "tiny", "--device", "cpu", "--quiet")
    run.fails("MET/2/1.png", *command)
    assert run(*command, "--on-error", "skip") == 4
    out = read(tmp_path / "x.parquet")
    assert "MET/2/1.png" not in out.column("path")
    for group in set(out.column("group")):
        a, b = out.filter(group=group)
        assert a.text == b.text
        assert a.identity != b.identity
    run.fails("no pairs found", *command, "--on-error", "skip", "--ceiling", "-1")
    photos.replace(text=None).write(tmp_path / "photos.parquet")
    run.fails("it has no two identities with the same text", *command)
    photos.filter(path="MET/2/1.png").write(tmp_path / "photos.parquet")
    run.fails("no image could be read", "mine", "negatives", *command[2:], "--on-error", "skip")
