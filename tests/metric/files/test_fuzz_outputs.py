"""Ctrl-C, full disks and read-only folders leave the old output whole, and say what to do."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from idmetric.metric.files import OutputError, check_writable, writing
from tests.fuzz.children import Children

# name -> module, words, what it writes
COMMANDS: dict[str, tuple[str, list[str], str]] = {
    "score": ("score", ["a/0/0.png", "a", "--model", "tiny", "--output", "out/x.csv", "--format", "csv"], "out/x.csv"),
    "data merge": ("data", ["merge", "m.csv", "-o", "out/x.parquet"], "out/x.parquet"),
    "eval": ("eval", ["folder", "--data", "m.csv", "--model", "tiny", "--out", "out", "--bootstrap", "0"],
    "out/folder.json"),
    "eval html": ("eval", ["folder", "--data", "m.csv", "--model", "hsv", "--html", "out/x.html", "--bootstrap", "0"],
    "out/x.html"),
    "gallery": ("gallery", ["build", "a", "--gallery", "out", "--model", "tiny"], "out"),
    "dedupe": ("gallery", ["dedupe", "a", "--model", "tiny", "--output", "out/x.csv"], "out/x.csv"),
    "score html": ("score", ["a/0/0.png", "a", "--model", "tiny", "--html", "out/x.html"], "out/x.html"),
    "match": ("match", ["--subject", "a=a/0", "a", "--model", "tiny", "--output", "out/x.csv", "--format", "csv"],
    "out/x.csv"),
    "train": ("train", ["nearid", "--smoke", "--cpu", "--workers", "0", "--out", "out/run"], "out/run"),
}  # fmt: skip
SINGLE = (".csv", ".parquet", ".html", ".json")
# what a command found is printed where its file cannot be written in the end
FOUND = dict.fromkeys(("score", "score html", "match"), "a/1/4.png")


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
    for k in range(6):
        path = tmp_path / "a" / str(k // 3) / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((64, 64), 20 + 5 * k).convert("RGB").save(path)
        rows.append(f"{k // 3},{path.relative_to(tmp_path)}")
    (tmp_path / "m.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def module(name: str) -> tuple[str, list[str], str]:
    short, words, output = COMMANDS[name]
    return f"idmetric.cli.{short}", words, output


def is_single(path: Path) -> bool:
    return path.suffix in SINGLE and path.stem == "x"


def is_whole(path: Path, whole: object) -> bool:
    """As it was made in a run that nothing stopped; of measurements, which differ, that it is all there."""
    if path.suffix == ".json":
        return isinstance(json.loads(path.read_text()), dict)
    return path.read_bytes() == whole


def hidden(folder: Path) -> list[str]:
    """Files that something half-written would leave: hidden ones, but for locks."""
    return [str(p.relative_to(folder)) for p in folder.rglob(".*") if not p.name.endswith(".lock")]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_ctrl_c_leaves_no_half_written_output(name: str, children: Children, work: Path) -> None:
    program, words, output = module(name)
    done = children.run(program, words, work)
    assert done.status == 0, done.said
    whole = files(work / output) if (work / output).is_dir() else (work / output).read_bytes()
    assert whole
    stopped = 0
    for part in (0.3, 0.8) if name == "train" else (0, 0.3, 0.6, 0.99):
        for path in sorted((work / "out").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        single = is_single(work / output)
        if single:
            (work / output).write_bytes(b"old")
        child = children.run(program, words, work, stop_at=1 + int(part * done.files))
        assert child.status in (0, 130), child.said
        assert "Traceback" not in child.said
        assert not hidden(work)
        stopped += child.status == 130
        if single:
            left = (work / output).read_bytes()
            assert (left == b"old" and child.status == 130) or is_whole(work / output, whole)
    assert stopped, "no moment was early enough to stop it"
    again = children.run(program, words, work)  # what a stopped run left is no obstacle
    assert again.status == 0, again.said


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_full_disk_gives_a_clear_error_and_leaves_the_old_output_whole(
    name: str, children: Children, work: Path
) -> None:
    program, words, output = module(name)
    single = is_single(work / output)
    if single:
        (work / output).write_bytes(b"old")
    child = children.run(program, words, work, largest=100)
    assert child.status in (1, 2), child.said
    assert "Traceback" not in child.said
    assert "disk is full" in child.said or "File too large" in child.said
    assert "out" in child.said or "/idmetric-" in child.said  # what is not kept is in the system's folder
    assert FOUND.get(name, "") in child.said
    assert "/." not in child.said  # the name that it was to have, not that of a temporary file
    assert not hidden(work)
    if single:
        assert (work / output).read_bytes() == b"old"
    assert children.run(program, words, work).status == 0  # with room it goes


@pytest.mark.parametrize(("name", "found"), [("score", "a/1/4.png"), ("dedupe", "group"), ("eval", "hsv")])
def test_what_was_found_is_printed_where_the_disk_is_full_in_the_end(
    name: str, found: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def full(path: Path) -> Iterator[Path]:
        with writing(path):
            yield path.with_name("never")
            raise OSError(errno.ENOSPC, "No space left on device")

    program, words, output = module(name)
    for place in ("idmetric.cli.command", "idmetric.evaluate.protocols.common.result"):
        monkeypatch.setattr(f"{place}.replacing", full)
    monkeypatch.chdir(work)
    words = ["hsv" if word == "tiny" and name == "eval" else word for word in words]
    assert importlib.import_module(program).main(words) == 1
    out, error = capsys.readouterr()
    assert found in out
    assert "disk is full" in error
    assert "on stdout" in error
    assert not (work / output).exists()


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


def test_an_output_is_asked_for_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "x")
    check_writable(tmp_path / "a" / "b" / "x", parents=True)
    check_writable("/dev/stdout")
    (tmp_path / "old").write_text("old")
    check_writable(tmp_path / "old")
    (tmp_path / "file").write_text("")
    for place, parents, says in (
        (tmp_path / "a" / "x", False, "its folder is not there"), (tmp_path, False, "a folder of that name"),
        (tmp_path / "file" / "x", True, "is a file"), (tmp_path / ("x" * 300) / "y", True, "too long"),
    ):  # fmt: skip
        with pytest.raises(OutputError, match=says) as caught:
            check_writable(place, parents)
        assert repr(str(place)) in str(caught.value)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"old": b"old", "file": b""}
