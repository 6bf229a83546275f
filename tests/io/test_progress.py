"""Progress lines: plain ones in a log every half minute, one that is redrawn on a terminal, none with --quiet."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.cli import eval as eval_command
from idmetric.cli.data.common import progress as over_images
from idmetric.io import progress as module
from idmetric.io.progress import Progress


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_half_minute_with_share_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = Clock(monkeypatch), io.StringIO()
    show = Progress("images", verb="embedded", stream=log)
    for done in range(0, 3000, 100):  # 10 images a second
        show(done, 5000)
        clock.now += 10
    assert log.getvalue().splitlines()[:3] == [
        "embedded 300 of 5000 images, 6 %, about 8 min left",
        "embedded 600 of 5000 images, 12 %, about 7 min left",
        "embedded 900 of 5000 images, 18 %, about 7 min left",
    ]
    assert len(log.getvalue().splitlines()) == 9
    assert "\r" not in log.getvalue()
    assert "\033" not in log.getvalue()


def test_the_time_left_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run passes over most of its work at once."""
    clock, log = Clock(monkeypatch), io.StringIO()
    show = Progress("images", stream=log)
    show(0, 10_000)
    show(9000, 10_000)
    for done in range(9000, 9100):
        clock.now += 1
        show(done, 10_000)
    assert log.getvalue().splitlines()[-1] == "9089 of 10000 images, 90 %, about 15 min left"


def test_other_work_starts_its_own_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = Clock(monkeypatch), io.StringIO()
    show = Progress("images", stream=log)
    for done in range(101):
        show(done, 100)  # 1 a second
        clock.now += 1
    for done in range(0, 100, 10):
        show(done, 1000)  # 10 in 5 seconds
        clock.now += 5
    assert log.getvalue().splitlines()[-1] == "40 of 1000 images, 4 %, about 8 min left"


def test_a_terminal_gets_one_line_that_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = Clock(monkeypatch), Terminal()
    with Progress("pairs", verb="compared", stream=log) as show:
        for done in range(0, 101, 50):
            show(done, 100)
            clock.now += 10
    shown = log.getvalue()
    assert "\n" not in shown
    assert "50/100 pairs, 5 a second, 0:00:10 left" in shown
    assert shown.endswith("\r\033[K")


def test_quiet_writes_nothing_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for stream in (io.StringIO(), Terminal()):
        with Progress("images", show=False, stream=stream) as show:
            for done in range(5):
                show(done, 5)
                clock.now += 100
        assert stream.getvalue() == ""


def photos(root: Path) -> Path:
    rng = np.random.default_rng(0)
    for k in range(6):
        (root / f"{k % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(root / f"{k % 3}" / f"{k}.png")
    return root


def test_eval_reports_images_and_pairs_in_a_log_unless_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Progress.__init__, "__kwdefaults__", {"verb": "", "every": 0.0, "stream": None})
    monkeypatch.setattr(module, "_REDRAW", 0.0)
    given = ["folder", "--data", str(photos(tmp_path)), "--model", "ssim", "--bootstrap", "0"]
    assert eval_command.main(given) == 0
    said = capsys.readouterr().err
    assert "processed 6 of 6 images, 100 %" in said
    assert "compared 21 of 21 pairs, 100 %" in said
    assert eval_command.main([*given, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_data_commands_report_images_in_a_log_unless_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)

    def step(k: int) -> int:
        clock.now += 20
        return k

    assert list(over_images(map(step, range(3)), 3, "check")) == [0, 1, 2]
    assert capsys.readouterr().err == "check: 2 of 3 images, 66 %, about 20 s left\n"
    assert list(over_images(map(step, range(3)), 3, "check", quiet=True)) == [0, 1, 2]
    assert capsys.readouterr().err == ""
