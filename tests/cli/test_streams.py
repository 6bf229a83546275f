"""Commands without stdout or stderr: closed by the shell (`>&-`, `2>&-`), on a full disk, under pythonw, `| true`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from idmetric.cli.main import main

SCORE = "score a.png b.png broken.png --model tiny --device cpu --on-error skip"
full_disk = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is of Linux")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.png"):
        Image.effect_noise((40, 40), 50).save(name)
    Path("broken.png").write_text("no image")
    return tmp_path


@pytest.fixture
def full() -> Iterator[object]:
    """A stream like `2>/dev/full`."""
    stream = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115  # closing may fail
    yield stream
    with suppress(OSError):
        stream.close()


def test_closed_stderr_costs_messages_and_no_scores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """print(file=None) would write the messages among the scores."""
    monkeypatch.setattr(sys, "stderr", None)
    assert main([*SCORE.split(), "--format", "csv"]) == 4
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == ["rank", "1"]


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (SCORE, "name a file with --output"),
        ("gallery cluster . --model tiny", "name a file with --output"),
        ("gallery dedupe . --model tiny", "name a file with --output"),
        ("eval folder --data . --model hsv", "keep the result by --out DIR"),
        ("data info .", "leave it open"),
    ],
)
def test_closed_stdout_is_reported_before_the_work(
    words: str, advice: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert capsys.readouterr().err.endswith(f"error: stdout is closed: {advice}\n")


@full_disk
@pytest.mark.parametrize(
    ("words", "advice"), [(SCORE, "name a file with --output"), ("data info images.csv", "direct it to another disk")]
)
def test_stdout_on_a_full_disk_is_an_error_of_one_line(
    words: str, advice: str, folder: Path, full: object,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    Path("images.csv").write_text("identity,path\nx,a.png\n")
    monkeypatch.setattr(sys, "stdout", full)
    assert main(words.split()) == 1
    assert f"cannot write to stdout: No space left on device; {advice}" in capsys.readouterr().err
