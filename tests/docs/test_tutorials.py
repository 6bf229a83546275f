"""The tutorials of `match` run from their first to their last block, and print what they show."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from idmetric.cli.main import main
from tests.docs.test_pages import numbered

ROOT = Path(__file__).resolve().parents[2]
NOT_THERE = ("photos/", "page.png")  # files that only a reader has


def printed_as_shown(shown: str, printed: str) -> None:
    """Each line that a page shows is the beginning of a printed line; decimals may differ by the decoder's version."""
    lines = [numbered(line) for line in printed.splitlines()]
    for line in shown.splitlines():
        words, numbers = numbered(line)
        alike = [found for found_words, found in lines if found_words[: len(words)] == words]
        close = [found for found in alike if found[: len(numbers)] == pytest.approx(numbers, abs=0.02)]
        assert close or words == ["..."] or not words, f"{line}\nis not in\n{printed}"


@pytest.mark.parametrize("name", ["several-subjects", "video", "stories"])
def test_a_tutorial_runs_and_prints_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("av", "jinja2", "scipy"):
        pytest.importorskip(module)
    shutil.copytree(ROOT / "examples" / "images", tmp_path / "examples" / "images")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120  # three screens

    names: dict[str, Any] = {}
    printed, shown_count = "", 0
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.S | re.M):
        if language == "python":
            exec(compile(block, name, "exec"), names)
            printed += capsys.readouterr().out
        elif language == "bash":
            for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
                if not any(path in line for path in NOT_THERE):
                    assert main([*shlex.split(line)[1:], "--device", "cpu", "--quiet"]) == 0, line
            printed += capsys.readouterr().out
        else:
            printed_as_shown(block, printed)
            shown_count += 1
    assert shown_count >= 2
