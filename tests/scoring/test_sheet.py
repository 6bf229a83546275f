"""The page of `idmetric score --html`: its numbers, verdicts and pictures."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim
from idmetric import score as score_images
from tests.report_parts import EVERYTHING, NAMES, make_folder, score
from tests.test_page import Tags

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("sheet"))


def page_of(folder: Path, *given: str) -> tuple[Tags, dict[str, Any]]:
    """The page of a run, and what the command printed."""
    _, out = score(folder, *given, "--format", "json", "--html", "page.html")
    return Tags((folder / "page.html").read_text(encoding="utf-8")), json.loads(out)


def pixels(tags: Tags, name: str) -> np.ndarray[Any, Any]:
    """The picture of this name."""
    [uri] = [img["src"] for img in tags.all("img") if img["alt"] == name]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def test_the_page_has_the_numbers_of_json_and_one_verdict_for_each_image(folder: Path) -> None:
    tags, printed = page_of(folder, *EVERYTHING)
    cards = tags.visible.split("Images, the nearest first")[1].split("Left out")[0]
    assert len(printed["rows"]) == len(NAMES) + 1
    for row in printed["rows"]:
        verdict = "copy" if row["copy"] else row["answer"]
        assert f"{row['distance']:.4f} {verdict} {row['image']}" in cards
    assert cards.count(" copy gen") == 1

    summary, new = printed["summary"], printed["summary"]["without_copies"]
    assert f"all images{summary['n']}{summary['mean']:.4f}{summary['std']:.4f}" in tags.visible
    assert f"without copies{new['n']}{new['mean']:.4f}{new['std']:.4f}" in tags.visible
    for text in (*printed["signature"].values(), *printed["skipped"].values()):
        assert str(text) in tags.visible
    assert f"mean {summary['real_mean']:.4f}, max {summary['real_max']:.4f}" in tags.visible
    for name, distance in printed["real"].items():
        assert f"{distance:.4f} {name}" in tags.visible
    assert "copied.png repeats the pixels of ref2.png" in tags.visible
    assert tags.visible.count("by a calibration on") == 1


def test_a_threshold_judges_the_cards_and_has_a_slider(folder: Path) -> None:
    tags, printed = page_of(folder, *EVERYTHING, "--threshold", "0.125")
    cards = tags.visible.split("Images, the nearest first")[1].split("Left out")[0]
    for row in printed["rows"]:
        verdict = "copy" if row["copy"] else "pass" if row["distance"] <= 0.125 else "fail"
        assert f"{row['distance']:.4f} {verdict} {row['image']}" in cards
    [start] = [button for button in tags.all("button") if button["id"] == "start"]
    assert (start["value"], start["data-source"]) == ("0.125", "option --threshold")


def test_without_a_threshold_and_a_calibration_nothing_is_judged(folder: Path) -> None:
    tags, _ = page_of(folder, "ref0.png", "gen/sample2.png")
    assert not [
        attributes for _, attributes in tags.tags if "data-value" in attributes or attributes.get("id") == "start"
    ]
    assert "idmetric eval calibrate" in tags.visible


def test_a_reference_among_the_images_is_no_copy(folder: Path, tmp_path: Path) -> None:
    reference = str(folder / "ref2.png")
    images = [reference, str(folder / "gen" / "copied.png")]
    scores = score_images(IDSim("tiny", device="cpu"), reference, images, include_references=True)
    scores.write(tmp_path / "page.html")
    cards = Tags((tmp_path / "page.html").read_text(encoding="utf-8")).visible.split("Images, the nearest first")[1]
    assert [cards.count(f" {verdict} ") for verdict in ("the reference", "copy")] == [1, 1]


def test_pairs_keep_each_its_reference(folder: Path) -> None:
    (folder / "pairs.csv").write_text("a,b\nref0.png,gen/sample2.png\nref1.png,gen/sample2.png\nref0.png,ref1.png\n")
    tags, printed = page_of(folder, "--pairs", "pairs.csv")
    rows = sorted(printed["rows"], key=lambda row: row["rank"])  # printed in the order of the file
    beside = [span["aria-label"] for span in tags.all("span") if "beside" in span.get("class", "")]
    assert beside == [row["reference"] for row in rows]
    assert [img["alt"] for img in tags.all("img")] == [row["image"] for row in rows]


def test_pictures_show_what_the_model_saw(folder: Path) -> None:
    mask = np.zeros((40, 60), np.uint8)
    mask[:20, :30] = 255
    (folder / "masks").mkdir()
    for name in ("ref0", "sample2"):
        Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    masked, _ = page_of(folder, "ref0.png", "gen/sample2.png", "--mask-dir", "masks")
    assert pixels(masked, "ref0.png")[-8:, -8:].max() < 30  # black outside the subject


def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("absent/page.html", "gen"):
        assert score(folder, "ref0.png", "gen/sample2.png", "--html", place) == (1, "")
        assert repr(place) in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        score(folder, "ref0.png", "gen/sample2.png", "--html", "x.html", "--output", "./x.html")
    assert stop.value.code == 2
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert score(folder, "ref0.png", "gen/sample2.png", "--html", "x.html") == (1, "")
    assert "jinja2" in capsys.readouterr().err
    assert not (folder / "x.html").exists()


@pytest.mark.parametrize("aggregate", ["best", "mean"])
def test_the_page_is_written_from_a_result_whose_files_may_be_gone(
    folder: Path, tmp_path: Path, aggregate: Any
) -> None:
    gone = tmp_path / "gone.png"
    Image.open(folder / "ref0.png").save(gone)
    references = [str(folder / f"ref{number}.png") for number in range(2)]
    scores = score_images(
        IDSim("tiny", device="cpu"), references, [str(gone), str(folder / "ref2.png")], aggregate=aggregate
    )
    gone.unlink()
    scores.write(tmp_path / "page.html")
    tags = Tags((tmp_path / "page.html").read_text(encoding="utf-8"))
    for row in scores.rows:
        assert f"{row['distance']:.4f}" in tags.visible
    assert "no picture" in tags.visible
    assert {Path(img["alt"]).name for img in tags.all("img")} >= {"ref0.png", "ref2.png"}
