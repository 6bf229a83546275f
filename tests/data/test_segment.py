"""Masks of boxes by Segment Anything, and frames that are chosen by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric.cli.data import main
from idmetric.data.frames.choose import SAMPLINGS
from idmetric.data.frames.segment import SAM, Segmenter
from idmetric.data.generate.weights import Place, WeightsError
from idmetric.data.manifest.table import read
from tests import diffusion_parts as parts

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
CPU = Place("cpu", "float32")


@pytest.fixture(scope="module")
def segmenter() -> Segmenter:
    return Segmenter(CPU, SAM.at(str(parts.saved() / "sam")))


def noise(seed: int = 0, size: tuple[int, int] = (60, 40)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def test_a_mask_is_that_of_the_model_by_hand(segmenter: Segmenter) -> None:
    """Padding and resizing by hand: 60x40 becomes 64x43 of 64x64, and the logits go the same way back."""
    processor, model = segmenter.model
    image, (left, top, width, height) = noise(), (5.0, 6.0, 30.0, 20.0)
    pixels = processor(images=image, return_tensors="pt")["pixel_values"]
    across, down = 64 / 60, 43 / 40
    box = torch.tensor([[[left * across, top * down, (left + width) * across, (top + height) * down]]])
    with torch.inference_mode():
        logits = model(pixel_values=pixels, input_boxes=box, multimask_output=False).pred_masks[0]
    large = torch.nn.functional.interpolate(logits, (64, 64), mode="bilinear", align_corners=False)[..., :43, :64]
    own = torch.nn.functional.interpolate(large, (40, 60), mode="bilinear", align_corners=False)[0, 0] > 0
    found = segmenter.mask(image, (left, top, width, height))
    assert (found.shape, found.dtype) == ((40, 60), bool)
    assert (found == own.numpy()).mean() > 0.995
    assert 0 < found.mean() < 1


def lasot(root: Path, box: str = "10,8,40,24") -> Path:
    """A clip of airplanes in LaSOT's layout, 7 seconds long at 1 frame per second."""
    folder = root / "airplane" / "airplane-1"
    (folder / "img").mkdir(parents=True)
    for k in range(14):
        noise(k).save(folder / "img" / f"{k + 1:08}.jpg")
    (folder / "groundtruth.txt").write_text(f"{box}\n" * 14)
    return root


def words(root: Path, out: Path, *more: Any) -> list[str]:
    given = ("frames", root, "--sampling", "lasot", "--rate", 2, "--annotation", "boxes")
    return [str(x) for x in (*given, "--category-level", 1, "-o", out, "--quiet", *more)]


@pytest.fixture(autouse=True)
def slow_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames a second, all annotated, and objects of any size."""
    few = replace(SAMPLINGS["lasot"], fps=2, stride=1, coverage=(0.01, 0.99))
    monkeypatch.setitem(SAMPLINGS, "lasot", few)


def test_frames_of_lasot_get_masks_of_their_boxes(tmp_path: Path, segmenter: Segmenter) -> None:
    root, out = lasot(tmp_path / "LaSOT"), tmp_path / "out.parquet"
    assert main(words(root, out, "--segment", parts.saved() / "sam", "--device", "cpu")) == 0
    made = read(out)
    assert set(made.column("category")) == {"airplane"}
    assert len(made) == 6  # Table 4
    for k, row in enumerate(made):
        frame = root / "airplane" / "airplane-1" / "img" / f"{int(made.column('x_frame')[k]) + 1:08}.jpg"
        expected = segmenter.mask(Image.open(frame).convert("RGB"), (10, 8, 40, 24))
        mask = made.mask(k)
        assert mask is not None
        assert (mask.numpy() == expected).all()
        assert made.column("x_coverage")[k] == pytest.approx(expected.mean())
        assert "sam" in (row.parameters or {})["segmenter"]


def test_without_a_segmenter_boxes_give_no_masks(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert main(words(lasot(tmp_path / "LaSOT"), out)) == 0
    made = read(out)
    assert set(made.column("mask")) == {None}
    assert "segmenter" not in (made[0].parameters or {})


def test_got10k_names_the_class_of_each_clip(tmp_path: Path) -> None:
    folder, out = tmp_path / "GOT-10k" / "GOT-10k_Train_000001", tmp_path / "out.parquet"
    folder.mkdir(parents=True)
    for k in range(40):
        noise(k).save(folder / f"{k + 1:08}.jpg")
    (folder / "groundtruth.txt").write_text("10,8,40,24\n" * 40)
    (folder / "meta_info.ini").write_text("[METAINFO]\nanno_fps: 10Hz\nobject_class: bird\nmotion_class: flying\n")
    given = ["frames", tmp_path / "GOT-10k", "--sampling", "got10k", "--annotation", "boxes", "-o", out, "--quiet"]
    assert main([str(x) for x in given]) == 0
    assert read(out).column("category") == ["bird"] * 4  # one frame of each second


def test_wrong_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = lasot(tmp_path / "LaSOT"), tmp_path / "out.parquet"
    for more, message in (
        (("--device", "cpu"), "with --segment alone"),
        (("--segment", "--workers", 2), "in one process"),
        (("--segment", "--annotation", "none"), "add --annotation boxes"),
    ):
        assert main(words(root, out, *more)) != 0
        assert message in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match="as SamModel"):
        Segmenter(CPU, SAM.at(str(tmp_path / "empty"))).mask(noise(), (0, 0, 5, 5))
