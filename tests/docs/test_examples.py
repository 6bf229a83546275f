"""Every file of examples/ runs, and the embedded model does what the README shows."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

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


# faces.py needs the files of two published models; its own tests stand for them. latents.py holds parts of others
WITHOUT_DOWNLOADS = sorted(path for path in EXAMPLES.rglob("*.py") if path.stem not in ("faces", "latents"))


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


class Detector:
    """Stands for YuNet: faces are skin-colored squares, which need room around them."""

    def setInputSize(self, size: tuple[int, int]) -> None:  # OpenCV's name
        self.size = size

    def detect(self, pixels: NDArray[np.uint8]) -> tuple[int, NDArray[np.float32] | None]:
        assert self.size == (pixels.shape[1], pixels.shape[0])
        is_face = (pixels[:, :, 2] > 200) & (pixels[:, :, 0] < 100)  # BGR: much red, little blue
        count, _, boxes, _ = cv2.connectedComponentsWithStats(is_face.astype(np.uint8))
        faces = [[x, y, w, h] for x, y, w, h, _ in boxes[1:] if x and y]
        return count, np.array(faces, np.float32) if faces else None


class Recognizer:
    """Stands for SFace: the mean color of the face, in an array that it writes over."""

    def __init__(self) -> None:
        self.features = np.empty((1, 3), np.float32)

    def alignCrop(self, pixels: NDArray[np.uint8], face: NDArray[np.float32]) -> NDArray[np.uint8]:
        x, y, width, height = face.astype(int)
        return pixels[y : y + height, x : x + width]

    def feature(self, aligned: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.features[:] = aligned.reshape(-1, 3).mean(0)
        return self.features


@pytest.fixture
def faces_example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(cv2.FaceDetectorYN, "create", lambda *_: Detector())
    monkeypatch.setattr(cv2.FaceRecognizerSF, "create", lambda *_: Recognizer())
    return runpy.run_path(str(EXAMPLES / "faces.py"))


ANN, BEN = (250, 180, 90), (210, 60, 20)  # colors of faces


def person(*faces: tuple[tuple[int, int, int], int], size: tuple[int, int] = (100, 80)) -> Image.Image:
    """A blue picture with faces: color and side of each."""
    picture = Image.new("RGB", size, (0, 0, 200))
    for number, (color, side) in enumerate(faces):
        picture.paste(color, (5 + 45 * number, 5, 5 + 45 * number + side, 5 + side))
    return picture


def test_faces_are_the_largest_of_each_image_or_none(faces_example: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    faces = faces_example["Faces"](tmp_path / "model.onnx", tmp_path / "model.onnx")
    filled = Image.new("RGB", (30, 40), ANN)  # found once there is a border
    largest, nothing, filling, alone = faces([person((ANN, 20), (BEN, 30)), person(), filled, person((ANN, 20))])
    assert nothing is None
    assert largest.tolist() == list(BEN[::-1])
    assert filling.tolist() == alone.tolist() == list(ANN[::-1])
    with pytest.raises(FileNotFoundError, match=r"absent\.onnx"):
        faces_example["Faces"](tmp_path / "model.onnx", tmp_path / "absent.onnx")


def test_people_are_matched_by_their_faces(
    faces_example: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    for name, color in (("ann", ANN), ("ben", BEN)):
        person((color, 20)).save(tmp_path / f"{name}.png")
    scene = Image.new("RGB", (300, 80))
    for number, panel in enumerate([person((BEN, 25)), person(), person((ANN, 30))]):
        scene.paste(panel, (100 * number, 0))
    scene.save(tmp_path / "scene.png")
    boxes = "".join(f"scene.png,{left},0,100,80\n" for left in (0, 100, 200))
    (tmp_path / "people.csv").write_text(f"path,x,y,w,h\n{boxes}")

    model = str(tmp_path / "model.onnx")
    subjects = [f"--subject={name}={tmp_path / name}.png" for name in ("ann", "ben")]
    options = [str(tmp_path / "scene.png"), f"--regions={tmp_path / 'people.csv'}", "--threshold=0.01"]
    found = faces_example["main"]([model, model, *subjects, *options])
    assert found.states == [["matched", "matched"]]
    assert [row["region"] for row in found.rows] == [2, 0]
    values = np.asarray(found.table)[0, :, 0]
    assert np.isnan(values[:, 1]).all()  # nobody is there
    assert np.isfinite(values[:, [0, 2]]).all()
    assert "Faces" in capsys.readouterr().out

    person().save(tmp_path / "ben.png")
    with pytest.raises(ValueError, match=r"no face, in the reference .*ben\.png of ben"):
        faces_example["main"]([model, model, *subjects, *options])
    with pytest.raises(SystemExit):
        faces_example["main"](["absent.onnx", model, *subjects, *options])
    assert "absent.onnx: no such file" in capsys.readouterr().err
