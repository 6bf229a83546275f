"""Errors of all commands are one line that says how to fix them; so are Ctrl-C and SIGTERM."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from idmetric import IDSim
from idmetric.cli.main import main
from tests.embed_parts import pictures
from tests.runner import Runner


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("score a.png b.png --treshold 0.3", "--treshold"), ("score a.png b.png --distance clz", "cls"),
        ("gallery qeury a.png", "query"), ("data mine negativ x", "negatives"), ("eval folder --datta x", "--datta"),
        ("train --xyz", "RECIPE is needed"),
    ],
)  # fmt: skip
def test_wrong_usage_gets_one_line_without_the_usage(
    words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = Runner(main, capsys).says(named, words, status=2)
    assert error.count("\n") == 1
    assert f"(see idmetric {words.split()[0]}" in error


# Ctrl-C and SIGTERM


class Interrupted:
    """A finder of modules that gets a signal when one of them is imported, as a slow import of torch may."""

    def __init__(self, name: str, number: signal.Signals) -> None:
        self.name, self.number = name, number

    def find_spec(self, name: str, *_: object) -> None:
        if name == self.name:
            self.stop()

    def stop(self) -> None:
        signal.raise_signal(self.number)


SLOW_IMPORTS = pytest.mark.parametrize(
    ("command", "words", "module"),
    [
        ("train", "ilgen --smoke --out run", "idmetric.train.ilgen.recipe"),
        ("eval", "folder --data .", "idmetric.data.manifest"),
        ("score", "a.png b.png", "idmetric.metric.load"),
        ("gallery", "build . --gallery g", "idmetric.metric.load"),
    ],
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@SLOW_IMPORTS
def test_ctrl_c_and_sigterm_during_imports_end_in_one_line(
    command: str, words: str, module: str, number: signal.Signals, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    finder = Interrupted(module, number)
    assert interrupted(command, words, module, finder, tmp_path, monkeypatch) == 128 + number
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert said.err.endswith(": stopped\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_messages_are_bounded_whatever_a_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"m.jsonl": json.dumps({"y" * 700_000: 1}), "m.csv": "y" * 700_000, "pairs.csv": "a," * 10**5}
    for name, text in texts.items():
        Path(name).write_text(f"{text}\n{text}\n")
    run = Runner(main, capsys)
    for words in ("data info m.jsonl", "data info m.csv", "score --pairs pairs.csv"):
        status, _, error = run.all(*words.split())
        assert status in (1, 2)
        assert words.split()[-1] in error
        assert len(error) < 11_000


def interrupted(
    command: str, words: str, module: str, finder: Interrupted, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Run a command in a folder, stopped when it imports a module; return its exit status."""
    monkeypatch.chdir(folder)
    for name in ("a.png", "b.png"):
        Path(name).touch()
    main = importlib.import_module(f"idmetric.cli.{command}").main
    monkeypatch.delitem(sys.modules, module, raising=False)
    package, _, name = module.rpartition(".")
    if package in sys.modules:
        monkeypatch.delattr(sys.modules[package], name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    status: int = main(words.split())
    return status


@pytest.mark.parametrize("command", ["gallery build", "score"])
def test_sigterm_saves_the_embeddings_that_are_done(
    command: str, metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Ctrl-C does; a scheduler that ends a job would otherwise cost up to half a minute of work."""
    first, *others = pictures(tmp_path / "photos", 6)
    metric.save_pretrained(tmp_path / "model")
    words = {
        "gallery build": ["gallery", "build", tmp_path / "photos", "--gallery", tmp_path / "kept"],
        "score": ["score", first, *others, "--cache", tmp_path / "kept"],
    }[command]
    words += ["--model", tmp_path / "model", "--device", "cpu", "--batch-size", "2"]
    original, calls, embedded = IDSim.embed_prepared, [], []

    def embed_prepared(self: IDSim, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        embedded.extend(found := original(self, *args))
        return found

    monkeypatch.setattr(IDSim, "embed_prepared", embed_prepared)
    run = Runner(main, capsys)
    error = run.fails("stopped", *words, status=143)
    assert "Traceback" not in error
    assert 0 < len(embedded) < 6
    assert run(*words) == 0
    assert len(embedded) == 6  # none of them twice


def test_mistakes_are_reported_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.txt"):
        (tmp_path / name).write_bytes(b"not read")
    (tmp_path / "pairs.csv").write_text("a,b\na.png,gone.png\na.png,b.png\na.png,lost.png\n")
    (tmp_path / "empty").mkdir()
    baseline = "{} is a baseline for tables: idmetric eval folder --data FOLDER --model {}"
    no_gallery = "'{}' is not a gallery: make one with idmetric gallery build FOLDER --gallery {}"
    mistakes = {
        "score a.png b.png --model tinny": "unknown model 'tinny'",
        **{f"score a.png b.png --model {x}": baseline.format(x, x) for x in ("hsv", "dreamsim", "diffsim:cute")},
        **{f"gallery {words} -g nope": no_gallery.format("nope", "nope") for words in ("query a.png", "dedupe")},
        "gallery cluster -g empty": no_gallery.format("empty", "empty"),
        "score a.png gone.png --model tiny": "cannot read image gone.png: the file does not exist",
        "score --pairs pairs.csv --model tiny": "2 images: cannot read image gone.png: the file does not exist",
        "score a.png b.png --distance clz": "invalid choice: 'clz'",
        "score a.png b.png --model gone/run/": "'gone/run/' is neither an existing folder nor a Hub repository",
        "score a.png b.png --model tiny --calibration gone.json": "cannot read 'gone.json'",
        "score a.png b.png --model tiny --output gone/x.csv": "cannot write 'gone/x.csv'",
        "gallery build a.png --gallery index --model tinny": "unknown model 'tinny'",
        "eval folder --data . --model hsv --model tinny": "unknown model 'tinny'",
        "eval folder --data . --model mine=tinny": "unknown model 'tinny'",
        "eval folder --model untrained:tinny": "unknown model 'tinny'",
        "eval folder --data . --model dreamsim:dino": "unknown baseline 'dreamsim:dino': choose dreamsim, ",
        "eval folder --data . --model diffsim:nights": "unknown baseline 'diffsim:nights': choose diffsim, ",
        "eval folder --data . --model x=hsv --model x=tiny": "two models are called 'x'",
        "eval folder --data . --subject crop --mask-id 0": "mask_id '0' is not a label",
        "eval folder --data . --mask-id 3": "--mask-id needs --subject",
        "score a.png b.png --mask-dir . --mask-id red": "mask_id 'red' is not a label",
        "gallery build a.png --gallery index --mask-id #ff00": "mask_id '#ff00' is not a color",
    }
    # last those of eval, as the file of a protocol imports numpy
    mistakes = dict(sorted(mistakes.items(), key=lambda item: item[0].startswith("eval ")))
    code = (
        "import sys\nfrom idmetric.cli.main import main\n"
        f"for words in {list(mistakes)}:\n"
        "    heavy = {'torch', 'timm', 'huggingface_hub', 'pyarrow'}\n"
        "    heavy |= set() if words.startswith('eval ') else {'numpy'}\n"
        "    try: status = main(words.split())\n"
        "    except SystemExit as stop: status = stop.code\n"
        "    print(status, sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    seen = done.stdout.splitlines()
    assert [line.partition(" ")[2] for line in seen] == ["[]"] * len(mistakes), done
    assert {line.partition(" ")[0] for line in seen} == {"1", "2"}
    for line, reason in zip(done.stderr.splitlines(), mistakes.values(), strict=True):
        option = "--distance" if "choice" in reason else "--mask-id" if reason.startswith("mask_id") else ""
        assert f"error: {option and f'argument {option}: '}{reason}" in line
