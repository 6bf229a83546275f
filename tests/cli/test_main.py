"""The command `idmetric`, its aliases, and the options that its subcommands share."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from idmetric.cli import eval as eval_cli
from idmetric.cli import options, score
from idmetric.cli.command import codes
from idmetric.cli.main import COMMANDS, main
from idmetric.metric.distance import DISTANCES
from idmetric.version import __version__

ROOT = Path(__file__).parents[2]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_lists_the_subcommands_in_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    for name, (_, line) in COMMANDS.items():
        assert re.search(rf"^ +{name} +{re.escape(line)}$", text, flags=re.M), name


def test_the_bare_command_prints_help_and_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == shown(capsys, "--help")


@pytest.mark.parametrize(
    "words", ["scor", "score a.png b.png --treshold .3", "eval folder --bootstap 3", "gallery buidl"]
)
def test_an_unknown_command_or_option_is_wrong_usage(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert any(word in message for word in ("'scor'", "--treshold", "--bootstap", "'buidl'"))


def test_a_subcommand_goes_by_the_name_that_called_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert shown(capsys, name, "--help").split()[:3] == ["usage:", "idmetric", name]
    for call, name in ((main, "idmetric score"), (lambda words: score.main(words[1:]), "idmetric-score")):
        with pytest.raises(SystemExit):
            call(["score", "absent.png", "absent.png"])
        assert capsys.readouterr().err.startswith(f"{name}: ")


def test_two_commands_are_installed() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    scripts = dict(re.findall(r'^(idmetric[-\w]*) = "([\w.]+):main"$', project, flags=re.M))
    assert scripts == {"idmetric": "idmetric.cli.main", "idmetric-score": COMMANDS["score"][0]}


def test_python_m_idmetric_is_the_command() -> None:
    for words in (["--version"], ["score", "--version"]):
        done = subprocess.run(
            [sys.executable, "-m", "idmetric", *words], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"idmetric {__version__}\n"


# Shared options


def parsers() -> Iterator[argparse.ArgumentParser]:
    """The parsers of all subcommands, with those below them."""
    todo: list[argparse.ArgumentParser] = []
    for name, (module, _) in COMMANDS.items():
        build = importlib.import_module(module).build_parser
        todo.append(build("folder") if name == "eval" else build())
    while todo:
        parser = todo.pop()
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                todo.extend(action.choices.values())


def test_an_option_has_one_meaning_in_all_commands() -> None:
    """Same choices and metavar under the same name."""
    seen: dict[str, tuple[str, object, object]] = {}
    for parser in parsers():
        for action in parser._actions:
            for name in {"--on-error", "--mask-dir", "--mask-id", "--outside", "--device", "--revision", "--distance",
                         "--batch-size", "--workers"} & set(action.option_strings):  # fmt: skip
                if parser.prog in ("idmetric data generate", "idmetric data frames"):
                    continue  # processes, not threads
                if (parser.prog, name) == ("idmetric match", "--outside"):
                    continue  # its regions are cut out already: none is cropped
                choices = None if action.choices is None else sorted(action.choices)
                first = seen.setdefault(name, (parser.prog, choices, action.metavar))
                assert first[1:] == (choices, action.metavar), (name, parser.prog, first[0])
    assert len(seen) == 9


def test_literals_are_those_of_the_library() -> None:
    from idmetric.evaluate.protocols.common.tables import FORMATS

    assert options.DISTANCES == DISTANCES
    assert tuple(FORMATS) == eval_cli.FORMATS


def test_exit_codes_are_in_every_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert "Exit status: 0 done, 1 error, 2 wrong usage" in shown(capsys, name, "--help")
    assert codes(0, 4) == "Exit status: 0 done, 4 done, but images were skipped."
