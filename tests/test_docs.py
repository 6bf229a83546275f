"""The commands in README and docs are commands that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from idmetric.cli import data, score, train

ROOT = Path(__file__).resolve().parents[1]
PARSERS: dict[str, Callable[[list[str]], object]] = {
    "idmetric-data": lambda words: data.build_parser().parse_args(words),
    "idmetric-score": lambda words: score.build_parser().parse_args(words),
    "idmetric-train": lambda words: train.build_parser(words[0]).parse_args(words),
}


def commands(text: str) -> list[list[str]]:
    """The lines of bash blocks that call a command of this package, as arguments."""
    found = []
    for language, block in re.findall(r"```(\w*)\n(.*?)```", text, flags=re.S):
        for line in joined(block) if language in ("", "bash") else []:
            line = re.split(r"\s{3,}(?=[a-z])", line)[0]  # a remark beside it
            words = shlex.split(line, comments=True)
            if "-m" in words and "idmetric.cli.train" in words:  # torchrun, accelerate launch
                words = ["idmetric-train", *words[words.index("idmetric.cli.train") + 1 :]]
            if words and words[0] in PARSERS:
                found.append(words)
    return found


def joined(text: str) -> list[str]:
    """Lines, continued ones as one."""
    return re.sub(r"\s*\\\n\s*", " ", text).splitlines()


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_of_the_docs_parse(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        try:
            PARSERS[words[0]](words[1:])
        except SystemExit:
            pytest.fail(f"{page.name}: {shlex.join(words)}")


def test_every_data_page_has_its_commands() -> None:
    for paper, least in (("idsim", 10), ("nearid", 8), ("visme", 5), ("ilgen", 4)):
        assert len(commands((ROOT / f"docs/data-{paper}.md").read_text(encoding="utf-8"))) >= least
    assert len(commands((ROOT / "README.md").read_text(encoding="utf-8"))) >= 8


def test_every_recipe_has_a_page_with_its_commands() -> None:
    for recipe in train.RECIPES:
        page = ROOT / "docs" / ("tiny.md" if recipe == "tiny" else f"train-{recipe}.md")
        found = commands(page.read_text(encoding="utf-8"))
        assert any(words[:2] == ["idmetric-train", recipe] for words in found), page.name


def test_data_and_training_lead_to_each_other() -> None:
    for paper in ("idsim", "nearid", "visme", "ilgen"):
        for here, there in (("data", "train"), ("train", "data")):
            text = (ROOT / f"docs/{here}-{paper}.md").read_text(encoding="utf-8")
            assert f"]({there}-{paper}.md)" in text, here


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_help_examples_parse() -> None:
    parser = data.build_parser()
    for name in data.COMMANDS:
        module = data.importlib.import_module(f"idmetric.cli.data.{'import_' if name == 'import' else name}")
        lines = joined(module.__doc__ or "")
        calls = [line.strip() for line in lines if re.match(r"\s*(?:[A-Z_]+=\S+ )?idmetric-data ", line)]
        assert calls
        for line in calls:
            words = shlex.split(re.split(r"\s{3,}|\s+[&>|]", line)[0])
            words = words[words.index("idmetric-data") + 1 :]
            try:
                parser.parse_args(words)
            except SystemExit:
                pytest.fail(line)
