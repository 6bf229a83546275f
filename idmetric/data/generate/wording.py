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

from idmetric.data.generate.engine import ENGINES
from idmetric.data.generate.errors import GenerateError
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
    _check_templates(data["templates"], where["templates"])
    _check_scenes(data, where)
    _check_domains(data["domains"], where["domains"])
    _check_grid(data["grid"], where["grid"])

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


def _text(value: Any, path: Path, *entry: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise GenerateError(f"{path}: {', '.join(map(repr, entry))} must hold a text, not {value!r}")


def _check_slots(text: str, path: Path, what: str, needed: set[str], slots: set[str]) -> None:
    """Check that a text has all needed {slots} and no unknown ones."""
    try:
        parsed = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(text)]
    except ValueError as error:
        raise GenerateError(f"{path}: {what}: {error}") from error
    found = {name for name, _, _ in parsed if name is not None}
    if unknown := sorted(found - slots):
        raise GenerateError(f"{path}: {what} has no slot {{{unknown[0]}}}; it has {sorted(slots)}")
    if any(spec or conversion for _, spec, conversion in parsed):
        raise GenerateError(f"{path}: {what}: a slot is a name in braces and nothing else")
    if lacking := sorted(needed - found):
        raise GenerateError(f"{path}: {what} lacks the slot {{{lacking[0]}}}")


def _check_templates(templates: Mapping[str, Any], path: Path) -> None:
    for task in SLOTS:
        if not isinstance(templates.get(task), str):
            raise GenerateError(f"{path}: no template for {task!r}")
    for task, slots in SLOTS.items():
        _check_slots(templates[task], path, f"template {task!r}", slots - OPTIONAL.get(task, set()), slots)


def _check_grid(grid: Mapping[str, Any], path: Path) -> None:
    if grid.keys() != set(GRID):
        raise GenerateError(f"{path}: it must hold {' and '.join(GRID)}, not {', '.join(grid) or 'nothing'}")
    for factor, levels in grid.items():
        if not isinstance(levels, dict) or not levels:
            raise GenerateError(f"{path}: {factor!r} must hold an object of one or more texts")
        for text, change in levels.items():
            _text(text, path, factor)
            if isinstance(change, bool) or not isinstance(change, int | float) or not 0 <= change < float("inf"):
                raise GenerateError(f"{path}: {factor!r}, {text!r}: the change must be a number from 0, not {change!r}")


def _check_domains(domains: Mapping[str, Any], path: Path) -> None:
    for name, slots in DOMAIN_SLOTS.items():
        _text(domains[name], path, name)
        _check_slots(domains[name], path, repr(name), slots - {"examples"}, slots)
    for name in domains.keys() - DOMAIN_SLOTS.keys():
        entry = domains[name]
        if not isinstance(entry, dict) or entry.keys() - {"name"} != {"domain", "examples"}:
            raise GenerateError(f'{path}: {name!r} must hold an object of "domain", "examples" and, if wanted, "name"')
        for key, text in entry.items():
            _text(text, path, name, key)


def _check_scenes(data: Mapping[str, Any], where: Mapping[str, Path]) -> None:
    for scene, lights in data["lighting"].items():
        if not isinstance(lights, list) or not lights or not all(isinstance(x, str) for x in lights):
            raise GenerateError(f"{where['lighting']}: {scene!r} must hold a list of one or more texts")
    for kind, backgrounds in data["backgrounds"].items():
        if not isinstance(backgrounds, dict) or not backgrounds:
            raise GenerateError(f"{where['backgrounds']}: {kind!r} must hold an object of one or more backgrounds")
        for background, scene in backgrounds.items():
            _text(scene, where["backgrounds"], kind, background)
            if scene not in data["lighting"]:
                raise GenerateError(
                    f"{where['backgrounds']}: {kind!r}, {background!r}: there is no lighting for scene {scene!r}"
                )

    for category, kind in data["categories"].items():
        _text(kind, where["categories"], category)
        if kind not in data["backgrounds"]:
            raise GenerateError(f"{where['categories']}: {category!r}: there are no backgrounds for {kind!r}")
