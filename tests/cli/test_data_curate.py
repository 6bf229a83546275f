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
from idmetric.data.manifest import checked, read, take, with_columns, write
from idmetric.data.split import leaks
from tests.runner import Runner

FILE = "photos.parquet"


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
    write(table, tmp_path / FILE)
    return table


def test_curate_balances_and_prints_before_and_after(run: Runner, photos: pd.DataFrame) -> None:
    text = run.prints("22 images of 11 identities", f"curate {FILE} --recipe idsim --count 11 -o out/train.csv --quiet")
    lines = [line.split() for line in text.splitlines()]
    assert lines[1] == ["identities", "images", "identities", "images", "train", "val"]
    assert [line[:5] for line in lines[2:4]] == [["DF2", "10", "30", "7", "14"], ["MET", "4", "12", "4", "8"]]
    assert lines[4] == ["all", "14", "42", "11", "22", "10", "1"]
    out = read("out/train.csv")
    assert all(Path(path).is_file() for path in out["path"])


def test_unreadable_images_stop_the_run_or_are_left_out(run: Runner, photos: pd.DataFrame) -> None:
    for k in range(3):
        Path(f"MET/2/{k}.png").write_bytes(b"")
    Path("DF2/3/1.png").unlink()
    command = f"curate {FILE} --recipe visme -o x.csv --quiet"
    assert "--on-error skip" in run.fails("DF2/3/1.png", command)
    assert not Path("x.csv").exists()
    run.fails("4 images", f"{command} --on-error skip", status=4)
    counts = Counter(read("x.csv")["identity"])
    assert (counts["MET/2"], counts["DF2/3"]) == (0, 2)  # nothing of the first can be read
    assert run(f"{command} --no-check") == 0
    assert len(read("x.csv")) == 42


def test_missing_masks_are_errors_of_nearid_unless_told_otherwise(run: Runner, photos: pd.DataFrame) -> None:
    for name, value in (("full", 255), ("empty", 0)):
        Image.new("L", (12, 12), value).save(f"{name}.png")
    masks = [None, *["full.png"] * 4, "empty.png", *["full.png"] * 36]
    write(checked(photos.assign(mask=masks, text=None)), FILE)
    command = f"curate {FILE} --recipe nearid --split train=rest,val=2,test=2 -o x.csv --quiet"
    assert "MET/1/2.png: " in run.fails("MET/0/0.png: it has no mask", command)
    assert run(f"{command} --on-error skip") == 4
    out = read("x.csv")
    assert len(out) == out["mask"].notna().sum() == 40
    assert out.groupby("split")["identity"].nunique().to_dict() == {"train": 10, "val": 2, "test": 2}


def test_filters_are_printed_edited_and_used(run: Runner, photos: pd.DataFrame) -> None:
    rules = json.loads(run.prints("FORB", "curate --recipe idsim --print-filters"))
    Path("own.json").write_text(json.dumps([*rules, {"drop": "dataset == 'MET'"}]))
    command = f"curate {FILE} --recipe idsim -o x.csv --quiet --filters own.json"
    assert "only 10 of 11000" in run.fails("-12 images, -4 identities", command, status=0)
    assert set(read("x.csv")["dataset"]) == {"DF2"}
    Path("own.json").write_text("""[{"drop": "dataset in ['MET', 'DF2']"}]""")
    run.fails("42 images", command)
    Path("own.json").write_text("""[{"drop": "datset == 'MET'"}]""")
    run.fails("'datset'", command)


def test_identities_in_two_splits_are_refused(run: Runner, photos: pd.DataFrame) -> None:
    write(with_columns(photos, split=["train", "train", "val"] * 14), FILE)
    run.fails("'MET/0' in train, val", f"curate {FILE} --recipe visme -o x.csv --quiet")
    run.fails("'MET/0' in train, val", f"mine negatives {FILE} --model tiny -o x.csv --quiet")
    assert run(f"curate {FILE} --recipe idsim -o x.csv --quiet --overwrite-splits") == 0
    assert not leaks(read("x.csv"))


