"""Every file of examples/ runs, and the embedded model does what the README shows."""

from __future__ import annotations

import re
import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim
from idmetric.metric.models.tiny import TINY

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
IMAGES = EXAMPLES / "images"
WORLD = EXAMPLES.parent / "benchmarks" / "world"


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


def test_optimizing_pixels_lowers_the_distance(capsys: pytest.CaptureFixture[str]) -> None:
    distances = runpy.run_path(str(EXAMPLES / "optimize_pixels.py"))["main"](steps=25)
    assert distances[-1] < 0.5 * distances[0]
    assert "step 0: distance" in capsys.readouterr().out


def test_the_images_are_what_the_script_renders(tmp_path: Path) -> None:
    made = runpy.run_path(str(WORLD / "make_images.py"))["main"](tmp_path)
    assert sorted(p.name for p in made) == sorted(p.name for p in IMAGES.glob("*.png"))
    for path in made:
        kept = np.asarray(Image.open(IMAGES / path.name)).astype(int)
        difference = np.abs(kept - np.asarray(Image.open(path)))
        assert np.quantile(difference, 0.99) <= 2, path.name  # fonts and rounding may differ by a few pixels


def test_the_embedded_model_is_small_and_offline(tiny: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the embedded model asked for a download")

    for function in ("hf_hub_download", "get_hf_file_metadata"):
        monkeypatch.setattr(huggingface_hub, function, forbidden)
    assert sum(p.stat().st_size for p in TINY.iterdir()) <= 12e6
    again = IDSim("tiny", device="cpu")
    files = sorted(IMAGES.glob("*.png"))
    assert again.pairwise(files).equal(tiny.pairwise(files))
    assert again.name == "tiny"


def test_the_contact_sheet_is_drawn(tmp_path: Path) -> None:
    sheet = runpy.run_path(str(WORLD / "contact_sheet.py"))
    sheet["main"](tmp_path / "sheet.png", rows=2, size=48)
    with Image.open(tmp_path / "sheet.png") as drawn:
        assert drawn.size == (48 * len(sheet["TITLES"]), 18 + 2 * 48)
        assert np.asarray(drawn)[18:].std() > 20


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs_alone_with_smoke(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "from latents import" in path.read_text(encoding="utf-8"):
        pytest.importorskip("diffusers")
        pytest.importorskip("peft")
    before = {file: file.stat().st_mtime_ns for file in EXAMPLES.rglob("*.png")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as Python does for a script
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(path), "--smoke"])
    runpy.run_path(str(path), run_name="__main__")
    assert not re.search(r"\bnan\b", capsys.readouterr().out)
    assert all(file.name.startswith("idmetric-") for file in tmp_path.iterdir())
    assert {file: file.stat().st_mtime_ns for file in EXAMPLES.rglob("*.png")} == before
