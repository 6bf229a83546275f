"""The page "From 0.1 to 0.2": old names are gone, new ones are there, and its new numbers are those of `tiny`."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from pathlib import Path

import pytest

from idmetric import CheckpointError, IDSim, load
from idmetric.cli.main import COMMANDS
from idmetric.metric.models.idsim_config import IDSimConfig
from tests.docs.test_pages import leaves, parser_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")


def rows_of(heading: str, header: str) -> list[list[str]]:
    """The cells of the table with this first line, below this heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    table = section.split(f"{header}\n")[1].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]


def code_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def options_of(command: str) -> set[str]:
    """The options of a command, such as `idmetric data mine negatives`."""
    program, *words = command.split()[1:]
    parsers = leaves(parser_of(program, words))
    # parsers that are made without a program have a hyphen in its name
    [parser] = [leaf for leaf in parsers if leaf.prog.replace("idmetric-", "idmetric ") == command]
    actions: list[argparse.Action] = parser._actions
    return {option for action in actions for option in action.option_strings}


def imports(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def exists(name: str) -> bool:
    """Whether this is a module of the package, or a name in one."""
    if imports(name):
        return True
    module, _, attribute = name.rpartition(".")
    return imports(module) and hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("row", rows_of("Options", "| command | 0.1 | 0.2 |"), ids=lambda row: " ".join(row[:2]))
def test_options_of_0_1_are_gone_and_their_replacements_are_there(row: list[str]) -> None:
    command, old, new = row
    options = options_of(command.strip("`"))
    assert not options & set(code_in(old))
    assert {name for name in code_in(new) if re.fullmatch(r"--[\w-]+", name)} - {"--shard"} <= options


def test_commands_that_replace_those_of_0_1_are_there() -> None:
    rows = rows_of("Commands", "| 0.1 | 0.2 |")
    for old, new in rows:
        first, *rest = code_in(new)
        if first.startswith("idmetric "):
            words = [word for word in first.split() if not word.startswith("--")]
            assert words[1] in COMMANDS
            wanted = {word for word in [*first.split(), *rest] if word.startswith("--")}
            assert not wanted or wanted <= options_of(" ".join(words)), old
        for script in re.findall(r"python (benchmarks/\S+\.py)", new):
            assert (ROOT / script).is_file(), old
        for module in re.findall(r"python -m (world\S*?)`", new):
            path = ROOT / "benchmarks" / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), old


def test_modules_moved_where_the_page_says() -> None:
    rows = rows_of("Python", "Modules moved. These are the ones in the reference of 0.1:\n\n| 0.1 | 0.2 |")
    assert len(rows) >= 20
    for old, new in rows:
        for name in code_in(new):
            assert (ROOT / name).is_dir() or exists(name), name
        first, *others = code_in(old)
        parent = first.rpartition(".")[0]
        for name in [first, *(f"{parent}{other}" for other in others)]:
            assert not exists(name), name


def test_errors_to_catch_are_there() -> None:
    rows = rows_of("Python", "[Errors](security.md#errors) to catch:\n\n| 0.1 | 0.2 |")
    for _, new in rows:
        assert exists(code_in(new)[0]), new


def test_arguments_and_attributes_of_a_model_are_as_the_page_says() -> None:
    metric = IDSim("tiny", device="cpu")
    for name in ("mean", "std", "interpolation", "preprocessing", "load_image"):
        assert hasattr(metric.preprocessor, name)
        assert not hasattr(metric, name)
    assert metric.weights.short_name == "tiny"
    assert hasattr(metric, "normalize")
    assert not any(hasattr(metric, name) for name in ("short_name", "normalise", "push_to_hub"))
    for argument in ("id_sim_type", "hf_token"):
        with pytest.raises(TypeError, match=argument):
            IDSim("tiny", **{argument: "x"})


def test_a_model_folder_of_0_1_opens_with_the_renamed_field(tmp_path: Path) -> None:
    """Its config.json has `centre`."""
    IDSim(IDSimConfig(backbone="vit_tiny_patch16_224", image_size=32, hidden=8), device="cpu").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["centre"] = config.pop("center")
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match="centre"):
        load(tmp_path, device="cpu")
    file.write_text(file.read_text(encoding="utf-8").replace('"centre"', '"center"'), encoding="utf-8")
    assert load(tmp_path, device="cpu").model_type == "idsim"


def test_the_new_numbers_of_tiny_are_those_of_the_example_images() -> None:
    metric = IDSim("tiny", device="cpu")
    rows = rows_of("Numbers that change on purpose", "| what | 0.1 | 0.2 |")
    distances = [row for row in rows if "mug_a" in row[0]]
    assert len(distances) == 3
    for what, _, new in distances:
        pair = [ROOT / "examples" / "images" / f"{name}.png" for name in re.findall(r"(mug_\w+|box_\w+)\.png", what)]
        assert metric(*pair).item() == pytest.approx(float(new), abs=2e-3), what
    [size] = [
        row[2] for row in rows_of("Numbers that change on purpose", "| what | 0.1 | 0.2 |") if "size of" in row[0]
    ]
    assert size == f"{metric.image_size[0]} px, {metric.embed([pair[0]]).cls.shape[-1]:,}"


def test_changelog_upgrade_notes_and_roadmap_stay_pages_that_one_reads() -> None:
    """A release had 465 lines once."""
    changelog = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    for release in changelog.split("\n## ")[1:]:
        assert len(release.splitlines()) <= 150, release.splitlines()[0]
    assert len(PAGE.splitlines()) <= 160
    assert len((ROOT / "docs" / "roadmap.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_deprecation_rule_is_where_changelog_and_roadmap_link_to() -> None:
    rule = (
        (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8").split("## Deprecation\n")[1].split("\n## ")[0]
    )
    assert "warns for one minor version before" in " ".join(rule.split())
    assert (ROOT / "tests" / "public_api.txt").is_file()
    for page in ("changelog", "roadmap"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert "](contributing.md#deprecation)" in text, page
