"""A page of scores to look at: made by the command itself, of pictures with difficult names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from PIL import Image

from idmetric import load
from idmetric.cli.score import main
from idmetric.scoring.calibration import Calibration, Isotonic
from tests.conftest import random_model

# Windows would not have such files; where they are, none may become part of the page
NAMES = ("<script>alert(1)</script>", "a 'quoted' \"name\" & more", "</script ><img src=x onerror=alert(2)>",
         "{{ 7 * 7 }}", "umlaut-ä-字", "sample2", "sample10")  # fmt: skip


def picture(seed: int, size: tuple[int, int] = (60, 40)) -> Image.Image:
    """Blots, without two alike."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def make_folder(root: Path) -> Path:
    """A model and its calibration, three references, seven images, a copy, and two that cannot be read."""
    random_model("dinov3").save_pretrained(root / "model")
    calibration = Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), load(root / "model", device="cpu").calibration_id(), "cls", name="model",
        thresholds=({"false_accept_rate": 0.05, "distance": 0.125},),
    )  # fmt: skip
    calibration.write(root / "calibration.json")
    (root / "gen").mkdir()
    for k in range(3):
        picture(k).save(root / f"ref{k}.png")
    for k, name in enumerate(NAMES):
        path = root / "gen" / f"{name}.png"  # "</" is a folder called "<"
        path.parent.mkdir(exist_ok=True)
        picture(10 + k).save(path)
    detailed = Image.fromarray(np.random.default_rng(5).integers(0, 256, (24, 24, 3), dtype=np.uint8))
    detailed.resize((96, 96), Image.Resampling.BICUBIC).save(root / "ref2.png")
    Image.open(root / "ref2.png").resize((90, 90)).save(root / "gen" / "copied.png")
    (root / "gen" / "<b>broken<b>.png").write_bytes(b"no picture")
    (root / "gen" / "cut.png").write_bytes((root / "ref0.png").read_bytes()[:60])
    return root


def make_photos(root: Path, names: Sequence[str]) -> Path:
    """A folder of three photos for each name, to evaluate models on."""
    for k, name in enumerate(names):
        (root / "photos" / name).mkdir(parents=True)
        for n in range(3):
            picture(20 * k + n).save(root / "photos" / name / f"{n}.png")
    return root / "photos"


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The current folder."""
    import os

    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


REFERENCES = ("--ref", "ref0.png", "--ref", "ref1.png", "--ref", "ref2.png")
EVERYTHING = (*REFERENCES, "gen", "--on-error", "skip", "--calibration", "calibration.json")


def score(folder: Path, *given: str) -> tuple[int, str]:
    """Exit status and stdout of the command in that folder, with its model."""
    out = StringIO()
    with inside(folder), redirect_stdout(out):
        status = main(["--model", "model", "--device", "cpu", *given])
    return status, out.getvalue()
