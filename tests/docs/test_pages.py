"""README and docs: commands that exist, links that lead somewhere, a reference with every option.

The Python blocks of the pages run in test_code.py; test_site.py builds the site.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import idmetric
from idmetric import IDSim
from idmetric.cli import data, eval, score, train
from idmetric.cli.main import COMMANDS, main
from idmetric.scoring.calibration import calibration_of
from idmetric.version import __version__

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def parser_of(program: str, words: list[str]) -> argparse.ArgumentParser:
    """The parser that reads the words after `idmetric COMMAND`."""
    module = importlib.import_module(COMMANDS[program][0])
    first = words[0] if words else None
    parser: argparse.ArgumentParser = (
        module.build_parser(first) if program in ("eval", "train") else module.build_parser()
    )
    return parser


def parse(words: list[str]) -> None:
    """Parse a command line as its program would; SystemExit where it is wrong."""
    program, *rest = words[1:]
    if program not in COMMANDS:
        main([program, *rest])  # help, the version, or an error
        return
    parser = parser_of(program, rest)
    getattr(parser, "parse_args" if parser._subparsers else "parse_intermixed_args")(rest)


def commands(text: str) -> list[list[str]]:
    """The lines of bash blocks that call a command of this package, as arguments."""
    found = []
    for language, block in re.findall(r"```(\w*)\n(.*?)```", text, flags=re.S):
        for line in joined(block) if language in ("", "bash") else []:
            line = re.split(r"\s{3,}(?=[a-z])", line)[0]  # a remark beside it
            words = shlex.split(line, comments=True)
            if "-m" in words and "idmetric.cli.train" in words:  # torchrun, accelerate launch
                words = ["idmetric", "train", *words[words.index("idmetric.cli.train") + 1 :]]
            if len(words) > 1 and words[0] == "idmetric":
                found.append(words)
    return found


def joined(text: str) -> list[str]:
    """Lines, continued ones as one."""
    return re.sub(r"\s*\\\n\s*", " ", text).splitlines()


def test_the_api_pages_list_every_public_name() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md"))
    listed = set(re.findall(r"^::: (\S+)$", text, flags=re.M))
    missing = []
    for name in idmetric.__all__:
        module = getattr(getattr(idmetric, name), "__module__", "")
        if not listed & {f"idmetric.{name}", f"{module}.{name}", module} and f"`idmetric.{name}`" not in text:
            missing.append(name)
    assert missing == []


EXTRAS = {"eval", "train", "generate", "visid", "judge", "onnx", "faiss", "all"}
PAGES = [
    ROOT / "README.md",
    ROOT / ".github" / "SECURITY.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]


def page_id(page: Path) -> str:
    """The path of a page, as several folders have a page of one name."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_of_the_docs_parse(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        try:
            parse(words)
        except SystemExit:
            pytest.fail(f"{page.name}: {shlex.join(words)}")


