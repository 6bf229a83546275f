"""Frames of clips that have boxes alone, with masks that SAM draws of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric.cli.data import main
from idmetric.data.frames.choose import SAMPLINGS
from idmetric.data.frames.sam import SEGMENTER, Sam
from idmetric.data.manifest import read
from idmetric.metric.errors import CheckpointError
from idmetric.metric.masks import read_mask
from tests import diffusion_parts as parts

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def noise(seed: int = 0, size: tuple[int, int] = (60, 40)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def lasot(root: Path) -> Path:
    """A clip of airplanes in LaSOT's layout, 7 seconds long at 1 frame per second."""
    folder = root / "airplane" / "airplane-1"
    (folder / "img").mkdir(parents=True)
    for k in range(14):
        noise(k).save(folder / "img" / f"{k + 1:08}.jpg")
    (folder / "groundtruth.txt").write_text("10,8,40,24\n" * 14)
    return root


def words(root: Path, out: Path, *more: Any) -> list[str]:
    given = ("frames", root, "--sampling", "lasot", "--device", "cpu")
    return [str(x) for x in (*given, "--category-level", 1, "-o", out, "--quiet", *more)]


@pytest.fixture(autouse=True)
def slow_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames a second, all annotated, and objects of any size."""
    few = replace(SAMPLINGS["lasot"], fps=2, stride=1, coverage=(0.01, 0.99))
    monkeypatch.setitem(SAMPLINGS, "lasot", few)


def test_frames_of_lasot_get_masks_of_their_boxes(tmp_path: Path) -> None:
    root, out = lasot(tmp_path / "LaSOT"), tmp_path / "out.parquet"
    assert main(words(root, out, "--segment", parts.saved() / "sam2")) == 0
    table, sam = read(out), Sam(SEGMENTER.at(str(parts.saved() / "sam2")), "cpu")
    assert set(table["category"]) == {"airplane"}
    assert len(table) == 6  # Table 4
    for row in table.itertuples():
        frame = root / "airplane" / "airplane-1" / "img" / f"{int(row.frame) + 1:08}.jpg"
        expected = sam.mask(Image.open(frame).convert("RGB"), (10, 8, 50, 32))
        assert np.array_equal(read_mask(row.mask).numpy() > 0, expected)
        assert row.coverage == pytest.approx(expected.mean())
        assert '"sam2#' in row.parameters


def test_got10k_names_the_class_of_each_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAMPLINGS, "got10k", replace(SAMPLINGS["got10k"], coverage=(0, 1)))
    folder, out = tmp_path / "GOT-10k" / "GOT-10k_Train_000001", tmp_path / "out.parquet"
    folder.mkdir(parents=True)
    for k in range(20):
        noise(k).save(folder / f"{k + 1:08}.jpg")
    (folder / "groundtruth.txt").write_text("10,8,40,24\n" * 20)
    (folder / "meta_info.ini").write_text("[METAINFO]\nanno_fps: 10Hz\nobject_class: bird\nmotion_class: flying\n")
    given = ["frames", tmp_path / "GOT-10k", "--sampling", "got10k", "--segment", parts.saved() / "sam2", "-o", out]
    assert main([*map(str, given), "--device", "cpu", "--quiet"]) == 0
    assert read(out)["category"].tolist() == ["bird"] * 2  # one frame of each second


def test_wrong_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = lasot(tmp_path / "LaSOT"), tmp_path / "out.parquet"
    for option, value in (("--workers", 2), ("--masks", root)):
        assert main(words(root, out, "--segment", option, value)) == 1
        assert option in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty"):
        Sam(SEGMENTER.at(str(tmp_path / "empty")), "cpu").mask(noise(), (0, 0, 5, 5))
