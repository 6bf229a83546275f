"""`idmetric match`: rows in each format, the page, clips and casts, what is refused, and a full disk."""

from __future__ import annotations

import csv
import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from idmetric.cli.match import build_parser, main
from tests.clip_files import write_video
from tests.matching.films import film, sound
from tests.matching.scenes import ANN, REX, STRANGER, references, scene


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """References of two subjects, two images, their boxes as COCO and CSV files, and a clip."""
    root = tmp_path_factory.mktemp("match")
    for name, badge in (("ann", ANN), ("rex", REX)):
        (root / name).mkdir()
        for number, photo in enumerate(references(badge, 5)):
            photo.save(root / name / f"{number}.png")
    (root / "images").mkdir()
    coco: dict[str, list[Any]] = {"images": [], "annotations": []}
    lines = ["path,x,y,w,h"]
    for number, badges in enumerate([(ANN, REX), (ANN, STRANGER)]):
        picture, boxes = scene(badges, number)
        picture.save(root / "images" / f"{number}.png")
        coco["images"].append({"id": number, "file_name": f"{number}.png", "width": 224, "height": 112})
        for left, top, right, bottom in boxes:
            box = [left, top, right - left, bottom - top]
            coco["annotations"].append({"id": len(lines), "image_id": number, "bbox": box})
            lines.append(",".join([f"images/{number}.png", *map(str, box)]))
    (root / "boxes.json").write_text(json.dumps(coco))
    (root / "boxes.csv").write_text("\n".join(lines))
    write_video(root / "movie.mp4", film([(ANN, REX)] * 12), fps=4)
    return root


def run(folder: Path, *words: object) -> int:
    subjects = [f"--subject=ann={folder / 'ann'}", f"--subject=rex={folder / 'rex'}"]
    options = ["--model", "tiny", "--device", "cpu", "--threshold", "0.25", "--quiet"]
    return main([*options, *subjects, str(folder / "images"), *map(str, words)])


def refused(folder: Path, *words: object) -> int:
    """The exit status of a request that is wrong."""
    try:
        return run(folder, *words)
    except SystemExit as stopped:
        return int(stopped.code or 0)


def test_the_command_has_at_most_20_options() -> None:
    options = [action for action in build_parser()._actions if action.option_strings]
    assert len([action for action in options if action.dest not in ("help", "version")]) <= 20


@pytest.mark.parametrize("regions", ["boxes.json", "boxes.csv"])
def test_rows_of_each_subject_and_region(folder: Path, regions: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--regions", folder / regions, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["subject"], row["state"], row["region"]) for row in rows if row["assigned"] == "True"] == [
        ("ann", "matched", "0"),
        ("rex", "matched", "1"),
        ("ann", "matched", "0"),
        ("rex", "missing", "1"),
    ]
    assert [(row["state"], row["region"]) for row in rows if not row["subject"]] == [("unknown", "1")]
    assert len(rows) == 9


