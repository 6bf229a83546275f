"""ViStoryBench's stories: shots with a cast each, and photos of the characters.

The benchmark has a folder for each story: STORY/story.json with the shots and characters, and STORY/image/CHARACTER/
with photos. Outputs are in METHOD/MODE/LANGUAGE/TIME/STORY/shots/; `shots` may be above STORY or left out, and TIME
below it. The shots of a story are its images in natural order, whatever their names (dataset_loader/read_outputs.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.evaluate.protocols.generator.pattern import GENERATED, REFERENCE, GeneratedPicture
from idmetric.metric.errors import RequestError
from idmetric.metric.files import json_file
from idmetric.metric.files.folders import matching
from idmetric.metric.images import paths

Run = tuple[str, ...]  # method, mode, language and time: the folders above a story
_SHOTS = ("shots", "shot")
_CHARACTERS = ("chars", "characters")
_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True)
class StoryShot:
    """A shot of a story: its characters, and its description by language."""

    characters: tuple[str, ...]
    description: Mapping[str, str]


@dataclass(frozen=True)
class Story:
    """A story of the benchmark.

    Attributes:
        shots: by number, from 1.
        tags: of each character: realistic_human, unrealistic_human or non_human.
        photos: of each character.
    """

    shots: Mapping[int, StoryShot]
    tags: Mapping[str, str]
    photos: Mapping[str, Sequence[str]]


def in_stories(folder: Path, files: Sequence[Path], benchmark: Path) -> tuple[list[GeneratedPicture], list[Path]]:
    """Shots once for each character of their cast, with the photos of these characters; and the files of no story.

    A subject has the name of story and character, such as "01 Tom"; the character is also its label. Shots without
    characters are left out, and so are pictures of characters that a method generated (STORY/chars/). A method with
    several runs, such as in two languages, counts as one method for each.

    Args:
        folder: above the methods. files: images in it, in natural order. benchmark: the folder of stories.

    Raises:
        RequestError: for a story that cannot be read, an image without a shot, or a shot that is missing in between.
    """
    stories: dict[str, Story] = {}
    for path in matching(benchmark, "*/story.json"):
        stories[path.parent.name] = _read_story(path.parent)
    if not stories:
        raise RequestError(f"{benchmark}: no story STORY/story.json; --benchmark is the folder of stories")

    images: dict[tuple[str, Run], list[Path]] = {}
    rest = []
    for file in files:
        folders = file.relative_to(folder).parent.parts
        depths = [depth for depth, name in enumerate(folders) if name in stories]
        if not depths or depths[-1] == 0:
            rest.append(file)
        elif folders[-1] not in _CHARACTERS:
            depth = depths[-1]
            run = tuple(name for name in folders[:depth] if name not in _SHOTS)
            images.setdefault((folders[depth], run), []).append(file)

    method_of = _methods([run for _, run in images])
    pictures: list[GeneratedPicture] = []
    photos_of: dict[str, Sequence[str]] = {}
    for (name, run), shots in images.items():
        story = stories[name]
        for picture in _cast(name, story, run, shots):
            character = picture.fields["label"]
            photos_of[picture.fields["subject"]] = story.photos[character]
            pictures.append(picture.having(method=method_of[run]))

    for subject, photos in photos_of.items():
        for photo in photos:
            pictures.append(GeneratedPicture(Path(photo), REFERENCE, {"subject": subject}))
    return pictures, rest


def _methods(runs: Sequence[Run]) -> dict[Run, str]:
    """The name of each run: that of its method if it is the only one, else with mode, language and time."""
    counts = Counter(run[0] for run in set(runs))
    names = {}
    for run in runs:
        names[run] = run[0] if counts[run[0]] == 1 else " ".join(run)
    return names


def _cast(name: str, story: Story, run: Run, images: Sequence[Path]) -> list[GeneratedPicture]:
    """The images of a run of a story, once for each of their characters."""
    _check_order(images)
    language = "ch" if "ch" in run else "en"
    pictures = []
    for number, path in enumerate(images, start=1):
        shot = story.shots.get(number)
        if shot is None:
            raise RequestError(f"{path}: the story.json of {name} has no shot {number}")
        description = shot.description.get(language)
        fields = {"story": name, "prompt": f"{name} shot {number}", "subjects": str(len(shot.characters))}
        for character in shot.characters:
            of_character = {"subject": f"{name} {character}", "label": character, "tag": story.tags[character]}
            pictures.append(GeneratedPicture(path, GENERATED, fields | of_character, description))
    return pictures


def _check_order(images: Sequence[Path]) -> None:
    """Refuse images of several folders, and numbers with a gap, after which shots would have the cast of another."""
    folders = dict.fromkeys(image.parent for image in images)
    if len(folders) > 1:
        raise RequestError(f"{' and '.join(map(str, folders))} both have shots of one story: leave one of them out")
    numbers = []
    for image in images:
        digits = _NUMBER.findall(image.stem)
        if not digits:
            return
        numbers.append(int(digits[-1]))
    has_repeats = len(set(numbers)) < len(numbers)
    if has_repeats:  # the last number is that of a seed, such as shot_03_1.png
        return
    expected = min(numbers[0], 1)
    for number, image in zip(numbers, images, strict=True):
        if number != expected:
            raise RequestError(
                f"{image}: shots are counted in natural order, and the one before it, number {expected}, is "
                "missing: without it all later ones have the cast of another shot"
            )
        expected += 1


def _read_story(folder: Path) -> Story:
    path = folder / "story.json"
    try:
        content = json_file.read(path)
        tags: dict[str, str] = {}
        for name, character in content["Characters"].items():
            tags[name] = str(character.get("tag", ""))
        shots: dict[int, StoryShot] = {}
        for entry in content["Shots"]:
            shots[int(entry["index"])] = _shot(entry, tags)
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror or error}; --benchmark is the folder of stories") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path}: not a story as ViStoryBench writes it: {error!r}") from error
    photos = {name: _files_below(folder / "image" / name) for name in tags}
    return Story(shots, tags, photos)


def _shot(entry: Mapping[str, Any], tags: Mapping[str, str]) -> StoryShot:
    """A shot of a story.json; ValueError for a character that the story does not have."""
    characters = dict.fromkeys(name.strip() for name in entry["Characters Appearing"]["en"])
    unknown = sorted(set(characters) - set(tags))
    if unknown:
        raise ValueError(f"shot {entry['index']} has {', '.join(unknown)}, who is not among the Characters")
    return StoryShot(tuple(characters), entry.get("Static Shot Description", {}))


def _files_below(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return paths.listed(folder)
