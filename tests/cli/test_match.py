"""`idmetric match`: rows, summary, formats, numbers and errors."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from idmetric.cli.match import main
from idmetric.cli.score import main as score
from tests.clip_files import write_video
from tests.matching.films import film, sound
from tests.matching.scenes import ANN, REX, STRANGER, references, scene


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


def test_json_has_summary_and_worst(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--regions", str(folder / "boxes.json"), "--format", "json") == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["coverage"] for row in content["summary"]] == [1.0, 0.5, 0.75]
    assert content["worst"]["subject"] == "rex"
    assert content["signature"]["missing"] == "missing"


def test_no_output_replaces_an_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "images" / "link.txt").symlink_to(folder / "boxes.csv")
    for name in ("images/0.png", "ann/0.png", "boxes.csv", "images/link.txt"):
        path = folder / name
        before = path.read_bytes()
        with pytest.raises(SystemExit) as stop:
            run(folder, "--regions", str(folder / "boxes.csv"), "--output", str(path))
        assert stop.value.code == 2
        assert f"--output '{path}' is an input" in capsys.readouterr().err
        assert path.read_bytes() == before
    (folder / "images" / "link.txt").unlink()


def test_the_table_ends_with_the_signature(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--regions", str(folder / "boxes.json")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["subject", "state", "distance", "nearest", "threshold", "region", "image"]
    assert "threshold of ann: 0.2500 (option --threshold)" in lines
    assert lines[-2] == f"surplus regions: 1, in {folder / 'images' / '1.png'}"
    assert lines[-1].startswith("model=IDSim:tiny")


def test_the_table_names_swaps_by_label_and_subjects_without_states(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, boxes = scene((ANN, REX), 0)
    lines = ["path,x,y,w,h,label"]
    for label, (left, top, right, bottom) in zip(("rex", "ann"), boxes, strict=True):
        lines.append(f"0.png,{left},{top},{right - left},{bottom - top},{label}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    photos = [f"--subject={name}={folder / name / '[01].png'}" for name in ("ann", "rex")]
    image = folder / "images" / "0.png"
    words = ["--model=tiny", "--quiet", *photos, str(image), f"--regions={tmp_path / 'labels.csv'}", "--distance=joint"]
    assert main(words) == 0
    ann, rex, hint = capsys.readouterr().out.splitlines()[-4:-1]
    for line, name in ((ann, "ann"), (rex, "rex")):
        assert line.startswith(f"swapped: {name} ")
        assert str(image) in line
    assert re.match("no states of ann, rex.*: give a threshold", hint)


def test_the_table_says_that_whole_images_show_one_subject_each(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "whole images are compared, so each can show only one subject: give regions for several"
    assert run(folder) == 0
    assert note in capsys.readouterr().out.splitlines()
    assert run(folder, "--regions", str(folder / "boxes.json")) == 0
    assert note not in capsys.readouterr().out.splitlines()


def test_regions_that_belong_to_no_image_name_both(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "boxes.csv").write_text("path,x,y,w,h\nother.png,0,0,9,9")
    (tmp_path / "masks").mkdir()
    for regions, message in (
        ("boxes.csv", "is among the ones with regions (other.png): compare their paths"),
        ("masks", "masks: it holds IMAGE/LABEL.png or IMAGE.png"),
    ):
        with pytest.raises(SystemExit):
            run(folder, "--regions", str(tmp_path / regions))
        assert message in capsys.readouterr().err


def test_a_missing_folder_of_images_is_named_as_such(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "tiny", "--subject", f"ann={folder / 'ann'}", "--regions", str(folder / "boxes.json")]
    assert main([*words, str(tmp_path / "gone")]) == 1
    assert f"{tmp_path / 'gone'}: the file does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--regions", "no.json"], "cannot read regions no.json"),
        (["--subject", "rex"], "write NAME=PATH"),
        (["--subject", "ann=other"], "two subjects are called 'ann'"),
        (["--subject", "ann:person=other"], "two subjects are called 'ann'"),
        (["--subject", ":dog=refs/rex"], "write NAME=PATH"),
    ],
)
def test_wrong_usage(folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(folder, *words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--frames", "some"], "unknown frames 'some'"),
        (["--frames", "0fps", "movie.mp4"], "unknown frames '0fps'"),
        (["--missing", "whale"], "invalid choice: 'whale'"),
        (["--regions", "no.csv"], "cannot read regions no.csv"),
        (["--regions", "bad.csv"], "bad.csv has no column y"),
        (["--regions", "other.csv"], "is among the ones with regions (other.png)"),
        (["--cast", "cast.csv"], "the cast of 0.png has cow: the subjects are called ann, rex"),
    ],
)
def test_wrong_usage_is_refused_before_a_model_is_opened(
    folder: Path,
    movie: Path,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "boxes.csv").write_text("path,x,y,w,h\n0.png,0,0,9,9\n")
    (tmp_path / "bad.csv").write_text("path,x,w,h\n0.png,0,9,9\n")
    (tmp_path / "other.csv").write_text("path,x,y,w,h\nother.png,0,0,9,9\n")
    (tmp_path / "cast.csv").write_text("image,subjects\n0.png,cow\n")
    (tmp_path / "movie.mp4").write_bytes(movie.read_bytes())
    monkeypatch.chdir(tmp_path)

    def opened(*args: Any, **options: Any) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr("idmetric.metric.load.load", opened)
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


# Clips


@pytest.fixture(scope="module")
def movie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clips") / "movie.mp4", film([(ANN, REX)] * 12), fps=4)


def test_rows_of_frames_and_subjects(folder: Path, movie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, str(movie), "--frames", "1fps", "--format", "json") == 0
    content = json.loads(capsys.readouterr().out)
    names = list(dict.fromkeys(row["image"] for row in content["rows"]))
    assert names[2:] == [f"{movie} @ {index}" for index in (0, 4, 8)]
    assert {(row["clip"], row["subject"]) for row in content["intervals"]} == {(str(movie), "ann"), (str(movie), "rex")}
    assert sum(row["frames"] for row in content["intervals"]) == 6
    assert {row["n"] for row in content["summary"]} == {5}


def test_without_subjects_frames_are_compared_with_each_other(movie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "tiny", "--quiet", str(movie), "--frames", "4"]
    assert main([*words, "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    (row,) = content["rows"]
    assert row["frames"] == 4
    for form in ("table", "csv", "jsonl"):
        assert main([*words, "--format", form]) == 0
        assert str(movie) in capsys.readouterr().out


def test_grids_and_folders_of_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "frames").mkdir()
    pictures = film([(ANN, REX)] * 4)
    sheet = Image.new("RGB", (640, 352))
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / "frames" / f"{number}.png")
        sheet.paste(picture, (number % 2 * 320, number // 2 * 176))
    sheet.save(tmp_path / "sheet.png")
    rows = []
    for words in (["--clip", str(tmp_path / "frames")], ["--grid", "2x2", str(tmp_path / "sheet.png")]):
        assert main(["--model", "tiny", "--quiet", *words, "--format", "jsonl"]) == 0
        rows.append(json.loads(capsys.readouterr().out))
    assert rows[0]["clip"] == str(tmp_path / "frames")
    assert rows[1]["clip"] == str(tmp_path / "sheet.png")
    assert rows[0]["mean"] == rows[1]["mean"] > 0

    words = ["--subject", f"ann={tmp_path / 'frames' / '0.png'}", "--clip", str(tmp_path / "frames")]
    words += ["--fps", "4", "--frames", "2fps", "--format", "csv"]
    assert main(["--model", "tiny", "--quiet", *words]) == 0
    frames = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(Path(row["image"]).name, float(row["seconds"])) for row in frames] == [("0.png", 0.0), ("2.png", 0.5)]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "no images: give files, folders or --clip"),
        (["--grid", "2", "a.png"], 2, "'2' is not ROWSxCOLUMNS"),
        (["--frames", "0", "movie.mp4"], 2, "unknown frames '0'"),
        (["--cast", "cast.csv", "movie.mp4"], 2, "--cast is for subjects: name them by --subject"),
        (["--threshold", "0.2", "movie.mp4"], 2, "--threshold is for subjects"),
        (["--clip", "frames", "--fps", "0"], 2, "frames: a clip has more than 0 frames per second, got fps=0.0"),
        (["empty.mp4"], 1, "empty.mp4: the file is empty"),
        (["nothing"], 1, "nothing"),
    ],
)
def test_wrong_clips(
    words: list[str],
    status: int,
    message: str,
    movie: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(movie.parent)
    Path("empty.mp4").write_bytes(b"")
    try:
        ended = main(["--model", "tiny", *words])
    except SystemExit as stopped:
        ended = stopped.code
    assert ended == status
    assert message in capsys.readouterr().err


def test_a_clip_is_skipped_with_a_line(movie: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound(tmp_path / "sound.mp4")
    words = ["--model", "tiny", "--quiet", str(tmp_path / "sound.mp4"), str(movie), "--frames", "2"]
    assert main([*words, "--on-error", "skip", "--format", "jsonl"]) == 4
    printed = capsys.readouterr()
    assert "sound.mp4: the file contains no video" in printed.err
    assert json.loads(printed.out)["clip"] == str(movie)


def test_score_says_in_one_line_that_clips_belong_here(movie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(movie.with_name("image.png"))
    film([(ANN, REX)])[0].save(image)
    for paths in ([image, str(movie)], [str(movie), image]):
        assert score(["--model", "tiny", "--quiet", *paths]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "movie.mp4" in line
        assert "it is a video: clips are compared by `idmetric match`" in line


def edited(folder: Path, name: str, change: Any) -> str:
    """A copy of the COCO file, changed."""
    content = json.loads((folder / "boxes.json").read_text())
    change(content)
    path = folder / name
    path.write_text(json.dumps(content))
    return str(path)


def rows_of(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    run(folder, "--format", "csv", *words)
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_17_what_cvat_calls_a_crowd_is_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def as_crowds(content: dict[str, list[Any]]) -> None:
        for annotation in content["annotations"]:
            annotation["iscrowd"] = 1

    crowds = rows_of(folder, capsys, "--regions", edited(folder, "crowds.json", as_crowds))
    assert crowds == rows_of(folder, capsys, "--regions", str(folder / "boxes.json"))


def test_17_images_that_are_not_listed_are_in_the_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def without_the_second(content: dict[str, list[Any]]) -> None:
        del content["images"][1]
        content["annotations"] = [row for row in content["annotations"] if row["image_id"] == 0]

    regions = ("--regions", edited(folder, "one.json", without_the_second))
    name = str(folder / "images" / "1.png")
    assert run(folder, *regions, "--format", "json") == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["unlisted"] == [name]
    assert "1 of 2 images are not listed with regions" in output.err
    assert run(folder, *regions) == 0
    assert f"not listed with regions: 1, {name}\n" in capsys.readouterr().out

    (folder / "one.csv").write_text("path,x,y,w,h\n0.png,0,0,112,112\n")  # without subjects
    words = ["--quiet", str(folder / "images"), "--regions", str(folder / "one.csv"), "--format", "json"]
    assert main(["--model", "tiny", *words]) == 0
    assert json.loads(capsys.readouterr().out)["unlisted"] == [name]


def test_21_a_bad_annotation_stops_before_the_model_or_its_image_is_skipped(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_an_empty_box(content: dict[str, list[Any]]) -> None:
        content["annotations"][2]["bbox"] = [0, 0, 0, 0]

    regions = ("--regions", edited(folder, "empty.json", with_an_empty_box))
    skipped = rows_of(folder, capsys, *regions, "--on-error", "skip")
    assert [row["state"] for row in skipped] == ["matched", "matched"]
    assert run(folder, *regions, "--on-error", "skip", "--format", "json") == 4
    ((image, reason),) = json.loads(capsys.readouterr().out)["skipped"].items()
    assert image == str(folder / "images" / "1.png")
    assert "empty.json, annotation 3: region (0, 0, 0, 0) is empty" in reason
    monkeypatch.setattr("idmetric.metric.load.load", None)
    assert run(folder, *regions) == 1
    assert "images/1.png: " in capsys.readouterr().err


def test_23_photos_that_exif_turns(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The upright scene, and the same stored turned, give the same numbers: regions are of the upright photo."""
    upright, _ = scene((ANN, REX), 0)
    exif = Image.Exif()
    exif[0x112] = 6
    (tmp_path / "images").mkdir()
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "images" / "0.png", exif=exif)
    for name in ("ann", "rex"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "r.csv").write_text("path,x,y,w,h\n0.png,0,0,112,112\n0.png,112,0,112,112\n")
    rows = rows_of(tmp_path, capsys, "--regions", str(tmp_path / "r.csv"))
    expected = rows_of(folder, capsys, "--regions", str(folder / "boxes.json"))[:2]
    columns = ("subject", "state", "distance", "region", "left", "top", "right", "bottom")
    assert [[row[column] for column in columns] for row in rows] == [
        [row[column] for column in columns] for row in expected
    ]


def test_23_frames_without_regions_of_a_clip_that_exists(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = tmp_path / "c.mp4"
    write_video(clip, [scene((ANN, REX), 0)[0]] * 2)
    (tmp_path / "r.csv").write_text("path,x,y,w,h\nd.mp4 @ 0,0,0,9,9\n")
    with pytest.raises(SystemExit) as stopped:
        main(["--model", "tiny", f"--subject=ann={folder / 'ann'}", str(clip), "--regions", str(tmp_path / "r.csv")])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "c.mp4 @ 0, " in error
    assert "is among the ones with regions (d.mp4 @ 0): compare their paths" in error
    assert "does not exist" not in error
