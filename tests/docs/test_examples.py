"""Every file of examples/ runs, and the embedded model does what the README shows."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from idmetric import IDSim
from idmetric.metric.idsim import TINY

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
IMAGES = EXAMPLES / "images"


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_prints_its_help(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    monkeypatch.syspath_prepend(EXAMPLES)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(path), run_name="__main__")
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {path.name}")


@pytest.mark.parametrize("name", ["dreambooth_lora", "guided_sampling"])
def test_help_of_a_diffusion_example_does_not_load_diffusers(name: str) -> None:
    code = (
        f"import runpy, sys\nsys.argv = ['x', '--help']\nsys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"try: runpy.run_path({str(EXAMPLES / f'{name}.py')!r}, run_name='__main__')\n"
        "except SystemExit: sys.exit('diffusers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_optimizing_pixels_lowers_the_distance(capsys: pytest.CaptureFixture[str]) -> None:
    distances = runpy.run_path(str(EXAMPLES / "optimize_pixels.py"))["main"](steps=25)
    assert distances[-1] < 0.5 * distances[0]
    assert "step 0: distance" in capsys.readouterr().out


def test_the_embedded_model_is_small_and_offline(tiny: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the embedded model asked for a download")

    for function in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, function, forbidden)
    assert sum(p.stat().st_size for p in TINY.iterdir()) <= 12e6
    again = IDSim("tiny", device="cpu")
    files = sorted(IMAGES.glob("*.png"))
    assert again.pairwise(files).equal(tiny.pairwise(files))
    assert again.name == "tiny"


# latents.py holds parts of others
WITHOUT_DOWNLOADS = sorted(path for path in EXAMPLES.rglob("*.py") if path.stem != "latents")


@pytest.mark.slow
@pytest.mark.parametrize("path", WITHOUT_DOWNLOADS, ids=lambda path: path.stem)
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
