from __future__ import annotations

import csv
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.cli import eval as cli
from idmetric.data.manifest import checked, read, take, write
from idmetric.data.reading import read_data
from tests.conftest import random_model
from tests.evaluate.protocols.parts import Near
from tests.runner import Runner

QUICK = ["--device", "cpu", "--bootstrap", "30"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(cli.main, capsys)


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """A folder for each of four identities, three pictures each."""
    rng = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / "album" / name).mkdir(parents=True)
        color = rng.integers(0, 255, 3)
        for k in range(3):
            array = np.clip(color + rng.integers(-40, 40, (24, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(array).save(tmp_path / "album" / name / f"{k}.png")
    return tmp_path / "album"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    random_model("dinov3").save_pretrained(tmp_path / "run")
    return tmp_path / "run"


def test_a_folder_of_photos_becomes_a_table(
    album: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Runner
) -> None:
    out = tmp_path / "out"
    given = ["folder", "--data", album, "--model", f"mine={model}", "--model", "hsv", "--out", out, *QUICK]
    assert run(*given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["model", "mAP"]
    assert [line.split()[0] for line in lines[1:3]] == ["mine", "hsv"]
    assert lines[3].startswith("in all rows: dataset album, n ")
    names = {p.name for p in out.iterdir()}
    tables = {"folder.json", "folder.csv", "folder.md", "folder.tex"}
    items = {f"folder.{m}.{t}.parquet" for m in ("mine", "hsv") for t in ("queries", "pairs")}
    assert names == tables | items | {"embeddings"}
    found = json.loads((out / "folder.json").read_text())["results"]
    assert found[0]["signature"]["model"] == f"IDSim:{model.name}"
    assert found[0]["settings"]["bootstrap"] == 30
    stored = {p: p.stat().st_mtime_ns for p in (out / "embeddings").rglob("*.safetensors")}
    assert run(*given, "--format", "csv") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert float(rows[0]["value"]) == found[0]["rows"][0]["metrics"]["mAP"]["value"]
    assert {p: p.stat().st_mtime_ns for p in (out / "embeddings").rglob("*.safetensors")} == stored


def test_a_split_that_is_not_there_is_named(
    album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Runner
) -> None:
    manifest = read_data(album)
    write(checked(manifest.assign(split=["test"] * 6 + ["val"] * 6)), tmp_path / "album.csv")
    given = ["folder", "--data", tmp_path / "album.csv", "--model", "hsv", *QUICK]
    run.fails("no split 'train'; there are test, val", *given, "--split", "train")
    assert run(*given, "--split", "val", "--format", "json") == 0
    [found] = json.loads(capsys.readouterr().out)["results"]
    assert found["rows"][0]["metrics"]["mAP"]["count"] == 6
    assert found["settings"]["data"] == str(tmp_path / "album.csv")  # what was measured stands beside the numbers
    assert found["settings"]["split"] == ["val"]


def test_unreadable_images_are_all_named_or_left_out(
    album: Path, capsys: pytest.CaptureFixture[str], run: Runner
) -> None:
    (album / "a" / "1.png").write_bytes(b"no")
    (album / "c" / "0.png").write_bytes(b"no")
    given = ["folder", "--data", album, "--model", "hsv", *QUICK]
    assert run(*given) == 1
    text = capsys.readouterr().err
    assert text.startswith("idmetric eval: error: 2 images cannot be used")
    assert str(Path("a") / "1.png") in text
    assert str(Path("c") / "0.png") in text
    run.prints("2 images could not be used", *given, "--on-error", "skip")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["folder", "--model", "hsv"], "--data PATH is needed"),
        (["folder", "--data", "nowhere", "--model", "hsv"], "nowhere: no such file or folder"),
        (["folder", "--data", "ALBUM", "--model", "no-such-model"], "unknown model 'no-such-model'"),
        (["folder", "--data", "ALBUM", "--model", "hsv", "--distance", "patch"], "models without patches: hsv"),
        (["folder", "--data", "ALBUM", "--model", "x=hsv", "--model", "x=lpips"], "two models are called 'x'"),
        (["folder", "--data", "ALBUM", "--model", "hsv", "--k", "0"], "k must be at least 1"),
        (["folder", "--data", "ALBUM", "--model", "hsv", "--subject", "crop"], "no row has a mask"),
        (["nearid", "--data", "ALBUM", "--model", "hsv"], "no distractors or part-edits"),
        (["generator", "--model", "hsv"], "--out DIR is needed"),
        (["generator", "--model", "hsv", "--out", "out", "--split", "test"], "--split chooses rows of --data"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_error(album: Path, given: list[str], message: str, run: Runner) -> None:
    run.says(message, *(album if word == "ALBUM" else word for word in given))


def test_a_manifest_in_the_folder_is_read_before_its_folders(album: Path) -> None:
    whole = read_data(album)
    assert set(whole["identity"].tolist()) == set("abcd")
    write(take(whole, [0, 1]), album / "manifest.parquet")
    assert len(read_data(album)) == len(read(album / "manifest.parquet")) == 2


@pytest.mark.parametrize("name", cli.PROTOCOLS)
def test_every_protocol_has_the_name_of_its_file_and_a_line_for_the_help(
    name: str, capsys: pytest.CaptureFixture[str], run: Runner
) -> None:
    module = importlib.import_module(cli.PROTOCOLS[name][0])
    assert module.PROTOCOL.name == name
    assert cli.PROTOCOLS[name][1] == module.__doc__.splitlines()[0].rstrip(".")
    assert run(name, "--help") == 0
    assert module.__doc__.splitlines()[0] in capsys.readouterr().out


def test_pairs_beyond_the_limit_are_an_error(
    album: Path, tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idmetric.evaluate.protocols.common.baselines.Lpips", Near)
    given = ["folder", "--data", album, "--model", "lpips", "--out", tmp_path / "out", *QUICK]
    error = run.fails("--max-pairs", *given, "--max-pairs", "77")
    assert re.search(r"near .* 78 pairs are more than --max-pairs .* allows, 77", error)
    assert run(*given, "--max-pairs", "78") == 0  # 66 pairs of two images, and each with itself


def test_data_may_be_a_pattern_of_manifests(run: Runner, album: Path, model: Path, tmp_path: Path) -> None:
    for name, number in (("a", 0), ("b", 1)):
        lines = [f"{name},album/{name}/{k}.png\n" for k in range(3)]
        (tmp_path / f"part{number}.csv").write_text("identity,path\n" + "".join(lines))
    status, out, _ = run.all("folder", "--data", tmp_path / "part*.csv", "--model", model, "--format", "csv", *QUICK)
    assert status == 0
    assert [row["count"] for row in csv.DictReader(out.splitlines()) if row["metric"] == "mAP"] == ["6"]
    run.fails("no such file or folder", "folder", "--data", tmp_path / "none*.csv", "--model", model)
