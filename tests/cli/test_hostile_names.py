"""Names of files, tensors and methods come from strangers: none may control a terminal or fake a line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.numpy import save_file

from idmetric.cli.command import say
from idmetric.cli.main import main
from idmetric.data.manifest import checked
from idmetric.data.summary import as_text
from idmetric.evaluate.protocols.common import tables
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.metric.idsim import TINY
from idmetric.tables import aligned, printable
from tests.runner import Runner

NAME = "a\x1b[2Jb\r\nidmetric score: done\u202egnp.exe"
SHOWN = r"a\x1b[2Jb\r\nidmetric score: done\u202egnp.exe"


def test_text_of_any_script_stays_as_it_is() -> None:
    for text in ("größe 猫 кот.png", "می\u200cخواهم", "\U0001f469\u200d\U0001f52c", "a b\\n"):
        assert printable(text) == text
    assert printable(NAME) == SHOWN
    assert printable("\x00\x7f\x9b\u2028\u2066") == r"\x00\x7f\x9b\u2028\u2066"


def test_tables_show_names_in_one_line() -> None:
    assert aligned([["image", "n"], [NAME, "1"]]) == [f"{'image':<{len(SHOWN)}}  n", f"{SHOWN}  1"]
    result = Result("folder", NAME, [{"method": f"{NAME}|", "AP": Value(0.5, None, None, 3)} for _ in range(2)])
    for text in (tables.table([result]), tables.markdown([result]), tables.latex([result])):
        assert not set(text) & set("\x1b\r\u202e")
        assert not any(line.startswith("idmetric score: done") for line in text.splitlines())
    table = checked(pd.DataFrame({"identity": [NAME], "path": [f"{NAME}.png"]}))
    assert SHOWN in as_text(table, {"files are missing": [NAME]})


def test_errors_show_names_of_files_and_tensors_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    save_file({NAME: np.full(1, np.nan, np.float32)}, "model/model.safetensors")
    shutil.copy(TINY / "config.json", "model")
    for name in ("a.png", "b.png"):
        Image.effect_noise((40, 40), 50).save(name)
    Path(f"{NAME}.png").write_text("no image")
    run = Runner(main, capsys)
    for words, status in (
        (["score", "a.png", f"{NAME}.png", "--model", "tiny"], 1),
        (["score", "a.png", "b.png", "--model", "model"], 1),
        (["gallery", "build", f"{NAME}.png", "--gallery", "index", "--model", "tiny"], 4),
        (["score", "a.png", "b.png", f"--{NAME}"], 2),
    ):
        error = run.says(r"a\x1b[2Jb", *words, status=status)
        assert not set(error) & set("\x1b\r\u202e")
        assert not any(line.startswith("idmetric score: done") for line in error.splitlines())


def test_a_further_line_of_a_message_is_indented(capsys: pytest.CaptureFixture[str]) -> None:
    """So that a line break in a name cannot fake a message of the command."""
    say("error: 2 images cannot be used:\n  a.png: gone\nidmetric score: done")
    assert capsys.readouterr().err.splitlines()[1:] == ["  a.png: gone", "  idmetric score: done"]


def test_scores_and_warnings_show_names_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reference stands below the table, and in the warning of a copy."""
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((40, 40), 50).save(f"{NAME}.png")
    shutil.copy(f"{NAME}.png", "copy.png")
    assert main(["score", f"{NAME}.png", "copy.png", f"{NAME}.png", "--model", "tiny", "--device", "cpu"]) == 0
    done = capsys.readouterr()
    for text in (done.out, done.err):
        assert SHOWN in text
        assert not set(text) & set("\x1b\r\u202e")
        assert not any(line.startswith("idmetric score: done") for line in text.splitlines())
