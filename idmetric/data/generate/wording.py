"""Words of the prompts: data files in `prompts/`, each of which a user's file of the same name replaces.

* templates.json: prompt of each task, with slots {class}, {background}, {lighting}.
* categories.json: category -> supercategory; "*" is the supercategory of all others.
* backgrounds.json: supercategory -> {background: scene}. lighting.json: scene -> lightings.
* negative.json: engine -> negative prompt.
* grid.json: kind of context (background, light) -> {words: size of the change, 0 to 1}, for grids of edits.
* domains.json: domain -> description and examples. "*prompt" asks a language model for its categories, and "*more" for
  further ones.

The slots come from the papers (ID-Sim, A.2.1 and A.2.2; ILGen, section 3.2 and Table S1), as do the short templates
"Photo of a {class}" and "a {class} in a clean background"; all longer text is our own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.data.generate.weights import GenerateError
from idmetric.metric.files import json_file

FOLDER = Path(__file__).parent / "prompts"
GRID = ("background", "light")  # of grid.json
FILES = ("templates", "categories", "backgrounds", "lighting", "negative", "domains", "grid")
SLOTS = {  # of a template or question
    "context": {"class", "background", "lighting"}, "identity": {"class"}, "distractor": {"class"},
    "object": {"class"}, "relight": {"class"},
    "grid_identity": {"class"}, "grid_background": {"background"}, "grid_light": {"lighting"},
    "*prompt": {"count", "domain", "examples"}, "*more": {"count"},
}  # fmt: skip
OPTIONAL = {"context": {"class"}, "grid_identity": {"class"}, "*prompt": {"examples"}}  # slots that it need not have


@dataclass(frozen=True)
class Wording:
    """The words of all prompts; each field holds the file of that name."""

    templates: Mapping[str, str]
    categories: Mapping[str, str]
    backgrounds: Mapping[str, Mapping[str, str]]
    lighting: Mapping[str, Sequence[str]]
    negative: Mapping[str, str]
    domains: Mapping[str, Any]
    grid: Mapping[str, Mapping[str, float]]

    def prompt(self, task: str, **slots: str) -> str:
        """The prompt of a task with its slots filled; underscores in them become spaces."""
        return self.templates[task].format(**{k: v.replace("_", " ") for k, v in slots.items()})

    def scenes(self, category: str | None) -> list[tuple[str, str]]:
        """All pairs (background, lighting) that suit a category, in the order of the files."""
        kind = self.categories.get(_key(category or "*")) or self.categories.get("*")
        if kind is None:
            raise GenerateError(f'categories.json has no supercategory for {category!r}, and none for "*"')
        return [(b, light) for b, scene in self.backgrounds[kind].items() for light in self.lighting[scene]]


def read_wording(folder: str | os.PathLike[str] | None = None) -> Wording:
    """Read the words; files in `folder` replace the package's files of the same name.

    Templates and questions that a file leaves out are the package's.
    """
    ours = {name: _read(FOLDER / f"{name}.json") for name in FILES}
    own = {} if folder is None else {n: path for n in FILES if (path := Path(folder, f"{n}.json")).is_file()}
    if folder is not None and not own:
        raise GenerateError(f"{os.fspath(folder)}: the folder has none of {', '.join(f'{n}.json' for n in FILES)}")
    data = {**ours, **{name: _read(path) for name, path in own.items()}}
    for name in ("templates", "domains"):
        data[name] = {**ours[name], **data[name]}

    try:
        _check(data)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise GenerateError(f"{' or '.join(map(os.fspath, own.values()))}: {error}") from error
    data["categories"] = {_key(k): v for k, v in data["categories"].items()}
    return Wording(**data)


def _check(data: Mapping[str, Any]) -> None:
    """Use every entry once, so that a wrong one fails before the work; any error names it."""
    texts = {**data["templates"], **data["domains"]}
    for name, slots in SLOTS.items():
        try:
            texts[name].format(**dict.fromkeys(slots, ""))
        except (LookupError, ValueError) as error:
            raise ValueError(f"{name!r} has no slot {error}; it has {sorted(slots)}") from error
        if lacking := [slot for slot in slots - OPTIONAL.get(name, set()) if f"{{{slot}}}" not in texts[name]]:
            raise ValueError(f"{name!r} lacks the slot {{{lacking[0]}}}")
    for name, entry in data["domains"].items():
        if name not in SLOTS and entry.keys() != {"domain", "examples"}:
            raise ValueError(f"{name!r} must hold domain and examples")
    for category, kind in data["categories"].items():
        if not data["backgrounds"].get(kind):
            raise ValueError(f"categories.json, {category!r}: there are no backgrounds for {kind!r}")
    for kind, backgrounds in data["backgrounds"].items():
        for scene in backgrounds.values():
            if not data["lighting"].get(scene):
                raise ValueError(f"backgrounds.json, {kind!r}: there is no lighting for scene {scene!r}")
    if data["grid"].keys() != set(GRID) or not all(data["grid"].values()):
        raise ValueError(f"grid.json must hold {' and '.join(GRID)}")
    if min(change for levels in data["grid"].values() for change in levels.values()) < 0:
        raise ValueError("grid.json: a change must be a number from 0")


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
