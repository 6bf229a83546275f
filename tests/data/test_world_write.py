"""A world's folder under rough treatment: runs at once, killed runs, damaged files, odd numbers."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from idmetric.data.manifest.table import Manifest, read
from idmetric.data.world.write import WorldPlan, place_of, read_rows, write_world

PLAN = WorldPlan(seed=3, size=32, views=2, distractors=1, strengths=(0.5,), parts=1)
COUNT = 8
FLAGS = ["--seed", "3", "--size", "32", "--views", "2", "--strengths", "0.5", "--parts", "1", "-n", str(COUNT)]
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    write_world(folder, PLAN, COUNT)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def begin(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A run of its own in another process, that has finished an identity and is making others."""
    code = (  # Ctrl-C must come through, also where the tests run in the background
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from idmetric.cli.data import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "world", "-o", str(folder), "--quiet", *FLAGS, *more]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (finished(folder) and list(folder.glob("[0-9]*/.[0-9]*"))):
        time.sleep(0.002)
    assert process.poll() is None, "it ended before it could be disturbed"
    return process


def finished(folder: Path) -> list[Path]:
    return list(folder.glob("[0-9]*/[0-9]*/rows.jsonl"))


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ---- runs at once, and killed ones


@linux
def test_a_killed_run_takes_its_workers_along_and_is_taken_up_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    """Only the parent is killed: its workers end by themselves, and what they were at is cleared away."""
    process = begin(tmp_path, "--workers", "2")
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    assert len(finished(tmp_path)) < COUNT
    write_world(tmp_path, PLAN, COUNT)  # at once: no lock is left, whatever the workers do
    assert contents(tmp_path) == contents(whole)
    assert not list(tmp_path.glob("*/.*"))
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(alive, workers))


@linux
def test_ctrl_c_stops_all_processes_and_leaves_nothing_half_made(whole: Path, tmp_path: Path) -> None:
    process = begin(tmp_path, "--workers", "2")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "idmetric-data: stopped; finished work is kept, and the same command resumes"
    assert 1 <= len(finished(tmp_path)) < COUNT
    assert not list(tmp_path.glob("*/.*"))
    write_world(tmp_path, PLAN, COUNT)
    assert contents(tmp_path) == contents(whole)


def test_an_unfinished_folder_in_the_way_is_replaced(whole: Path, copy: Path) -> None:
    (copy / place_of(1) / "rows.jsonl").unlink()
    (copy / place_of(1) / "view-0.jpg").write_bytes(b"half")
    (copy / place_of(1) / "old.jpg").write_bytes(b"of long ago")
    write_world(copy, PLAN, COUNT)
    assert contents(copy) == contents(whole)


# ---- damaged files


def test_nothing_is_deleted_through_a_link_in_a_received_world(copy: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for name in (".000001-123", "000001"):
        (mine / name).mkdir(parents=True)
        (mine / name / "photo.png").write_bytes(b"mine")
    before = contents(mine)
    group = copy / place_of(1).split("/")[0]
    group.rename(copy / "away")
    group.symlink_to(mine)
    with pytest.raises(ValueError, match=r"000000 is reached through a link: remove the link"):
        write_world(copy, PLAN, 2)
    assert contents(mine) == before


@pytest.mark.parametrize("text", [b"{", b"[1]\n", b"\xff", b'{"identity": "a", "color": "red"}\n'])
def test_damaged_rows_are_named_with_how_to_fix_them(copy: Path, text: bytes) -> None:
    (copy / place_of(1) / "rows.jsonl").write_bytes(text)
    before = contents(copy)
    with pytest.raises(ValueError, match=r"(?s)000001/rows\.jsonl is damaged .*: delete its folder and run the same"):
        write_world(copy, PLAN, 2)
    assert contents(copy) == before  # nothing is lost: the manifest of before too


def test_other_settings_are_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"other settings \(parts, quality\); take another folder"):
        write_world(copy, replace(PLAN, parts=0, quality=90), 1)
    monkeypatch.setattr("idmetric.data.world.write.VERSION", 999)
    with pytest.raises(ValueError, match=r"other settings \(version\)"):
        write_world(copy, PLAN, 1)


def test_assets_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    assets, folder = tmp_path / "assets", tmp_path / "world"
    (assets / "textures").mkdir(parents=True)
    photo = assets / "textures" / "wood.bmp"
    Image.new("RGB", (8, 8), "red").save(photo)
    size = photo.stat().st_size
    write_world(folder, PLAN, 1, assets)
    (assets / "README.txt").write_text("not an asset")
    (assets / "textures" / ".DS_Store").write_text("left by a system")
    write_world(folder, PLAN, 2, assets)
    Image.new("RGB", (8, 8), "blue").save(photo)
    assert photo.stat().st_size == size
    with pytest.raises(ValueError, match=r"other settings \(textures/wood\.bmp\)"):
        write_world(folder, PLAN, 1, assets)
    with pytest.raises(ValueError, match=r"other settings \(textures/wood\.bmp\)"):
        write_world(folder, PLAN, 1)


# ---- the manifest


def test_the_manifest_holds_all_rows(whole: Path, copy: Path) -> None:
    rows = [row for number in range(COUNT) for row in read_rows(whole, number)]
    expected = Manifest.from_rows(rows, whole).table
    assert read(whole / "manifest.parquet").table.equals(expected)
    assert write_world(copy, PLAN, COUNT).table.equals(expected)
    assert len(write_world(copy, PLAN, 1)) == len(read_rows(whole, 0))  # those that were asked for


# ---- numbers and options


def test_assets_that_are_not_there_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is not a folder with any of"):
        write_world(tmp_path / "world", PLAN, 1, Path("nowhere"))
    assert not (tmp_path / "world").exists()


def test_a_full_disk_says_what_is_kept_and_the_same_command_renders_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idmetric.io.output import OutputError

    saved = Image.Image.save

    def full(self: Image.Image, path: Path, *args: object, **options: object) -> None:
        if "000002" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        saved(self, path, *args, **options)

    plan = WorldPlan(size=32, views=1, distractors=0)
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", full)
        with pytest.raises(OutputError, match=r"000002.*the disk is full.*finished identities are kept") as caught:
            write_world(tmp_path / "world", plan, 4)
    assert "/." not in str(caught.value)
    first = (tmp_path / "world" / "000" / "000000").stat().st_mtime_ns
    assert len(write_world(tmp_path / "world", plan, 4)) == 4
    assert (tmp_path / "world" / "000" / "000000").stat().st_mtime_ns == first
