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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, read_json_file

FOLDER = Path(__file__).parent / "prompts"
SLOTS = {  # of a template or question
    "context": {"class", "background", "lighting"},
    "identity": {"class"},
    "distractor": {"class"},
    "object": {"class"},
    "relight": {"class"},
    "grid_identity": {"class"},
    "grid_background": {"background"},
    "grid_light": {"lighting"},
    "*prompt": {"count", "domain", "examples"},
    "*more": {"count"},
}


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

    def prompt(self, task: str, category: str | None = None, **slots: str) -> str:
        """The prompt of a task with its slots filled; underscores in them become spaces."""
        slots["class"] = category or "object"
        words = {slot: text.replace("_", " ") for slot, text in slots.items()}
        return self.templates[task].format(**words)

    def scenes(self, category: str | None) -> list[tuple[str, str]]:
        """All pairs (background, lighting) that suit a category, in the order of the files."""
        kind = self.categories.get(_key(category or "*")) or self.categories["*"]
        pairs = []
        for background, scene in self.backgrounds.get(kind, {}).items():
            for lighting in self.lighting[scene]:
                pairs.append((background, lighting))
        return pairs


def read_wording(folder: StrPath | None = None) -> Wording:
    """Read the words; files in `folder` replace the package's files of the same name.

    Templates and questions that a file leaves out are the package's.

    Raises:
        RequestError: naming the folder, and the entry at fault.
    """
    data: dict[str, Any] = {}
    replaced = []
    for name in (field.name for field in fields(Wording)):
        data[name] = read_json_file(FOLDER / f"{name}.json")
        path = Path(folder or FOLDER, f"{name}.json")
        if folder is None or not path.is_file():
            continue
        replaced.append(str(path))
        defaults = data[name] if name in ("templates", "domains") else {}
        try:
            data[name] = {**defaults, **read_json_file(path)}
        except (OSError, ValueError, TypeError) as error:
            raise RequestError(f"{path}: not a JSON object: {error}") from error
    if folder is not None and not replaced:
        raise RequestError(f"{folder}: the folder has none of {', '.join(f'{name}.json' for name in data)}")

    try:
        data["categories"] = {_key(name): kind for name, kind in data["categories"].items()}
        words = Wording(**data)
        _check(words)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{' or '.join(replaced)}: {error}") from error
    return words


def _check(words: Wording) -> None:
    """Use every entry once, so that a wrong one fails before the work; any error names it."""
    texts: dict[str, Any] = {**words.templates, **words.domains}
    for name, slots in SLOTS.items():
        try:
            texts[name].format(**dict.fromkeys(slots, ""))
        except (LookupError, ValueError) as error:
            raise ValueError(f"{name!r} has no slot {error}; it has {sorted(slots)}") from error
    for category, kind in words.categories.items():
        if not words.scenes(category):
            raise ValueError(f"categories.json, {category!r}: there are no backgrounds for {kind!r}")
    if words.grid.keys() != {"background", "light"}:
        raise ValueError("grid.json must hold background and light")


def _key(category: str) -> str:
    return " ".join(category.replace("_", " ").casefold().split())