def test_json_table_and_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(folder, "--regions", folder / "boxes.json", "--format", "json", "--html", page) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["found"] for row in content["summary"]] == [1.0, 0.5]
    assert content["summary"][1]["worst_image"] == str(folder / "images" / "1.png")
    assert content["signature"]["outside"] == "keep"
    _, images = page.read_text().split("the worst first <small>")
    assert images.index("1.png") < images.index("0.png")
    assert run(folder, "--regions", folder / "boxes.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["subject", "state", "distance", "threshold", "region", "image"]
    assert "threshold of ann: 0.25 (option --threshold)" in lines
    assert lines[-1].startswith("model=IDSim:tiny")


def test_clips_and_casts(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cast.csv").write_text("image,subjects\n0.png,ann\n1.png,\nmovie.mp4,rex\n")
    words = [folder / "movie.mp4", "--rate", "1", "--cast", tmp_path / "cast.csv", "--format", "json"]
    assert run(folder, *words) == 0
    content = json.loads(capsys.readouterr().out)
    frames = {row["image"] for row in content["rows"] if row["clip"]}
    assert frames == {f"{folder / 'movie.mp4'} @ {index}" for index in (0, 4, 8)}
    assert sum(row["frames"] for row in content["intervals"]) == 6
    assert [row["n"] for row in content["summary"]] == [1, 3]


def test_without_subjects_images_are_compared_with_each_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "tiny", "--quiet", str(folder / "movie.mp4"), "--rate", "2"]
    for form in ("json", "csv", "jsonl", "table"):
        assert main([*words, "--format", form]) == 0
        out = capsys.readouterr().out
        assert str(folder / "movie.mp4") in out
        if form == "jsonl":
            assert json.loads(out)["frames"] == 6


def test_no_output_replaces_an_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--output", "--html"):
        for name in ("images/0.png", "ann/0.png", "boxes.csv", "movie.mp4"):
            path = folder / name
            before = path.read_bytes()
            assert refused(folder, folder / "movie.mp4", "--regions", folder / "boxes.csv", option, path) == 2
            assert option in capsys.readouterr().err
            assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (["--regions", "no.json"], 2, "no.json"),
        (["--regions", "bad.csv"], 2, "bad.csv"),
        (["--regions", "other.csv"], 2, "other.png"),
        (["--regions", "boxes.csv", "--detect", "dog"], 2, "--detect"),
        (["--detector", "x/y"], 2, "--detector"),
        (["--cast", "cast.csv"], 2, "cow"),
        (["--subject", "rex"], 2, "NAME=PATH"),
        (["--subject", "ann=other"], 2, "ann"),
        (["--rate", "0", "movie.mp4"], 2, "rate"),
        (["empty.mp4"], 1, "empty.mp4"),
        (["gone"], 1, "gone"),
        (["--calibration", "gone.json"], 2, "--calibration"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    folder: Path,
    tmp_path: Path,
    words: list[str],
    status: int,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "boxes.csv").write_text("path,x,y,w,h\n0.png,0,0,9,9\n")
    (tmp_path / "bad.csv").write_text("path,x,w,h\n0.png,0,9,9\n")
    (tmp_path / "other.csv").write_text("path,x,y,w,h\nother.png,0,0,9,9\n")
    (tmp_path / "cast.csv").write_text("image,subjects\n0.png,cow\n")
    (tmp_path / "movie.mp4").write_bytes((folder / "movie.mp4").read_bytes())
    (tmp_path / "empty.mp4").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert refused(folder, *words) == status
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--cast=cast.csv", "--threshold=0.2", "--html=page.html", "--calibration=c.json"])
def test_options_of_subjects_need_subjects(folder: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--model", "tiny", str(folder / "images"), option])
    assert stopped.value.code == 2
    assert option.split("=")[0] in capsys.readouterr().err


def test_an_image_or_clip_that_cannot_be_used_can_be_skipped(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "outside.csv"
    table.write_text("path,x,y,w,h\n0.png,0,0,9999,10\n1.png,0,0,112,112\n")
    silent = sound(tmp_path / "sound.mp4")
    words = [silent, "--regions", table, "--format", "jsonl"]
    assert run(folder, *words) == 1
    assert run(folder, *words, "--on-error", "skip") == 4
    printed = capsys.readouterr()
    assert "0.png" in printed.err
    assert "sound.mp4" in printed.err
    assert {json.loads(line)["image"][-5:] for line in printed.out.splitlines()} == {"1.png"}


def test_a_full_disk_costs_the_page_and_the_cache_but_no_scores(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("idmetric.page.write_page", full)
    monkeypatch.setattr("idmetric.store.Parts._write", full)
    words = ["--regions", folder / "boxes.json", "--format", "jsonl"]
    assert run(folder, *words, "--cache", tmp_path / "cache", "--html", tmp_path / "page.html") == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 9
    assert "No space left" in printed.err
