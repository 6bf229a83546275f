"""The first commands of each task page run as they stand, and print what the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from idmetric.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {"score-personalized": "jinja2", "find-duplicates": "PIL", "re-identify": "scipy"}


@pytest.mark.parametrize("name", NEEDS)
def test_the_first_commands_of_a_task_run_on_the_images_of_the_repository(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(NEEDS[name])
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    [(block, _, shown), *_] = re.findall(r"```bash\n(.*?)```(\n\n```text\n(.*?)```)?", text, flags=re.S)
    for line in block.splitlines():
        if line.startswith("idmetric "):
            assert main([*shlex.split(line)[1:], "--device", "cpu"]) == 0, line
        else:
            subprocess.run(line, shell=True, check=True)
    printed = capsys.readouterr().out
    for line in shown.splitlines():
        words = line.replace("...", str(tmp_path)).split()
        assert words in [found.split() for found in printed.splitlines()], line
    if name == "score-personalized":
        assert "mug_other.png" in Path("report.html").read_text(encoding="utf-8")
        first = next(found for found in printed.splitlines() if found.split()[:1] == ["1"])
        image = next(word for word in first.split() if word.endswith(".png"))
        assert Path(image).name == "mug_other.png"  # as the page says
    if name == "re-identify":
        hits = [found.split()[-1] for found in printed.splitlines() if found.startswith("examples/images/mug_b.png")]
        assert {Path(hit).stem for hit in hits[:2]} == {"mug_a", "mug_c"}
        assert Path(hits[2]).stem == "mug_other"
