"""`idmetric match`: rows, summary, formats, numbers and errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from idmetric.cli.match import main
from tests.match.scenes import ANN, REX, STRANGER, references, scene


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """References of two subjects, two images, and their boxes as COCO and CSV files."""
    root = tmp_path_factory.mktemp("match")
    for name, badge in (("ann", ANN), ("rex", REX)):
        (root / name).mkdir()
        for number, photo in enumerate(references(badge, 5)):
            photo.save(root / name / f"{number}.png")
    (root / "images").mkdir()
    coco: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": []}
    lines = ["path,x,y,w,h"]
    for number, badges in enumerate([(ANN, REX), (ANN, STRANGER)]):
        picture, boxes = scene(badges, number)
        picture.save(root / "images" / f"{number}.png")
        coco["images"].append(
            {"id": number, "file_name": f"{number}.png", "width": picture.width, "height": picture.height}
        )
        for left, top, right, bottom in boxes:
            box = [left, top, right - left, bottom - top]
            coco["annotations"].append({"id": len(lines), "image_id": number, "bbox": box})
            lines.append(",".join([f"images/{number}.png", *map(str, box)]))
    (root / "boxes.json").write_text(json.dumps(coco))
    (root / "boxes.csv").write_text("\n".join(lines))
    return root


def run(folder: Path, *words: str) -> int:
    subjects = [f"--subject=ann={folder / 'ann'}", f"--subject=rex={folder / 'rex'}"]
    return main(["--model", "tiny", "--threshold", "0.25", "--quiet", *subjects, str(folder / "images"), *words])


@pytest.mark.parametrize("regions", ["boxes.json", "boxes.csv"])
def test_rows_of_each_image_and_subject(folder: Path, regions: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--regions", str(folder / regions), "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["subject"], row["state"], row["region"]) for row in rows] == [
        ("ann", "matched", "0"),
        ("rex", "matched", "1"),
        ("ann", "matched", "0"),
        ("rex", "missing", "1"),
    ]
    assert [row["distance"] == "" for row in rows] == [False, False, False, True]


def test_json_has_summary_worst_and_published_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--regions", str(folder / "boxes.json"), "--format", "json", "--published", "xverse-ip,nexus:corrected")
    assert run(folder, *words) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["coverage"] for row in content["summary"]] == [1.0, 0.5, 0.75]
    assert content["worst"]["subject"] == "rex"
    assert content["signature"]["missing"] == "missing"
    ip, nexus = content["published"]
    best = [1 - row["nearest"] for row in content["rows"]]
    assert ip["value"] == pytest.approx(100 * sum(best) / 4, abs=0.5)  # a subject's region is also its best one here
    assert nexus["form"] == "corrected"


def test_html_writes_a_page(folder: Path, tmp_path: Path) -> None:
    assert run(folder, "--regions", str(folder / "boxes.json"), "--html", str(tmp_path / "page.html")) == 0
    assert "missing; nearest region at" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_table_ends_with_the_signature(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--regions", str(folder / "boxes.json")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["subject", "state", "distance", "nearest", "region", "image"]
    assert lines[-1].startswith("model=IDSim:tiny")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--regions", "no.json"], "cannot read regions no.json"),
        (["--published", "xverse"], "did you mean 'xverse-ip'"),
        (["--published", "umo-reward:corrected"], "no form 'corrected'"),
        (["--subject", "rex"], "write NAME=PATH"),
        (["--subject", "ann=other"], "two subjects are called 'ann'"),
    ],
)
def test_wrong_usage(folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(folder, *words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_an_image_with_a_box_outside_can_be_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = folder / "outside.csv"
    table.write_text("path,x,y,w,h\n0.png,0,0,9999,10\n1.png,0,0,112,112\n")
    assert run(folder, "--regions", str(table), "--format", "jsonl") == 1
    assert "lies outside" in capsys.readouterr().err
    assert run(folder, "--regions", str(table), "--format", "jsonl", "--on-error", "skip") == 4
    printed = capsys.readouterr()
    assert "skipped" in printed.err
    assert {json.loads(line)["image"][-5:] for line in printed.out.splitlines()} == {"1.png"}
