"""Ctrl-C, full disks and read-only folders leave the old output whole, and say what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.fuzz.children import Children

COMMANDS: dict[str, tuple[str, list[str], str]] = {
    "score": ("score", ["a/0/0.png", "a", "--model", "tiny", "--output", "out/x.csv", "--format", "csv"], "out/x.csv"),
    "data merge": ("data", ["merge", "m.csv", "-o", "out/x.parquet"], "out/x.parquet"),
    "eval": ("eval", ["folder", "--data", "m.csv", "--model", "tiny", "--out", "out", "--bootstrap", "0"],
    "out/folder.json"),
    "gallery": ("gallery", ["build", "a", "--gallery", "out", "--model", "tiny"], "out"),
}  # fmt: skip


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    with Children() as found:
        yield found


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with images, a manifest, and a folder for outputs."""
    (tmp_path / "a").mkdir()
    (tmp_path / "out").mkdir()
    rows = ["identity,path"]
    for k in range(12):
        path = tmp_path / "a" / str(k // 3) / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((64, 64), 20 + 5 * k).convert("RGB").save(path)
        rows.append(f"{k // 3},{path.relative_to(tmp_path)}")
    (tmp_path / "m.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def module(name: str) -> tuple[str, list[str], str]:
    short, words, output = COMMANDS[name]
    return f"idmetric.cli.{short}", words, output


def hidden(folder: Path) -> list[str]:
    """Files that something half-written would leave: hidden ones, but for locks."""
    return [str(p.relative_to(folder)) for p in folder.rglob(".*") if p.name != ".lock"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_ctrl_c_leaves_no_half_written_output(name: str, children: Children, work: Path) -> None:
    program, words, output = module(name)
    start = time.monotonic()
    done = children.run(program, words, work)
    took = time.monotonic() - start
    assert done.status == 0, done.said
    whole = files(work / output) if (work / output).is_dir() else (work / output).read_bytes()
    assert whole
    stopped = 0
    for part in (0.1, 0.5, 0.85):
        for path in sorted((work / "out").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        single = (work / output).suffix in (".csv", ".parquet")
        if single:
            (work / output).write_bytes(b"old")
        child = children.start(program, words, work)
        time.sleep(took * part)
        child.interrupt()
        child.wait()
        assert child.status in (0, 130), child.said
        assert "Traceback" not in child.said
        assert not hidden(work)
        stopped += child.status == 130
        if single:
            assert (work / output).read_bytes() in ((whole,) if child.status == 0 else (b"old", whole))
    assert stopped, "no moment was early enough to stop it"
    again = children.run(program, words, work)  # what a stopped run left is no obstacle
    assert again.status == 0, again.said


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_full_disk_gives_a_clear_error_and_leaves_the_old_output_whole(
    name: str, children: Children, work: Path
) -> None:
    program, words, output = module(name)
    single = (work / output).suffix in (".csv", ".parquet")
    if single:
        (work / output).write_bytes(b"old")
    child = children.run(program, words, work, largest=100)
    assert child.status in (1, 2), child.said
    assert "Traceback" not in child.said
    assert "disk is full" in child.said or "File too large" in child.said
    assert "out" in child.said
    assert "/." not in child.said  # the name that it was to have, not that of a temporary file
    assert not hidden(work)
    if single:
        assert (work / output).read_bytes() == b"old"
    assert children.run(program, words, work).status == 0  # with room it goes


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_read_only_folder_gives_a_clear_error(name: str, children: Children, work: Path) -> None:
    program, words, _ = module(name)
    (work / "out" / "kept").write_text("kept")
    (work / "out").chmod(0o555)
    try:
        child = children.run(program, words, work, plain=True)
    finally:
        (work / "out").chmod(0o755)
    assert child.status in (1, 2), child.said
    assert "Traceback" not in child.said
    assert "out" in child.said
    assert "read-only for you" in child.said or "permission" in child.said.lower()
    assert files(work / "out") == {"kept": b"kept"}
