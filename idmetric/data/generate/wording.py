"""Words of the prompts: data files in `prompts/`, each of which a user's file of the same name replaces.

* templates.json: prompt of each task, with slots {class}, {background}, {lighting}.
* categories.json: category -> supercategory; "*" is the supercategory of all others.
* backgrounds.json: supercategory -> {background: scene}. lighting.json: scene -> lightings.
* negative.json: engine -> negative prompt.
* grid.json: kind of context (background, light) -> {words: size of the change, 0 to 1}, for grids of edits.
* domains.json: domain -> description, short name (optional) and examples. "*prompt" asks a language model for its
  categories by the description, "*template" by the short name alone, and "*more" asks for further ones.

The slots come from the papers (ID-Sim, A.2.1 and A.2.2; ILGen, section 3.2 and Table S1), as do the short templates
"Photo of a {class}" and "a {class} in a clean background"; all longer text is our own.
"""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.data.generate.engines import ENGINES
from idmetric.data.generate.weights import GenerateError
from idmetric.io import json_file

FOLDER = Path(__file__).parent / "prompts"
FILES = ("templates", "categories", "backgrounds", "lighting", "negative", "domains", "grid")
SLOTS = {
    "context": {"class", "background", "lighting"}, "identity": {"class"}, "distractor": {"class"},
    "object": {"class"}, "relight": {"class"},
    "grid_identity": {"class"}, "grid_background": {"background"}, "grid_light": {"lighting"},
}  # fmt: skip
OPTIONAL = {"context": {"class"}, "grid_identity": {"class"}}  # slots that a template need not have
GRID = ("background", "light")
DOMAIN_SLOTS = {
    "*prompt": {"count", "domain", "examples"}, "*template": {"count", "domain", "examples"}, "*more": {"count"},
}  # fmt: skip


@dataclass(frozen=True)
class Wording:
    """The words of all prompts; each field holds the file of that name."""

    templates: Mapping[str, str]
    categories: Mapping[str, str]
    backgrounds: Mapping[str, Mapping[str, str]]
    lighting: Mapping[str, tuple[str, ...]]
    negative: Mapping[str, str]
    domains: Mapping[str, Any]
    grid: Mapping[str, Mapping[str, float]]

    def prompt(self, task: str, **slots: str) -> str:
        """The prompt of a task with its slots filled; underscores in them become spaces."""
        return self.templates[task].format(**{k: v.replace("_", " ") for k, v in slots.items()})

    def scenes(self, category: str | None) -> list[tuple[str, str]]:
        """All pairs (background, lighting) that suit a category, in the order of the files.

        Raises:
            GenerateError: if neither the category nor "*" has a supercategory.
        """
        kind = self.categories.get(_key(category or "*")) or self.categories.get("*")
        if kind is None:
            raise GenerateError(f'categories.json has no supercategory for {category!r}, and none for "*"')
        return [(b, light) for b, scene in self.backgrounds[kind].items() for light in self.lighting[scene]]


def read_wording(folder: str | os.PathLike[str] | None = None) -> Wording:
    """Read the words; files in `folder` replace the package's files of the same name.

    If domains.json has no "*prompt", "*template" or "*more", or templates.json no template of grids, the package's is
    used.

    Raises:
        GenerateError: naming the file and the entry at fault.
    """
    if folder is not None and not any(Path(folder, f"{name}.json").is_file() for name in FILES):
        raise GenerateError(f"{os.fspath(folder)}: the folder has none of {', '.join(f'{n}.json' for n in FILES)}")
    where = {}
    for name in FILES:
        own = None if folder is None else Path(folder, f"{name}.json")
        where[name] = own if own is not None and own.is_file() else FOLDER / f"{name}.json"
    data = {name: _read(path) for name, path in where.items()}
    ours = _read(FOLDER / "domains.json")
    data["domains"] = {**{k: ours[k] for k in DOMAIN_SLOTS}, **data["domains"]}
    grids = {k: v for k, v in _read(FOLDER / "templates.json").items() if k.startswith("grid_")}
    data["templates"] = {**grids, **data["templates"]}
    for task, slots in SLOTS.items():
        text, what = data["templates"].get(task), f"template {task!r}"
        _check_slots(text, where["templates"], what, slots - OPTIONAL.get(task, set()), slots)
    for name in ("lighting", "backgrounds", "grid"):
        for entry, value in data[name].items():
            what = "a list of" if name == "lighting" else "an object of"
            if not value or not isinstance(value, list if name == "lighting" else dict):
                raise GenerateError(f"{where[name]}: {entry!r} must hold {what} one or more entries")
    for kind, backgrounds in data["backgrounds"].items():
        for background, scene in backgrounds.items():
            if str(scene) not in data["lighting"]:
                raise GenerateError(
                    f"{where['backgrounds']}: {kind!r}, {background!r}: there is no lighting for scene {scene!r}"
                )
    for category, kind in data["categories"].items():
        if str(kind) not in data["backgrounds"]:
            raise GenerateError(f"{where['categories']}: {category!r}: there are no backgrounds for {kind!r}")
    _check_domains(data["domains"], where["domains"])
    if data["grid"].keys() != set(GRID):
        there = ", ".join(data["grid"]) or "nothing"
        raise GenerateError(f"{where['grid']}: it must hold {' and '.join(GRID)}, not {there}")
    for factor, levels in data["grid"].items():
        if wrong := [text for text, change in levels.items() if not isinstance(change, int | float) or change < 0]:
            raise GenerateError(f"{where['grid']}: {factor!r}, {wrong[0]!r}: the change must be a number from 0")
    for engine, text in data["negative"].items():
        _text(text, where["negative"], engine)
        if engine not in ENGINES:
            raise GenerateError(f"{where['negative']}: unknown engine {engine!r}; there are {', '.join(ENGINES)}")

    data["categories"] = {_key(k): v for k, v in data["categories"].items()}
    data["lighting"] = {k: tuple(v) for k, v in data["lighting"].items()}
    return Wording(**data)


def _key(category: str) -> str:
    return " ".join(category.replace("_", " ").casefold().split())


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json_file.read(path)
    except (OSError, ValueError) as error:
        raise GenerateError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise GenerateError(f"{path}: it must hold an object {{...}}")
    return value


def _text(value: Any, path: Path, entry: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise GenerateError(f"{path}: {entry!r} must hold a text, not {value!r}")


def _check_slots(text: Any, path: Path, what: str, needed: set[str], slots: set[str]) -> None:
    """Check that a text has all needed {slots} and no unknown ones."""
    if not isinstance(text, str):
        raise GenerateError(f"{path}: {what} must hold a text")
    try:
        found = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise GenerateError(f"{path}: {what}: {error}") from error
    if unknown := sorted(found - slots):
        raise GenerateError(f"{path}: {what} has no slot {{{unknown[0]}}}; it has {sorted(slots)}")
    if lacking := sorted(needed - found):
        raise GenerateError(f"{path}: {what} lacks the slot {{{lacking[0]}}}")


def _check_domains(domains: Mapping[str, Any], path: Path) -> None:
    for name, entry in domains.items():
        if name in DOMAIN_SLOTS:
            _check_slots(entry, path, repr(name), DOMAIN_SLOTS[name] - {"examples"}, DOMAIN_SLOTS[name])
            continue
        if not isinstance(entry, dict) or entry.keys() - {"name"} != {"domain", "examples"}:
            raise GenerateError(f'{path}: {name!r} must hold an object of "domain", "examples" and, if wanted, "name"')
        for text in entry.values():
            _text(text, path, name)
