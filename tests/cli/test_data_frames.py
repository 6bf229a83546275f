from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from idmetric.cli import data
from idmetric.cli.data import frames
from idmetric.data.frames.choose import SAMPLINGS
from idmetric.data.manifest.table import read
from tests.clip_files import mask, picture, write_folder, write_masks, write_video
from tests.runner import Runner

COMMAND = "import sys\nfrom idmetric.cli import data\nif __name__ == '__main__': sys.exit(data.main(sys.argv[1:]))"


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
    write_masks(source[0] / "masks/kind/clip2", dict.fromkeys(range(0, 20, 5), 0.95))
    words = (*source, "--category-level", 1, "-o", tmp_path / "made/x.csv")
    assert run(*words) == 0
    manifest = read(tmp_path / "made/x.csv")
    assert set(manifest.column("identity")) == {"got10k/kind/clip0", "got10k/kind/clip1"}
    assert manifest.column("category") == ["kind"] * 4
    assert all((tmp_path / "made" / p).is_file() for p in manifest.column("path") + manifest.column("mask"))
    assert str(manifest.column("path")[0]).startswith("x_frames/")
    shown = capsys.readouterr().out
    assert "4 images of 2 identities" in shown
    assert "1 of 3 instances left out: fewer than 2 valid frames" in shown
    assert "objects in frames that were not valid: 4 too large" in shown
    assert run(*words) == 0  # nothing to do, same result
    assert read(tmp_path / "made/x.csv").table.equals(manifest.table)


def test_videos_and_folders_go_together(tmp_path: Path, run: Runner) -> None:
    source = make_clips(tmp_path / "in", 1)
    write_video(source[0] / "film/rgb_video.mp4", [picture(i) for i in range(90)])
    write_video(source[0] / "masks/film.mkv", [mask(0.4)] * 90, codec="ffv1")
    assert run(*source, "-o", tmp_path / "x.parquet") == 0
    assert set(read(tmp_path / "x.parquet").column("identity")) == {"got10k/film", "got10k/kind/clip0"}


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
    shown = run.fails("3 of 5 clips cannot be used", *arguments)
    assert "--on-error skip" in shown
    for text in ("bare: no masks found", "broken.mp4: not readable as a video", "0.png", "5.png"):
        assert text in shown
    assert not out.exists()
    assert len(list((tmp_path / "x_frames").iterdir())) == 2  # what could be done is done
    assert run(*arguments, "--on-error", "skip") == 4
    shown = capsys.readouterr().err
    assert shown.count("skipped:") == 4
    assert len(set(read(out).column("identity"))) == 2
    run.fails("made with other settings", *arguments, "--seed", 1)


def test_errors_name_what_is_wrong(tmp_path: Path, run: Runner) -> None:
    source = make_clips(tmp_path / "in", 1)
    bare = write_folder(tmp_path / "bare" / "clip", 1).parent
    write_masks(tmp_path / "small/clip", {0: 0.01})
    cases = [
        ((*source, "-o", tmp_path / "x.txt"), "a manifest ends in .parquet, .csv, .jsonl"),
        ((tmp_path / "no", "-o", tmp_path / "x.csv"), "no such file or folder"),
        ((bare, "--masks", tmp_path / "small", "-o", tmp_path / "x.csv"), "no instance has enough valid frames"),
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


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_end_with_any_number_of_workers(tmp_path: Path) -> None:
    source = make_clips(tmp_path / "in", 40)
    program = tmp_path / "one_command.py"
    program.write_text(COMMAND)

    def command(out: str, *more: str) -> list[str]:
        arguments = [*map(str, source), "--sampling", "got10k", "-o", str(tmp_path / out / "x.jsonl"), "--quiet", *more]
        return [sys.executable, str(program), "frames", *arguments]

    folder = tmp_path / "killed/x_frames"
    process = subprocess.Popen(command("killed"), env={**os.environ, "OMP_NUM_THREADS": "1"})
    limit = time.monotonic() + 60
    while not (folder.is_dir() and len(list(folder.iterdir())) >= 5) and time.monotonic() < limit:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = [p for p in folder.iterdir() if p.name[0] != "."]
    assert 4 <= len(done) < 40
    assert all((p / "clip.json").is_file() for p in done)
    assert not (tmp_path / "killed/x.jsonl").exists()
    subprocess.run(command("killed"), check=True, capture_output=True)
    subprocess.run(command("whole", "--workers", "2"), check=True, capture_output=True)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert len(content(tmp_path / "whole")) == 1 + 40 * 5
