"""`idmetric data frames`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from idmetric.cli import data
from idmetric.cli.data import frames
from idmetric.data.frames.choose import SAMPLINGS
from idmetric.data.manifest import read
from tests.clip_files import mask, picture, write_folder, write_masks, write_video
from tests.runner import Runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    """`idmetric data frames --quiet --sampling got10k ...`"""
    return Runner(data.main, capsys, "frames", "--quiet", "--sampling", "got10k")


def make_clips(root: Path, count: int = 3) -> tuple[Path, str, Path]:
    """Words for a folder of clips and their masks."""
    for i in range(count):
        write_folder(root / f"kind/clip{i}", 20)
        write_masks(root / f"masks/kind/clip{i}", dict.fromkeys(range(0, 20, 5), 0.5))
    return root, "--masks", root / "masks"


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_help_has_the_samplings_there_are() -> None:
    assert tuple(SAMPLINGS) == frames.SAMPLINGS
    for name, s in SAMPLINGS.items():
        row = re.search(rf"^  {name} +(\d+) +(\d+) +(\d+) +(\d+)$", frames.__doc__ or "", re.MULTILINE)
        assert row is not None
        assert tuple(map(int, row.groups())) == (s.fps, s.stride, s.window, s.parts)


def test_frames_and_manifest_are_written(tmp_path: Path, run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_clips(tmp_path / "in")
    write_video(source[0] / "kind/film/rgb_video.mp4", [picture(i) for i in range(90)])
    write_video(source[0] / "masks/kind/film.mkv", [mask(0.4)] * 90, codec="ffv1")
    write_masks(source[0] / "masks/kind/clip2", dict.fromkeys(range(0, 20, 5), 0.95))
    out = tmp_path / "made/x.csv"
    words = (*source, "--category-level", 1, "-o", out)
    assert run(*words) == 0
    table, text = read(out), out.read_text()
    assert set(table["identity"]) == {"got10k/kind/clip0", "got10k/kind/clip1", "got10k/kind/film"}
    assert set(table["category"]) == {"kind"}
    assert all(Path(path).is_relative_to(tmp_path / "made/x_frames") for path in table["path"])
    shown = capsys.readouterr().out
    assert "1 of 4 instances left out" in shown
    assert "4 too large" in shown
    assert run(*words) == 0  # nothing to do, same result
    assert out.read_text() == text


def test_clips_that_cannot_be_used_are_listed_or_skipped(
    tmp_path: Path, run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_clips(tmp_path / "in")
    write_folder(source[0] / "bare", 20)
    (source[0] / "broken.mp4").write_bytes(b"x" * 999)
    write_masks(source[0] / "masks/broken", {0: 0.5})
    for i in range(0, 10, 5):
        (source[0] / f"kind/clip1/{i}.png").write_bytes(b"")
    out = tmp_path / "x.parquet"
    arguments = (*source, "-o", out)
    shown = run.fails("3 of 5 clips", *arguments)
    for text in ("bare", "broken.mp4", "0.png", "5.png"):
        assert text in shown
    assert not out.exists()
    assert len(list((tmp_path / "x_frames").iterdir())) == 2  # what could be done is done
    assert run(*arguments, "--on-error", "skip") == 4
    shown = capsys.readouterr().err
    assert shown.count("skipped:") == 4
    assert read(out)["identity"].nunique() == 2
    run.fails("other settings", *arguments, "--seed", 1)


def test_errors_name_what_is_wrong(tmp_path: Path, run: Runner) -> None:
    source = make_clips(tmp_path / "in", 1)
    bare = write_folder(tmp_path / "bare" / "clip", 1).parent
    write_masks(tmp_path / "small/clip", {0: 0.01})
    cases = [
        ((*source, "-o", tmp_path / "x.txt"), "x.txt"),
        ((tmp_path / "no", "-o", tmp_path / "x.csv"), str(tmp_path / "no")),
        ((bare, "--masks", tmp_path / "small", "-o", tmp_path / "x.csv"), "1 too small"),
    ]
    for arguments, message in cases:
        run.fails(message, *arguments)
    assert not (tmp_path / "x.csv").exists()


def test_missing_categories_are_said(tmp_path: Path, run: Runner) -> None:
    source = make_clips(tmp_path / "in", 2)
    for level, count in ((9, 4), (2, 4)):  # the last part is the clip itself
        _, _, err = run.all(*source, "-o", tmp_path / "x.csv", "--category-level", level)
        assert f"{count} images have no category" in err


def test_frames_written_beside_the_clips_are_not_taken_for_clips(tmp_path: Path, run: Runner) -> None:
    source = make_clips(tmp_path / "in", 2)
    for _ in range(2):
        assert run(*source, "-o", source[0] / "x.csv") == 0
        assert len(read(source[0] / "x.csv")) == 4


def test_the_result_does_not_depend_on_the_workers(tmp_path: Path, run: Runner) -> None:
    source = make_clips(tmp_path / "in", 8)
    for count in (1, 3):
        assert run(*source, "-o", tmp_path / f"{count}/x.jsonl", "--workers", count) == 0
    assert content(tmp_path / "1") == content(tmp_path / "3")
    assert len(content(tmp_path / "1")) == 1 + 8 * 5
