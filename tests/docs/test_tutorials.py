"""The tutorials of `match` run from their first to their last block, and print what they show."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from idmetric import IDSim, load
from idmetric.cli.main import main
from idmetric.data.painter import Painter
from tests.docs.test_pages import numbered

ROOT = Path(__file__).resolve().parents[2]
NOT_THERE = ("photos/", "page.png")  # files that only a reader has


def printed_as_shown(shown: str, printed: str) -> None:
    """Each line that a page shows is the beginning of a printed line; decimals may differ by the decoder's version."""
    lines = [numbered(line) for line in printed.splitlines()]
    for line in shown.splitlines():
        words, numbers = numbered(line)
        alike = [found for found_words, found in lines if found_words[: len(words)] == words]
        close = [found for found in alike if found[: len(numbers)] == pytest.approx(numbers, abs=0.02)]
        assert close or words == ["..."] or not words, f"{line}\nis not in\n{printed}"


@pytest.mark.parametrize("name", ["several-subjects", "video", "stories"])
def test_a_tutorial_runs_and_prints_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("av", "jinja2", "scipy"):
        pytest.importorskip(module)
    shutil.copytree(ROOT / "examples" / "images", tmp_path / "examples" / "images")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120  # three screens

    names: dict[str, Any] = {}
    printed, shown_count = "", 0
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.S | re.M):
        if language == "python":
            exec(compile(block, name, "exec"), names)
            printed += capsys.readouterr().out
        elif language == "bash":
            for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
                if not any(path in line for path in NOT_THERE):
                    assert main([*shlex.split(line)[1:], "--device", "cpu", "--quiet"]) == 0, line
            printed += capsys.readouterr().out
        else:
            printed_as_shown(block, printed)
            shown_count += 1
    assert shown_count >= 2


def test_a_folder_of_photos_becomes_a_model_by_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/train/own-photos.md, from the folder to the model in use, with 2 steps on painted subjects."""
    monkeypatch.chdir(tmp_path)
    painted = Painter(size=64, views=2).paint(tmp_path / "painted", 8)
    for number in range(len(painted)):
        photo = tmp_path / "photos" / painted["identity"][number].replace("/", "-") / f"{number}.jpg"
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.open(painted["path"][number]).convert("RGB").save(photo)
    shutil.copy(ROOT / "examples" / "images" / "mug_a.png", "reference.jpg")
    shutil.copy(ROOT / "examples" / "images" / "mug_b.png", "candidate.jpg")
    shutil.copytree(tmp_path / "photos" / photo.parent.name, "generated")

    text = (ROOT / "docs" / "train" / "own-photos.md").read_text(encoding="utf-8")
    ran = []
    for language, block in re.findall(
        r"^```(\w+)\n(.*?)^```", text.partition("## Other encoders")[0], flags=re.S | re.M
    ):
        if language == "python":
            exec(compile(block, "own-photos", "exec"), {})
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines() if language == "bash" else ():
            words = shlex.split(line)[1:]
            if words[0] == "train":
                words += ["--images", "2", "--epochs", "2", "--workers", "0", "--classes", "5"]
            assert main(words) == 0, line
            ran.append(words[0])
    assert ran == ["data", "data", "train", "eval", "score"]
    printed = capsys.readouterr().out
    assert re.search(r"^tiny .*^run", printed, flags=re.S | re.M)
    assert isinstance(load("run/", device="cpu"), IDSim)


@pytest.mark.slow
def test_training_heads_on_photos_beats_the_start_on_subjects_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of docs/train/own-photos.md on garments: mAP and AUC rise by .02 at least on 60 held-out ones."""
    garments = ROOT.parent / "shared" / "data" / "dev" / "fashion"
    if not garments.is_dir():
        pytest.skip(f"no photos in {garments}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(garments)
    text = (ROOT / "docs" / "train" / "own-photos.md").read_text(encoding="utf-8")
    lines = re.sub(r"\s*\\\n\s*", " ", text.partition("## Use it")[0]).splitlines()
    for line in lines:
        if line.startswith("idmetric "):
            words = shlex.split(line)[1:]
            if words[:2] == ["data", "split"]:
                words += ["--seed", "1"]
            assert main(words) == 0, line
    results = json.loads((tmp_path / "results" / "folder.json").read_text())["results"]
    start, trained = (result["rows"][0]["metrics"] for result in results)
    for name in ("mAP", "AUC"):
        assert trained[name]["value"] > start[name]["value"] + 0.02