def extras_of(words: list[str]) -> set[str]:
    """The extras that a command line of this package needs."""
    program, *rest = words[1:]
    if program == "data":
        found = {"generate" if rest[0] == "generate" else "eval"}
    elif program == "gallery":
        found = {"eval"} if rest[0] in ("cluster", "report") else set()
    else:
        found = {{"eval": "eval", "train": "train"}.get(program, "")} - {""}
    if program == "match" or "--html" in rest or "--plots" in rest:
        found.add("eval")
    return found


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=page_id)
def test_a_page_begins_with_the_extras_that_its_commands_need(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    needed = set().union(*map(extras_of, commands(text)))
    if needed and page.name != "quickstart.md":  # which lists all extras
        line = re.fullmatch(r"Needs `pip install 'idmetric\[([a-z,]+)\]'`\.", text.splitlines()[2])
        assert line, f"line 3 of {page.name}: Needs `pip install 'idmetric[{','.join(sorted(needed))}]'`."
        assert needed <= set(line[1].split(",")), page.name


def test_every_data_page_has_its_commands() -> None:
    for paper, least in (("idsim", 10), ("nearid", 8), ("visme", 5), ("ilgen", 4)):
        assert len(commands((DOCS / "data" / f"{paper}.md").read_text(encoding="utf-8"))) >= least


def test_every_recipe_has_a_page_with_its_commands() -> None:
    for recipe in train.RECIPES:
        page = DOCS / ("models/tiny.md" if recipe == "tiny" else f"train/{recipe}.md")
        found = commands(page.read_text(encoding="utf-8"))
        assert any(words[:3] == ["idmetric", "train", recipe] for words in found), page.name


def test_data_and_training_lead_to_each_other() -> None:
    for paper in ("idsim", "nearid", "visme", "ilgen"):
        for here, there in (("data", "train"), ("train", "data")):
            text = (DOCS / here / f"{paper}.md").read_text(encoding="utf-8")
            assert f"](../{there}/{paper}.md)" in text, here


def test_links_lead_somewhere(reference: dict[str, str]) -> None:
    made = {DOCS / f"sample-{name}.html" for name in ("report", "generator")}
    made |= {DOCS / "reference" / "cli" / f"{name}.md" for name in reference}
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            path = Path(os.path.normpath(page.parent / target))
            assert path.exists() or path in made, f"{page.name} links to {target}"


def test_pages_that_github_forms_name_exist() -> None:
    forms = [path for path in (ROOT / ".github").rglob("*") if path.is_file()]
    named = {name for form in forms for name in re.findall(r"docs/[\w/.-]+\.md", form.read_text(encoding="utf-8"))}
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_release_steps_set_the_version_where_it_is_written() -> None:
    text = (DOCS / "contributing.md").read_text(encoding="utf-8")
    [first, second] = re.findall(r"Set the version in `(\S+)` and `(\S+)`", text)[0]
    for name, pattern in ((first, r'^__version__ = "(.*)"$'), (second, r"^version: (.*)$")):
        assert re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), flags=re.M) == [__version__], name


def test_help_examples_parse() -> None:
    parser = data.build_parser()
    for name in data.COMMANDS:
        module = data.importlib.import_module(f"idmetric.cli.data.{'import_' if name == 'import' else name}")
        lines = joined(module.__doc__ or "")
        calls = [line.strip() for line in lines if re.match(r"\s*(?:[A-Z_]+=\S+ )?idmetric data ", line)]
        assert calls
        for line in calls:
            words = shlex.split(re.split(r"\s{3,}|\s+[&>|]", line)[0])
            words = words[words.index("data") + 1 :]
            try:
                parser.parse_args(words)
            except SystemExit:
                pytest.fail(line)


def numbered(line: str) -> tuple[list[str], list[float]]:
    """A line's words, and its decimal numbers apart."""
    words = re.split(r"[\s,]+", line.strip())
    decimal = [re.fullmatch(r"\d+\.\d+", word) is not None for word in words]
    return [w for w, d in zip(words, decimal, strict=True) if not d], [
        float(w) for w, d in zip(words, decimal, strict=True) if d
    ]