@pytest.mark.parametrize(("recipe", "more"), [("idsim", ""), ("nearid", "--split train=rest,test=3")])
def test_splits_that_are_there_are_kept_or_overwritten(
    run: Runner, photos: pd.DataFrame, recipe: str, more: str
) -> None:
    held_out = {"MET/0", "DF2/7"}
    parts = np.where(photos["identity"].isin(held_out), "test", "train")
    write(with_columns(photos, split=parts, text=None, mask=photos["path"]), FILE)
    command = f"curate {FILE} --recipe {recipe} -o x.csv --quiet --no-check"
    assert "--overwrite-splits" in run.fails("test: 6 images, train: 36 images", f"{command} {more}")
    assert run(f"{command} {more} --overwrite-splits") == 0
    assert held_out <= set(read("x.csv")["identity"])
    assert run(f"{command} --keep-splits") == 0
    out = read("x.csv")
    assert set(out["identity"][out["split"] == "test"]) == (held_out if recipe == "nearid" else set())
    assert (held_out <= set(out["identity"])) == (recipe == "nearid")


def test_wrong_usage_is_refused_before_the_work(
    run: Runner, photos: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idmetric.data.embed.embed_rows", None)  # would fail
    monkeypatch.setattr("idmetric.data.check.faults", None)
    for recipe, option in (("idsim", "--images 4"), ("nearid", "--variant all"), ("ilgen", "--split a=1"),
                           ("visme", "--keep-splits")):  # fmt: skip
        words = f"curate {FILE} --recipe {recipe} -o x.csv {option}"
        run.fails(f"{recipe} has no {option.split()[0]}", words, status=2)
    for command in (f"curate {FILE} --recipe visme", f"mine negatives {FILE} --model tiny", f"mine triplets {FILE}"):
        run.fails("x.txt", f"{command} -o x.txt")
    run.fails("existing='keep'", f"curate {FILE} --recipe nearid -o x.csv --split a=1 --keep-splits")
    run.fails("-o", "curate --recipe idsim")
    run.fails("none.csv", "curate none.csv --recipe idsim -o x.csv")
    run.fails("--count", f"curate {FILE} --recipe idsim --count 0 -o x.csv", status=2)
    run.fails("--split val:2", f"curate {FILE} --recipe nearid --split val:2 -o x.csv")


def test_from_photos_to_a_mixture_of_triplets(run: Runner, photos: pd.DataFrame) -> None:
    assert run(f"curate {FILE} --recipe idsim -o s1.parquet --quiet") == 0
    mine = "mine negatives s1.parquet -o mined.parquet --model tiny --device cpu"
    run.prints("13 negatives; similarity", mine)
    mined = read("mined.parquet")
    (cache,) = Path().glob("embeddings/IDSim-tiny*/*.safetensors")
    stamp = cache.stat().st_mtime_ns
    assert run(mine) == 0
    assert cache.stat().st_mtime_ns == stamp  # nothing was embedded again
    pd.testing.assert_frame_equal(read("mined.parquet"), mined)

    context = photos.assign(id=photos["id"] + "~", role="context-edit", parent=photos["id"])
    identity = photos.assign(id=photos["id"] + "*", role="identity-edit", parent=photos["id"])
    identity["identity"] += "*"
    edits = pd.concat([photos, context, identity], ignore_index=True)
    write(edits, "edits.parquet")
    mix = "mine triplets mined.parquet --context edits.parquet --identity edits.parquet -o mix.parquet --count 30"
    run.fails("'context' has no rows of split 'train'", f"{mix} --split train")
    write(with_columns(edits, split="train"), "edits.parquet")
    run.prints("10 real, 10 context, 10 identity triplets", f"{mix} --split train")
    out = read("mix.parquet")
    assert len(out) == 90
    assert all(Path(path).is_file() for path in out["path"])
    run.fails("'identity' gives 14 of 24", f"{mix} --split train --ratio 1:1:8")


def test_mining_lists_unreadable_images_and_goes_on_where_told(run: Runner, photos: pd.DataFrame) -> None:
    Path("MET/2/1.png").write_bytes(b"nothing")
    command = f"mine pairs {FILE} -o x.parquet --model tiny --device cpu --quiet"
    run.fails("MET/2/1.png", command)
    assert run(f"{command} --on-error skip") == 4
    out = read("x.parquet")
    assert photos["path"][7] not in set(out["path"])
    pairs = out.groupby("group")
    assert (pairs["text"].nunique() == 1).all()
    assert (pairs["identity"].nunique() == 2).all()
    run.fails("--ceiling", f"{command} --on-error skip --ceiling -1")
    write(with_columns(photos, text=None), FILE)
    run.fails(FILE, command)
    write(take(photos, [7]), FILE)
    run.fails("no image", f"{command.replace('pairs', 'negatives')} --on-error skip")
