"""How frames were chosen: part of the signature, and published numbers take the frames of their source or say so."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric import Clip, IDSim, consistency, match
from idmetric.cli.match import main
from idmetric.matching.named import FRAMES, PUBLISHED
from tests.clip_files import write_video
from tests.matching.films import film
from tests.matching.scenes import ANN, REX

COUNT = 40
NOT_ALL = "not comparable: the source takes all frames"


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four seconds at ten frames a second."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    return str(write_video(path, film([(ANN, REX)] * COUNT), fps=10))


@pytest.mark.parametrize(("frames", "is_comparable"), [("2fps", False), (16, False), (4, False), ("all", True)])
def test_vbench_takes_all_frames_or_is_not_comparable(
    metric: IDSim, clip: str, frames: Any, is_comparable: bool
) -> None:
    result = consistency(metric, clip, frames=frames)
    assert result.signature["frames"] == str(frames)
    assert f"frames={frames}" in result.to_table().split()
    for name in ("vbench-subject", "vbench-long", "freeinit"):
        if name == "vbench-long" and not is_comparable:
            continue  # it needs a frame or more of each second
        value = result.published(name)
        assert value.used.endswith(f", frames {frames}")
        assert (value.not_comparable == "") == is_comparable
        assert (NOT_ALL in str(value)) != is_comparable
        (number,) = json.loads(result.to_json([value]))["published"]
        assert number["not_comparable"] == ("" if is_comparable else "the source takes all frames")


def test_one_clip_has_four_numbers_by_four_choices_of_frames(
    metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clip of docs/tutorials/video.md; three of the four say that they are not comparable."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "tutorials" / "video.md").read_text(encoding="utf-8")
    script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    shutil.copytree(root / "examples" / "images", tmp_path / "examples" / "images")
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "video.md", "exec"), {})
    expected = {"2fps": 0.8862, "16": 0.9245, "4": 0.9383, "all": 0.9425}
    for frames, value in expected.items():
        number = consistency(metric, "clip.mp4", frames=frames).published("vbench-subject")
        assert number.value == pytest.approx(value, abs=5e-3)  # decoders differ a little
        assert bool(number.not_comparable) == (frames != "all")


def test_as_many_frames_as_a_clip_has_are_all_frames(metric: IDSim, clip: str) -> None:
    assert consistency(metric, clip, frames=COUNT).published("freeinit").not_comparable == ""
    assert consistency(metric, clip, frames=COUNT - 1).published("freeinit").not_comparable
    assert consistency(metric, clip, frames="10fps").published("freeinit").not_comparable == ""


def colors(count: int, offset: int = 0) -> list[Image.Image]:
    return [Image.new("RGB", (16, 16), (250, 3 * number + offset, 0)) for number in range(count)]


def mean_color(images: list[Image.Image]) -> Any:
    return np.stack([np.asarray(image, float).reshape(-1, 3).mean(0) for image in images])


@pytest.mark.parametrize(("frames", "is_comparable"), [("all", False), (16, False), (32, True)])
def test_nexus_takes_32_frames(metric: IDSim, frames: Any, is_comparable: bool) -> None:
    found = match(metric, {"red": colors(1)}, Clip(colors(70)), frames=frames, encoders={"red": mean_color})
    expected = "" if is_comparable else "the source takes 32 frames at equal distances"
    assert found.published("nexus").not_comparable == expected
    assert (found.published("msrvtt-subject").not_comparable == "") == (frames == "all")
    assert found.published("xverse-ip").not_comparable == ""
    assert {row["frames"] for row in found.rows} == {str(frames)}


def test_one_clip_with_fewer_frames_makes_the_number_not_comparable(metric: IDSim) -> None:
    short, long = Clip(colors(8), name="short"), Clip(colors(30), name="long")
    assert consistency(metric, short, frames=16).published("freeinit").not_comparable == ""
    assert consistency(metric, [short, long], frames=16).published("freeinit").not_comparable


def test_still_images_and_grids_have_all_that_there_is(metric: IDSim, tmp_path: Path) -> None:
    stills = consistency(metric, colors(3))
    assert "frames" not in stills.signature
    assert stills.published("freeinit").not_comparable == ""
    picture = Image.new("RGB", (64, 16))
    for number, color in enumerate(colors(4)):
        picture.paste(color, (16 * number, 0))
    picture.save(tmp_path / "story.png")
    panels = consistency(metric, Clip(tmp_path / "story.png", grid=(1, 4)), frames=2)
    assert panels.signature["frames"] == "all"
    assert panels.published("freeinit").not_comparable == ""


def test_sources_of_clips_have_a_known_choice_of_frames() -> None:
    rules = {name: number.frames for name, number in PUBLISHED.items() if number.frames}
    assert rules == {
        "nexus": "32",
        "msrvtt-subject": "all",
        "vbench-subject": "all",
        "vbench-i2v": "all",
        "vbench-long": "all",
        "freeinit": "all",
    }
    assert set(rules.values()) == set(FRAMES)


def test_the_command_takes_the_frames_of_the_published_number(clip: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "tiny", clip, "--quiet"]
    assert main([*words, "--published", "vbench-subject,freeinit"]) == 0
    output = capsys.readouterr().out
    assert "frames=all" in output.split()
    assert "not comparable" not in output
    assert main([*words, "--published", "vbench-subject", "--frames", "4"]) == 0
    assert f", {NOT_ALL} (Vchitect" in capsys.readouterr().out
    assert main(words) == 0
    assert "frames=16" in capsys.readouterr().out.split()