@pytest.mark.parametrize("name", ["quickstart", "use/reading"])
def test_what_commands_print_is_what_the_page_shows(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    [(command, shown, remark)] = re.findall(
        r"```bash\n(idmetric score .*)\n```\n\n```text\n(.*?)```\n\n(.*?)\n\n", text, flags=re.S
    )
    assert score.main([*shlex.split(command)[2:], "--device", "cpu"]) == 0
    printed = [numbered(line) for line in capsys.readouterr().out.splitlines()]
    for line in shown.splitlines():
        words, numbers = numbered(line)
        close = [found for kept, found in printed if kept == words and len(found) == len(numbers)]
        assert words == ["..."] or any(found == pytest.approx(numbers, abs=2e-3) for found in close), line
    # the paragraph below speaks of these numbers, not of others
    assert set(re.findall(r"\d\.\d+", remark)) <= set(re.findall(r"\d\.\d+", shown))


# The command line reference


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Its pages, made where torch and optional packages cannot be imported."""
    blocked, pages = (tmp_path_factory.mktemp(name) for name in ("blocked", "cli"))
    for name in ("torch", "timm", "scipy", "sklearn", "transformers", "tqdm"):
        (blocked / f"{name}.py").write_text("raise ImportError('not here')")
    command = [sys.executable, str(DOCS / "scripts" / "cli_reference.py"), str(pages)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(blocked)})
    return {path.stem: path.read_text(encoding="utf-8") for path in pages.glob("*.md")}


def leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser and all its sub-commands' parsers."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [leaf for child in action.choices.values() for leaf in leaves(child)]
    return found


def real_parsers() -> dict[str, list[argparse.ArgumentParser]]:
    """Page -> its parsers, with the real torch."""
    found = {}
    for command, (place, _) in COMMANDS.items():
        module, prog = importlib.import_module(place), f"idmetric {command}"
        parts = {"train": train.RECIPES, "eval": eval.PROTOCOLS}.get(command)
        parsers = [module.build_parser(prog=prog)] if parts is None else [module.build_parser(p, prog) for p in parts]
        below = [importlib.import_module(place).build_parser(f"{prog} {name}")
                 for name, place in getattr(module, "STEPS", {}).items()]  # fmt: skip
        found[f"idmetric-{command}"] = [leaf for parser in parsers for leaf in leaves(parser)]
        found[f"idmetric-{command}"] += [leaf for parser in below for leaf in leaves(parser)[1:]]
    return found


def test_the_reference_has_every_option_of_every_command(reference: dict[str, str]) -> None:
    parsers = real_parsers()
    assert sorted(reference) == sorted(parsers)
    for program, own in parsers.items():
        listed = set(re.findall(r"`(-{1,2}[\w-]+)", reference[program]))
        for parser in own:
            options = {o for a in parser._actions for o in a.option_strings if a.help is not argparse.SUPPRESS}
            assert options - {"-h", "--help"} <= listed, parser.prog
            # the words that call it are a heading, or the page's title
            assert re.search(rf"^##? {re.escape(parser.prog)}$", reference[program], flags=re.M), parser.prog


def test_the_reference_has_the_defaults_of_help(reference: dict[str, str]) -> None:
    for name in train.RECIPES:
        [parser] = [p for p in leaves(train.build_parser(name)) if p.prog.endswith(f" {name}")]
        shown_text = " ".join(reference["idmetric-train"].replace("\\", "").replace("`", "").split())
        for action in parser._actions:
            if (
                action.help
                and action.help is not argparse.SUPPRESS
                and "%(" not in action.help
                and action.dest != "help"
            ):
                shown = " ".join(action.help.replace("%%", "%").replace("`", "").split())
                assert shown.replace("|", "").replace("<", "&lt;") in shown_text.replace("|", ""), (name, action.dest)


# The papers' numbers


def row_of(text: str, start: str) -> list[float]:
    """The numbers of the table row that starts so."""
    [row] = re.findall(rf"^\| \*{{0,2}}{re.escape(start)}\*{{0,2}} \|(.*)\|$", text, flags=re.M)
    return [float(cell.strip(" *")) for cell in row.split("|")]


def test_the_papers_numbers_on_the_page_are_those_of_the_protocols() -> None:
    from idmetric.evaluate.protocols.common import paper_numbers as paper

    text = (DOCS / "models" / "choosing.md").read_text(encoding="utf-8")
    columns = (("pods", "mAP"), ("deepfashion2", "mAP"), ("aerialcattle", "mAP"), ("petface", "AUC"),
               ("cute hard", "accuracy"), ("subjects2k", "AP"))  # fmt: skip
    names = {"UNED": "Universal Embedding (ViT-H)"}
    for model in ("LPIPS", "CLIP ViT-L", "DreamSim", "DINOv3 ViT-L", "UNED", "ID-Sim"):
        own = paper.printed("idsim", "fig_25", model)
        printed = [own[column] for column in columns]
        assert row_of(text, names.get(model, model)) == pytest.approx(printed, abs=5.1e-4), model
    assert row_of(text, "class features (Fig. 25)") == [row_of(text, "ID-Sim")[i] for i in (0, 1, 2, 4, 5)]
    patches = paper.printed("idsim", "table_2b", "ID-Sim")
    printed = [patches[column] for column in columns if column[0] != "petface"]
    assert row_of(text, "patches (Table 2b)") == pytest.approx(printed, abs=5.1e-4)
    fisher = [
        paper.printed("nearid", "fisher", x)["M-H"] for x in (paper.HUMAN, "gpt", "clip", "dino", "siglip2", "nearid")
    ]
    assert "| " + " | ".join(f"{x:.3f}" for x in fisher) + " |" in text
    models = ("CLIP (ViT-large-14)", "SigLIP2 (so400m-14-384)", "GME (Qwen2-VL-7B)", "VLM2Vec-V2.0 (Qwen2-VL-2B)",
              "VisME (Qwen2.5-VL-3B)", "VisME (Qwen2.5-VL-7B)")  # fmt: skip
    assert "| " + " | ".join(str(paper.PAPERS["visme"]["mveb"]["rows"][m][-1]) for m in models) + " |" in text


# The page of limits


def test_the_distances_of_the_page_of_limits_are_those_of_its_pictures() -> None:
    text = (DOCS / "limits.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| !\[[^\]]+\]\((images/limits-\w+\.webp)\) \|.*\| ([\d.]+) \| ([\d.]+) \|", text, flags=re.M)
    assert {file for file, _, _ in rows} == {f"images/{p.name}" for p in (DOCS / "images").glob("limits-*.webp")}
    metric = IDSim("tiny", device="cpu")
    for file, same, other in rows:
        reference, *others = pictures_of_strip(DOCS / file)
        assert metric(reference, others).tolist() == pytest.approx([float(same), float(other)], abs=2e-3), file

    reference, two_objects, _ = pictures_of_strip(DOCS / "images" / "limits-two.webp")
    left_half = Image.new("L", two_objects.size)
    left_half.paste(255, (0, 0, two_objects.width // 2, two_objects.height))
    [distance] = re.findall(r"By a mask of its half: ([\d.]+)\.", text)
    masked = metric(reference, two_objects, mask_b=left_half, outside="crop").item()
    assert masked == pytest.approx(float(distance), abs=2e-3)


def pictures_of_strip(file: Path) -> list[Image.Image]:
    """The square pictures that lie side by side in a file."""
    with Image.open(file) as opened:
        strip = opened.convert("RGB")
    side = strip.height
    return [strip.crop((left, 0, left + side, side)) for left in range(0, strip.width, side)]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_picture_of_the_front_pages_has_the_scores_of_the_demo(page: str) -> None:
    """Its text for readers without pictures repeats what it shows."""
    [text] = re.findall(r"^!\[(.*)\]\(.*images/first\.webp\)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.M)
    reference, *others = [part.strip() for part in text.split(";")]
    assert reference == "A mug"

    metric = IDSim("tiny", device="cpu")
    pictures = idmetric.demo_images()
    calibration = calibration_of(metric)
    assert calibration is not None
    for part, name in zip(others, ("mug_elsewhere", "another_mug", "box"), strict=True):
        distance = metric(pictures["mug"], pictures[name]).item()
        answer = calibration.answer(distance)
        assert part.endswith(f": {distance:.2f}, {answer}"), part


# Installing


@pytest.mark.skipif(os.name == "nt", reason="the commands are for a POSIX shell")
def test_the_commands_of_the_readme_follow_each_other_in_one_shell(tmp_path: Path) -> None:
    """`idmetric: command not found`, as nothing activated the environment that the first command made."""
    fake_python = """#!/bin/sh
mkdir -p .venv/bin
echo 'PATH=$PWD/.venv/bin:$PATH' >.venv/bin/activate
for program in pip idmetric pytest; do
  printf '#!/bin/sh\\n' >.venv/bin/$program
  chmod +x .venv/bin/$program
done
"""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(fake_python)
    (tmp_path / "bin" / "python3").chmod(0o755)
    _, from_a_clone = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- ci -->", 1)
    blocks = re.findall(r"```bash\n(.*?)```", from_a_clone, flags=re.S)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    subprocess.run(["bash", "-euc", "".join(blocks)], cwd=tmp_path, env={"PATH": path}, check=True)


def test_pip_lines_name_the_package_as_the_index_does() -> None:
    """`pip install 'idmetric[eval]'` also adds an extra to a package that was installed from a copy."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        without_messages = text.replace("in a copy of the repository: pip install", "")
        assert "pip install '.[" not in without_messages, page.name
        for names in re.findall(r"pip install 'idmetric\[([a-z,]+)\]'", text):
            assert set(names.split(",")) <= EXTRAS, f"{page.name}: {names}"
