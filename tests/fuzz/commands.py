"""Command lines of all commands: odd values, paths that are no files, options that do not go together."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import images, tables, texts
from tests.fuzz.damage import NUMBERS, WORDS

# command -> its module, and lines that work in the folder that `_fill` makes
NAMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "score": ("idmetric.cli.score", (
        "good.png folder --model tiny", "--ref good.png --ref folder/0.png folder --model tiny --distance joint",
        "--pairs pairs.csv --model tiny --format json --output out.json",
        "good.png bad.png --model tiny --on-error skip",
        "good.png folder --model tiny --mask-dir folder --calibration c.json",
    )),
    "gallery": ("idmetric.cli.gallery", (
        "build folder --gallery g --model tiny", "query good.png --gallery g --model tiny",
        "dedupe folder --model tiny",
        "cluster folder --model tiny --threshold 0.3", "build m.csv --gallery g --model tiny --parquet out.parquet",
    )),
    "eval": ("idmetric.cli.eval", (
        "folder --data m.csv --model hsv --bootstrap 10", "folder --data m.csv --model tiny --out r --format json",
        "retrieval --data bad.csv --model hsv", "nearid --data bad.parquet --model hsv",
        "calibrate --data m.csv --model hsv",
        "segmentation --data m.csv --model tiny", "dreambench --data m.csv --model hsv",
        "folder --data m.csv --model judge:j.json",
    )),
    "data": ("idmetric.cli.data", (
        "info m.csv --decode", "info bad.csv", "info bad.parquet", "merge m.csv bad.csv -o out.csv",
        "import folder folder -o out.csv",
        "split m.csv -o out.parquet --part train=0.5 --part test=0.5",
        "curate m.csv -o out.csv --recipe visme --filters bad.json",
        "mine negatives m.csv -o out.csv --model tiny", "frames folder --sampling lasot --out out",
    )),
    "train": ("idmetric.cli.train", (
        "tiny --data m.csv --dry-run --cpu", "nearid --data m.csv --dry-run --cpu --config bad.json",
        "idsim --data bad.csv --dry-run --cpu",
        "tiny --data m.csv --dry-run --cpu --config bad.toml --out run", "ilgen --data m.csv --dry-run --cpu",
    )),
}  # fmt: skip
_WORDS = (
    "good.png", "bad.png", "empty.png", "missing.png", "folder", "m.csv", "bad.csv", "bad.json", "bad.parquet",
    "/dev/null", "", "loop",
    "nowhere", "-", "a\0b", "x" * 300, "[", "*.png", "**", "http://127.0.0.1:1/a.png", "nothing", "timm:nothing",
    "timm:", ".", "a/b/c",
    "../x", "judge:j.json", "hsv=", "=hsv", "tiny", "--", "--nothing", "-x", "--help", "--version",
)  # fmt: skip
# they would work for long, fetch, listen, or draw pages, which have tests of their own
_LEFT_OUT = {"--smoke", "--list-models", "--identities", "--html", "--plots", "--wandb", "--device"}


def line(name: str) -> Any:
    """What makes command lines: those that work with words replaced, taken away and added."""

    def make(rng: Random, folder: Path) -> tuple[Path, list[str]]:
        _fill(folder, rng)
        words = rng.choice(NAMES[name][1]).split()
        sub = words[0]
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            kind, at = rng.random(), rng.randrange(len(words) + 1)
            if kind < 0.4:
                words[at : at + 1] = [rng.choice((*_WORDS, *WORDS, *map(str, NUMBERS)))]
            elif kind < 0.5:
                del words[at : at + 1]
            elif options := _options(name, sub):
                words += _option(rng.choice(options), rng)
        return folder, words

    return make


def run(name: str) -> Any:
    """What runs one; without a network, and with nothing but its folder."""

    def read(given: tuple[Path, list[str]]) -> None:
        folder, words = given
        module = importlib.import_module(NAMES[name][0])
        before = Path.cwd()
        os.chdir(folder)
        os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                status = module.main(words)
            if status not in (0, 1, 2, 3, 4):
                raise AssertionError(f"exit status {status} of {words}")
            if status == 1 and not said.getvalue().strip():
                raise AssertionError(f"an error without a word: {words}")
            if status in (1, 2):
                raise SystemExit(status)
        except SystemExit as error:
            if error.code not in (0, 1, 2):
                raise AssertionError(f"exit status {error.code} of {words}") from error
            raise
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} <- {words}"[:290]) from error
        finally:
            os.chdir(before)

    return read


def _fill(folder: Path, rng: Random) -> None:
    good = dict(images.whole())["PNG"]
    (folder / "good.png").write_bytes(good)
    (folder / "bad.png").write_bytes(images.malformed(rng))
    (folder / "empty.png").write_bytes(b"")
    rows = [f"{k // 2},{k}.png,{k}" for k in range(4)]
    (folder / "m.csv").write_text("identity,path,id\n" + "\n".join(rows) + "\n")
    for k, data in enumerate([data for kind, data in images.whole() if kind == "PNG"][:4]):
        (folder / f"{k}.png").write_bytes(data)
    (folder / "bad.csv").write_bytes(rng.choice((tables.csv_file, tables.pairs_file))(rng))
    (folder / "bad.parquet").write_bytes(tables.parquet_file(rng))
    (folder / "bad.json").write_bytes(texts.one(rng.choice((texts.CALIBRATION, texts.JUDGE, texts.SETTINGS)), rng))
    (folder / "j.json").write_bytes(texts.one(texts.JUDGE, rng))
    (folder / "bad.toml").write_bytes(texts.toml(rng))
    (folder / "c.json").write_bytes(texts.one(texts.CALIBRATION, rng))
    (folder / "pairs.csv").write_bytes(tables.pairs_file(rng))
    (folder / "folder").mkdir()
    for k in range(2):
        (folder / "folder" / f"{k}.png").write_bytes(good)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "nowhere").symlink_to(folder / "not-there")


@cache
def _options(name: str, sub: str) -> list[argparse.Action]:
    """The options of a command, from its own parser."""
    module = importlib.import_module(NAMES[name][0])
    parser = module.build_parser(sub) if name in ("eval", "train") else module.build_parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and sub in action.choices:
            parser = action.choices[sub]
    found = [a for a in parser._actions if a.option_strings]
    return [a for a in found if not _LEFT_OUT & set(a.option_strings)]


def _option(action: argparse.Action, rng: Random) -> list[str]:
    words = [rng.choice(action.option_strings)]
    if action.nargs == 0:
        return words
    if action.choices and rng.random() < 0.7:
        return [*words, str(rng.choice(list(action.choices)))]
    kind = rng.random()
    if kind < 0.4:
        return [*words, str(rng.choice(NUMBERS))]
    return [*words, rng.choice(_WORDS if kind < 0.8 else WORDS)]
