"""The sample pages of the site: scores of the images in examples/, and rendered generators."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME, GENERATOR = "sample-report.html", "sample-generator.html"
ROOT = Path(__file__).resolve().parents[2]
REFERENCES = ("mug_a", "mug_b")


def report() -> str:
    """Photos of a mug as references; the rest of the images and a copy of one reference as generated images."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        photos, generated = Path(folder, "photos"), Path(folder, "generated")
        photos.mkdir()
        generated.mkdir()
        for path in sorted((ROOT / "examples" / "images").glob("*.png")):
            shutil.copy(path, photos if path.stem in REFERENCES else generated)
        with Image.open(photos / "mug_a.png") as copied:
            copied.convert("RGB").resize((192, 192)).save(generated / "mug_copied.jpg")

        return _written(folder, NAME, "score", "--ref", "photos/", "generated/")


def generators() -> str:
    """The rendered example of `idmetric eval generator`."""
    with tempfile.TemporaryDirectory() as folder:
        return _written(folder, GENERATOR, "eval", "generator", "--out", "results", "--quiet")


def _written(folder: str, name: str, *words: str) -> str:
    """The page that a command writes in this folder."""
    command = [sys.executable, "-m", "idmetric.cli.main", *words, "--model", "tiny", "--device", "cpu", "--html", name]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"docs/scripts/sample_report.py:\n{done.stderr}")
    return Path(folder, name).read_text(encoding="utf-8")


def main(folder: Path) -> None:
    """Write both pages into a folder."""
    (folder / NAME).write_text(report(), encoding="utf-8")
    (folder / GENERATOR).write_text(generators(), encoding="utf-8")
