"""Errors of all commands are one line that says how to fix them; Ctrl-C says what was kept."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from idmetric.cli.command import Parser, ended

COMMANDS = ("score", "data", "train", "eval", "bench")


def error_of(command: str, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that a command prints on stderr before it exits with status 2."""
    try:
        status = importlib.import_module(f"idmetric.cli.{command}").main(list(words))
    except SystemExit as stop:
        status = stop.code
    said = capsys.readouterr()
    assert (status, said.out, said.err.count("\n")) == (2, "", 1), said
    return said.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("score a.png b.png --treshold 0.3", "--treshold"), ("score a.png b.png --distance clz", "cls"),
        ("gallery qeury a.png", "query"), ("data mine negativ x", "negatives"), ("eval folder --datta x", "--datta"),
    ],
)  # fmt: skip
def test_a_mistyped_name_gets_one_line(words: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in error_of(*words.split(), capsys=capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_gets_one_line_without_the_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(command, "--xyz", capsys=capsys)
    assert "usage:" not in error
    assert f"(see idmetric-{command}" in error


# Ctrl-C


class Interrupted:
    """A finder of modules that gets Ctrl-C when one of them is imported, as a slow import of torch may."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, *_: object) -> None:
        if name == self.name:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("command", "words", "module", "kept"),
    [
        ("train", "ilgen --smoke --out run", "idmetric.train.ilgen.recipe", "the same command resumes from the last"),
        ("bench", "--json b.json", "idmetric.checkpoints.errors", "measured models were printed"),
        ("eval", "folder --data . --out results", "idmetric.protocols.folder", "embeddings in --out are kept"),
        ("eval", "folder --data .", "idmetric.protocols.folder", "with --out DIR the same command would resume"),
        ("score", "a.png b.png", "idmetric.checkpoints.errors", "with --cache DIR the same command would resume"),
        ("score", "a.png b.png --cache c", "idmetric.checkpoints.errors", "embeddings in c are kept"),
        ("embed", ". --out vectors", "idmetric.checkpoints.errors", "finished files are in vectors"),
        ("gallery", "build . --gallery g", "idmetric.checkpoints.errors", "embeddings in g are kept"),
        ("data", "world --out world", "idmetric.data.world.write", "the same command resumes"),
    ],
)
def test_ctrl_c_during_imports_ends_in_one_line(
    command: str, words: str, module: str, kept: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.png"):
        Path(name).touch()
    main = importlib.import_module(f"idmetric.cli.{command}").main
    monkeypatch.delitem(sys.modules, module, raising=False)
    package, _, name = module.rpartition(".")
    if package in sys.modules:
        monkeypatch.delattr(sys.modules[package], name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(module), *sys.meta_path])
    assert main(words.split()) == 130
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert ": stopped; " in said.err
    assert kept in said.err


def test_ctrl_c_says_what_was_kept(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    assert ended(stopped, Parser(prog="idmetric-train"), "the checkpoint of step 3 is kept") == 130
    assert capsys.readouterr().err == "idmetric-train: stopped; the checkpoint of step 3 is kept\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ended(lambda: 1, Parser(prog="idmetric-train")) == 1


# Optional packages


# Cheap checks before models


@pytest.mark.parametrize("words", ["query a.png", "prune", "dedupe", "cluster"])
def test_a_folder_that_is_no_gallery_is_named_before_torch_is_imported(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").touch()
    Path("empty").mkdir()
    for folder in ("nope", "empty"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "torch", None)
            assert importlib.import_module("idmetric.cli.gallery").main([*words.split(), "-g", folder]) == 1
        said = capsys.readouterr()
        assert said.err == (
            f"idmetric gallery: error: '{folder}' is not a gallery: make one with idmetric gallery build "
            f"FOLDER --gallery {folder}\n"
        )


@pytest.mark.parametrize("name", ["hsv", "dreamsim", "diffsim:cute"])
def test_a_baseline_of_eval_leads_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for image in ("a.png", "b.png"):
        Path(image).touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert importlib.import_module("idmetric.cli.score").main(["--model", name, "a.png", "b.png"]) == 1
    assert f"idmetric eval folder --data FOLDER --model {name}" in capsys.readouterr().err


def test_mistakes_are_reported_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.txt"):
        (tmp_path / name).write_bytes(b"not read")
    (tmp_path / "pairs.csv").write_text("a,b\na.png,gone.png\na.png,b.png\na.png,lost.png\n")
    mistakes = {
        "score a.png b.png --model tinny": "unknown model 'tinny'",
        "score a.png gone.png --model tiny": "cannot read image gone.png: there is no such file",
        "score --pairs pairs.csv --model tiny": "2 images: cannot read image gone.png: there is no such file",
        "score a.png b.png --distance clz": "invalid choice: 'clz'",
        "score a.png b.png --model gone.onnx": "there is no file 'gone.onnx'",
        "score a.png b.png --model gone/run/": "'gone/run/' is neither an existing folder nor a Hub repository",
        "score a.png b.png --model tiny --calibration gone.json": "cannot read 'gone.json'",
        "score a.png b.png --model tiny --output gone/x.csv": "cannot write 'gone/x.csv'",
        "embed a.png --out out --model tinny": "unknown model 'tinny'",
        "gallery build a.png --gallery index --model tinny": "unknown model 'tinny'",
        "export --model tinny --out tinny.onnx": "unknown model 'tinny'",
        "bench --model tinny": "unknown model 'tinny'",
        "eval folder --data . --model hsv --model tinny": "unknown model 'tinny'",
        "eval folder --data . --model mine=tinny": "unknown model 'tinny'",
        "eval photos --model untrained:tinny": "unknown model 'tinny'",
        "eval folder --data . --model dreamsim:dino": "unknown baseline 'dreamsim:dino': choose dreamsim, ",
        "eval folder --data . --model diffsim:nights": "unknown baseline 'diffsim:nights': choose diffsim, ",
        "eval folder --data . --model x=hsv --model x=ssim": "two models are called 'x'",
        "eval folder --data . --subject crop --mask-id 0": "mask_id '0' is not a label",
        "eval folder --data . --mask-id 3": "--mask-id needs --subject",
        "score a.png b.png --mask-dir . --mask-id red": "mask_id 'red' is not a label",
        "gallery build a.png --gallery index --mask-id #ff00": "mask_id '#ff00' is not a color",
    }
    code = (
        "import sys\nfrom idmetric.cli.main import main\n"
        f"for words in {list(mistakes)}:\n"
        "    try: status = main(words.split())\n"
        "    except SystemExit as stop: status = stop.code\n"
        "    print(status, sorted({'torch', 'timm', 'numpy', 'huggingface_hub', 'pyarrow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    seen = done.stdout.splitlines()
    assert [line.partition(" ")[2] for line in seen] == ["[]"] * len(mistakes), done
    assert {line.partition(" ")[0] for line in seen} == {"1", "2"}
    for line, reason in zip(done.stderr.splitlines(), mistakes.values(), strict=True):
        option = "--distance" if "choice" in reason else "--mask-id" if reason.startswith("mask_id") else ""
        assert f"error: {option and f'argument {option}: '}{reason}" in line
