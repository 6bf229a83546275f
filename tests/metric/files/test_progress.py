"""Progress: a bar on a terminal, nothing for short work in a log, nothing with --quiet."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.cli import eval as eval_command
from idmetric.cli.data.common import progress as over_images
from idmetric.metric.files import Progress
from tests.evaluate.protocols.parts import Near


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def photos(root: Path) -> Path:
    rng = np.random.default_rng(0)
    for k in range(6):
        (root / f"{k % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(root / f"{k % 3}" / f"{k}.png")
    return root


def test_eval_counts_images_and_pairs_on_a_terminal_unless_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idmetric.metric.files.REDRAW", 0.0)
    monkeypatch.setattr("idmetric.evaluate.protocols.common.baselines.Lpips", Near)
    given = ["folder", "--data", str(photos(tmp_path)), "--model", "lpips", "--bootstrap", "0"]
    for words, shown in ((given, True), ([*given, "--quiet"], False)):
        monkeypatch.setattr("sys.stderr", Terminal())
        assert eval_command.main(words) == 0
        assert ("/6 [" in sys.stderr.getvalue() and "/21 [" in sys.stderr.getvalue()) == shown
        assert shown or not sys.stderr.getvalue()


def test_short_work_is_silent_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(over_images(iter(range(3)), 3, "check")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_program_without_a_console_has_no_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with Progress("images") as progress:
        progress(1, 2)
