"""The sample pages of the documentation, made at each build: of images in examples/ and of rendered generators."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

NAME, GENERATOR = "sample-report.html", "sample-generator.html"
ROOT = Path(__file__).resolve().parents[2]
REFERENCES = ("mug_a", "mug_b")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site."""
    from mkdocs.structure.files import File

    for name, content in ((NAME, report()), (GENERATOR, generators())):
        files.append(File.generated(config, name, content=content))
    return files


@cache  # `mkdocs serve` builds again and again
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


@cache
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
        raise RuntimeError(f"scripts/docs/sample_report.py:\n{done.stderr}")
    return Path(folder, name).read_text(encoding="utf-8")
