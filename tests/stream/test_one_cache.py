"""One folder of embeddings for all commands: what one of them has embedded, the others read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from idmetric.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = {
    "ann/0.png": "mug_a.png",
    "ann/1.png": "mug_b.png",
    "rex/0.png": "box_a.png",
    "rex/1.png": "box_b.png",
}
MODEL = ("--model", "tiny", "--device", "cpu")
COMMANDS: dict[str, tuple[str, ...]] = {
    "gallery": ("gallery", "build", "photos", "--gallery", "gallery"),
    "score": ("score", "--ref", "photos/ann/0.png", "--ref", "photos/ann/1.png", "photos/rex"),
    "folder": ("eval", "folder", "--data", "photos"),
    "generator": (
        "eval",
        "generator",
        "--data",
        "generated",
        "--pattern",
        "{method}/{subject}/{prompt}_{seed}.png",
        "--references",
        "photos",
    ),
    "match": ("match", "--subject", "ann=photos/ann", "photos/rex/0.png", "photos/rex/1.png"),
}


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str]], str]:
    """Run a command among photos that all commands have in common, and return what it says about embeddings."""
    monkeypatch.chdir(tmp_path)
    for name, example in PHOTOS.items():
        for path in (
            Path("photos", name),
            Path("generated", "ours", name.replace("/0", "/a mug_0").replace("/1", "/a mug_1")),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "examples" / "images" / example, path)

    def said(words: Sequence[str]) -> str:
        assert main([*words, *MODEL]) in (0, 1)
        lines = capsys.readouterr().err.splitlines()
        [line] = [line for line in lines if ": embedded " in line and "images" in line and " in " not in line]
        return line.partition(": ")[2]

    return said


@pytest.mark.parametrize("first", [name for name in COMMANDS if name != "gallery"])
def test_what_one_command_embedded_the_others_read(
    first: str, run: Callable[[Sequence[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDMETRIC_CACHE", "kept")
    assert run(COMMANDS[first]).startswith("embedded 4 of ")
    for name in ("score", "folder", "generator", "match"):
        assert run(COMMANDS[name]).startswith("embedded 0 of "), name


def test_a_gallery_is_a_cache(run: Callable[[Sequence[str]], str]) -> None:
    assert run(COMMANDS["gallery"]) == "embedded 4 of 4 images"
    for name in ("score", "folder", "generator", "match"):
        assert run([*COMMANDS[name], "--cache", "gallery"]).startswith("embedded 0 of "), name
