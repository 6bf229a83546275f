"""A world's folder under rough treatment: runs at once, killed runs, damaged files, odd numbers."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from idmetric.cli.data import main
from idmetric.data.manifest.table import Manifest, Row, read
from idmetric.data.world import folder as folders
from idmetric.data.world import write
from idmetric.data.world.folder import finished, own_folder, place_of, read_rows, write_manifest
from idmetric.data.world.write import Plan, render_world, write_world

PLAN = Plan(seed=3, size=32, views=2, distractors=1, strengths=(0.5,), parts=1)
COUNT = 8
FLAGS = ["--seed", "3", "--size", "32", "--views", "2", "--strengths", "0.5", "--parts", "1", "-n", str(COUNT)]
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    render_world(folder, PLAN, COUNT)
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


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ---- runs at once, and killed ones


@pytest.mark.slow
def test_of_two_runs_at_once_the_second_is_refused_and_disturbs_nothing(whole: Path, tmp_path: Path) -> None:
    process = begin(tmp_path)
    process.send_signal(signal.SIGSTOP)
    try:
        before = contents(tmp_path)
        with pytest.raises(ValueError, match=r"another run is using .*: wait for it to end, or render into another"):
            render_world(tmp_path, PLAN, 2)
        assert contents(tmp_path) == before
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
    assert contents(tmp_path) == contents(whole)


@linux
def test_a_killed_run_takes_its_workers_along_and_is_taken_up_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    """Only the parent is killed: its workers end by themselves, and what they were at is cleared away."""
    process = begin(tmp_path, "--workers", "2")
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    assert len(finished(tmp_path)) < COUNT
    render_world(tmp_path, PLAN, COUNT)  # at once: no lock is left, whatever the workers do
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
    render_world(tmp_path, PLAN, COUNT)
    assert contents(tmp_path) == contents(whole)


def leftovers(folder: Path) -> list[Path]:
    """What killed runs may leave, of this and of earlier versions; and files that are none of ours."""
    left = [folder / "000/.000001-4242", folder / "000/.000003-4242-0a1b2c3d", folder / "001/.001000-1-2-gone"]
    for path in left:
        path.mkdir(parents=True)
        (path / "view-0.jpg").write_bytes(b"half")
    files = [folder / ".world.json-4242", folder / ".manifest.parquet-4242"]
    for path in files:
        path.write_text("half")
    return [*left, *files]


def test_what_killed_runs_left_is_cleared_away_at_the_next_start(whole: Path, copy: Path) -> None:
    left = leftovers(copy)
    mine = [copy / "notes.txt", copy / "000/.keep", copy / ".hidden-folder/a.txt"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    render_world(copy, PLAN, 1)
    assert not any(path.exists() for path in left)
    assert all(path.read_text() == "mine" for path in mine)


def test_nothing_is_cleared_away_that_may_be_in_use(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_folder(copy):  # another run
        left = leftovers(copy)
        with pytest.raises(ValueError, match="another run"):
            render_world(copy, PLAN, 1)
        assert all(path.exists() for path in left)
    monkeypatch.setattr(folders, "locked", lambda *args: nullcontext(False))  # a file system without locks
    render_world(copy, PLAN, 1)
    assert all(path.exists() for path in left)


def test_nobody_can_finish_a_folder_while_it_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    making, final = tmp_path / ".000001-1-2", tmp_path / "000001"
    making.mkdir()
    rmtree, tried = shutil.rmtree, []

    def slowly(path: Path, ignore_errors: bool) -> None:
        with pytest.raises(FileNotFoundError):
            making.rename(final)  # the process that was making it
        tried.append(path)
        rmtree(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    folders.remove(making)
    assert len(tried) == 1
    assert not list(tmp_path.iterdir())


def test_an_identity_that_another_process_finished_meanwhile_is_kept(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes, final = write.takes, tmp_path / place_of(0)

    def meanwhile(*args: Any) -> Iterator[Any]:
        yield from takes(*args)
        if not final.exists():
            shutil.copytree(whole / place_of(0), final)

    monkeypatch.setattr(write, "takes", meanwhile)
    render_world(tmp_path, PLAN, 1)
    assert contents(final) == contents(whole / place_of(0))
    assert not list(tmp_path.glob("*/.*"))


def test_an_unfinished_folder_in_the_way_is_replaced(whole: Path, copy: Path) -> None:
    (copy / place_of(1) / "rows.jsonl").unlink()
    (copy / place_of(1) / "view-0.jpg").write_bytes(b"half")
    (copy / place_of(1) / "old.jpg").write_bytes(b"of long ago")
    render_world(copy, PLAN, 2)
    assert contents(copy) == contents(whole)


def test_a_failure_keeps_what_is_finished_and_leaves_nothing_half_made(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write._store

    def full(take: Any, world: Any, number: int, making: Path) -> Row:
        if number == 1 and take.name == "view-1":
            raise OSError(28, "No space left on device")
        return store(take, world, number, making)

    monkeypatch.setattr(write, "_store", full)
    with pytest.raises(OSError, match="the disk is full"):
        render_world(tmp_path, PLAN, 2)
    assert finished(tmp_path) == [0]
    assert not list(tmp_path.glob("*/.*"))
    monkeypatch.undo()
    render_world(tmp_path, PLAN, COUNT)
    assert contents(tmp_path) == contents(whole)


# ---- damaged files


def edited(line: bytes, **values: Any) -> bytes:
    return json.dumps(json.loads(line) | values).encode() + b"\n"


DAMAGES = {
    "cut": (lambda t: t[: len(t) // 2], r"line \d+ is not JSON"),
    "no line end": (lambda t: t[:-1], r"line \d+ is cut off"),
    "empty": (lambda t: b"", "is empty"),
    "zeros": (lambda t: b"\0" * len(t), "line 1 is not JSON"),
    "not text": (lambda t: b"\xff" + t, "not UTF-8"),
    "no row": (lambda t: b"[1]\n" + t, "line 1 is not a row"),
    "no path": (lambda t: b'{"identity": "a", "id": "b-000001/c"}\n', "line 1 is not a row"),
    "column": (lambda t: edited(t.splitlines()[0], colour="red"), "line 1 holds unknown columns"),
    "mask": (
        lambda t: edited(t.splitlines()[0], mask=[1]),
        "line 1 holds unknown columns, or masks that are not file names",
    ),
    "of another": (lambda t: t.replace(b"-000001", b"-000002"), "line 1 is a row of another identity"),
}


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 2])  # found before rendering, or when the manifest is written
@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_rows_are_named_with_the_way_out(whole: Path, copy: Path, name: str, start: int) -> None:
    damage, message = DAMAGES[name]
    path = copy / place_of(1) / "rows.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    before = contents(copy)
    with pytest.raises(ValueError, match=rf"(?s)delete the numbered folders.*000001/rows\.jsonl: {message}"):
        render_world(copy, PLAN, 2, start=start)
    assert contents(copy) == before  # nothing is lost: the manifest of before too
    shutil.rmtree(path.parent)
    render_world(copy, PLAN, 2)
    assert contents(copy) == contents(whole)


@pytest.mark.parametrize(("values", "message"), [({"role": "actor"}, "'actor' is not one of"), ({"seed": "x"}, "'x'")])
def test_rows_that_break_the_manifests_rules_are_named(copy: Path, values: dict[str, Any], message: str) -> None:
    path = copy / place_of(1) / "rows.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, edited(rest[0], **values), *rest[1:]]))
    with pytest.raises(ValueError, match=rf"(?s)delete the numbered.*000001/rows\.jsonl: row 2, column .*{message}"):
        write_manifest(copy)


def test_missing_and_empty_pictures_are_listed(whole: Path, copy: Path) -> None:
    (copy / place_of(0) / "view-1.jpg").unlink()
    (copy / place_of(3) / "view-0-mask.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"(?s)000000/view-1.jpg: is missing.*000003/view-0-mask.png: is empty"):
        render_world(copy, PLAN, COUNT)
    for number in (0, 3):
        shutil.rmtree(copy / place_of(number))
    render_world(copy, PLAN, COUNT)
    assert contents(copy) == contents(whole)


@pytest.mark.parametrize(
    "text", [b"", b'{"plan": {', b"[]", b"null", b'{"plan": {}}', b'{"plan": 1, "assets": {}}', b"\xff", b"\0" * 200]
)
def test_a_damaged_note_of_the_plan_is_named_with_the_way_out(whole: Path, tmp_path: Path, text: bytes) -> None:
    note = tmp_path / "world.json"
    note.write_bytes(text)
    with pytest.raises(ValueError, match=r"world\.json is damaged.*: delete it and run again"):
        render_world(tmp_path, PLAN, 1)
    shutil.copytree(whole / "000", tmp_path / "000")  # with images, only the same plan would do
    with pytest.raises(ValueError, match=r"world\.json is damaged.*: restore it, or take another folder"):
        render_world(tmp_path, PLAN, 1)
    note.unlink()
    with pytest.raises(ValueError, match=r"holds images but no world\.json: restore it, or take another folder"):
        render_world(tmp_path, PLAN, 1)
    shutil.copy(whole / "world.json", note)
    render_world(tmp_path, PLAN, 1)
    assert contents(tmp_path) == contents(whole)


def test_a_world_of_another_version_is_not_mixed_with_this(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idmetric.data.world.write.VERSION", 999)
    with pytest.raises(ValueError, match=r"other settings \(version\)"):
        render_world(copy, PLAN, 1)


def test_other_settings_are_named(copy: Path) -> None:
    with pytest.raises(ValueError, match=r"other settings \(parts, quality\); take another folder"):
        render_world(copy, replace(PLAN, parts=0, quality=90), 1)


def test_assets_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    assets, folder = tmp_path / "assets", tmp_path / "world"
    (assets / "textures").mkdir(parents=True)
    photo = assets / "textures" / "wood.bmp"
    Image.new("RGB", (8, 8), "red").save(photo)
    size = photo.stat().st_size
    render_world(folder, PLAN, 1, assets)
    (assets / "README.txt").write_text("not an asset")
    (assets / "textures" / ".DS_Store").write_text("left by a system")
    render_world(folder, PLAN, 2, assets)
    Image.new("RGB", (8, 8), "blue").save(photo)
    assert photo.stat().st_size == size
    with pytest.raises(ValueError, match=r"other settings \(asset textures/wood\.bmp\)"):
        render_world(folder, PLAN, 1, assets)
    with pytest.raises(ValueError, match=r"other settings \(asset textures/wood\.bmp\)"):
        render_world(folder, PLAN, 1)


# ---- the manifest


def test_the_manifest_written_in_chunks_holds_all_rows(
    whole: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for number in range(COUNT):
        for values in read_rows(whole, number):
            moved = {c: f"{place_of(number)}/{values[c]}" for c in ("path", "mask", "part_mask") if c in values}
            rows.append(Row(**values | moved))
    expected = Manifest.from_rows(rows, whole).table
    assert read(whole / "manifest.parquet").table.equals(expected)
    monkeypatch.setattr(folders, "_CHUNK", 7)
    held = []
    table = folders._table
    monkeypatch.setattr(
        folders, "_table", lambda chunk, f: held.append(sum(map(len, chunk.values()))) or table(chunk, f)
    )
    assert write_manifest(copy) == (len(rows), len({row.identity for row in rows}))
    assert len(held) >= 3
    assert max(held) < 7 + PLAN.pictures
    assert read(copy / "manifest.parquet").table.equals(expected)
    assert write_world(copy, PLAN, 1).table.equals(expected)


def test_identities_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    manifest = write_world(tmp_path, replace(PLAN, distractors=0, parts=0), 2, start=999_999)
    assert manifest.column("path") == [
        f"{place}/view-{k}.jpg" for place in ("999/999999", "1000/1000000") for k in (0, 1)
    ]


# ---- numbers and options


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"count": -1}, {"start": -1}, {"workers": -1}, {"assets": Path("nowhere")}]
)
def test_odd_numbers_are_refused_before_anything_is_written(tmp_path: Path, wrong: dict[str, Any]) -> None:
    message = "nowhere is not a folder" if "assets" in wrong else "at least 1 identity"
    with pytest.raises(ValueError, match=message):
        render_world(tmp_path / "world", PLAN, **{"count": 1, **wrong})
    assert not (tmp_path / "world").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file; a world needs a folder"):
        render_world(tmp_path / "file", PLAN, 1)
    assert (tmp_path / "file").read_text() == "mine"


def test_edits_need_a_strength() -> None:
    with pytest.raises(ValueError, match="need at least one strength"):
        Plan(strengths=())
    assert Plan(strengths=(), distractors=0).pictures == 3


@pytest.mark.parametrize(("count", "processes"), [(8, 3), (2, 2)])
def test_no_workers_means_one_for_each_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, processes: int
) -> None:
    used = []
    monkeypatch.setattr(write, "cores", lambda: 3)
    monkeypatch.setattr(write, "_in_processes", lambda numbers, workers, job, done: used.append(workers))
    render_world(tmp_path, PLAN, count, workers=0)
    assert used == [processes]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "-1"], "--workers -1: it must be at least 0"),
        (["--start", "-5"], "--start -5: it must be at least 0"),
        (["--seed", "-1"], "--seed -1: it must be at least 0"),
        (["-n", "0"], "--identities 0: it must be at least 1"),
        (["--assets", "nowhere"], "--assets nowhere is not a folder"),
    ],
)
def test_the_command_names_the_flag_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    for more in ([], ["--dry-run"]):
        assert main(["world", "-o", str(tmp_path / "world"), *flags, *more]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "world").exists()


def test_the_command_tells_of_another_run_and_of_damage(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["world", "-o", str(copy), "--quiet", *FLAGS]
    with own_folder(copy):
        assert main(command) == 1
    assert "another run is using" in capsys.readouterr().err
    (copy / place_of(2) / "rows.jsonl").write_text("{")
    assert main(command) == 1
    assert "000002/rows.jsonl: line 1 is not JSON" in capsys.readouterr().err
    shutil.rmtree(copy / place_of(2))
    assert main(command) == 0
    manifest = read(copy / "manifest.parquet")
    identities = len(set(manifest.column("identity")))
    assert f"{len(manifest)} images of {identities} identities" in capsys.readouterr().out


@pytest.mark.parametrize("named", [False, True])
def test_a_full_disk_says_what_is_kept_and_the_same_command_renders_the_rest(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    from idmetric.io.output import OutputError

    saved = Image.Image.save

    def full(self: Image.Image, path: Path, *args: object, **options: object) -> None:
        if "000002" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", *([str(path)] if named else []))
        saved(self, path, *args, **options)

    plan = Plan(size=32, views=1, distractors=0)
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", full)
        with pytest.raises(OutputError, match=r"000002.*the disk is full.*finished identities are kept") as caught:
            render_world(tmp_path / "world", plan, 4)
    assert "/." not in str(caught.value)
    first = (tmp_path / "world" / "000" / "000000").stat().st_mtime_ns
    assert render_world(tmp_path / "world", plan, 4) == (4, 4)
    assert (tmp_path / "world" / "000" / "000000").stat().st_mtime_ns == first
