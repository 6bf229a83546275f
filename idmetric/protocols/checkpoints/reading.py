"""Reads samples of checkpoints with their references as a manifest, as `generator.outputs` does for methods.

A step has the place of a method: its number, as text without leading zeros, is in the column x_method, and the rows of
samples are in the order of steps. Images of the base model are those of step 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from idmetric.data.manifest.table import Manifest
from idmetric.io import json_file
from idmetric.protocols.generator.outputs import (
    Fields,
    as_manifest,
    images_below,
    matched,
    of_subjects,
    read_table,
    refuse_unmatched,
)
from idmetric.protocols.generator.pattern import GENERATED, ONLY, REFERENCE, TRAINING, OutputsError, Pattern, Picture

_END = r"\.[A-Za-z0-9]+"
_STEP = r"(?:.*/)?(?:checkpoint|step|epoch)[-_](?P<step>[0-9]+)/"

TRAINERS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    # library/train_util.py, sample_image_inference
    "kohya": (
        re.compile(
            r"(?:.*/)?(?:[^/]+_)?(?P<epoch>e)?(?P<step>[0-9]{6,})_(?P<prompt>[0-9]{2,})_[0-9]{14}(?:_(?P<seed>[0-9]+))?"
            + _END
        ),
    ),
    "ai-toolkit": (re.compile(r"(?:.*/)?[0-9]+__(?P<step>[0-9]{9,})_(?P<prompt>[0-9]+)" + _END),),
    "diffusers": (
        re.compile(_STEP + r"(?:(?P<prompt>[^/]+)[/_])?(?P<seed>[0-9]+)" + _END),
        re.compile(_STEP + r"(?P<prompt>[^/]+)" + _END),
    ),
}


def fields_of(trainer: str, path: str) -> dict[str, str] | None:
    """The fields of a path with forward slashes; None if the trainer does not name its samples so.

    >>> fields_of("kohya", "sample/dog_000500_01_20240101120000_42.png")
    {'step': '000500', 'prompt': '01', 'seed': '42'}
    """
    for expression in TRAINERS[trainer]:
        found = expression.fullmatch(path)
        if found is not None:
            return {name: text for name, text in found.groupdict().items() if text is not None}
    return None


# Folders and tables


BASE = 0  # the step of the base model
_DIGITS = ("seed", "step")
_EXAMPLE = "'{step}/{prompt}_{seed}.png'"


@dataclass(frozen=True)
class Where:
    """The places of samples and references.

    Attributes:
        data: folder of samples, or a table (.csv, .parquet, .jsonl) with a column step and a row for each sample.
        pattern: of the samples in a folder, with `{step}`; None: as one of `TRAINERS` names them.
        references, training: as for `generator.outputs.Where`; without `{subject}`, all images in and below a folder.
        base: folder of the base model's images, named as in `data`, or as there below the folder of a step.
        prompts: text file with a prompt in each line, for samples that are named by the prompt's number from 0.
        skip: leave images out that do not match, with an `UnmatchedWarning`.
    """

    data: Path
    pattern: str | None = None
    references: str | None = None
    training: str | None = None
    base: Path | None = None
    prompts: Path | None = None
    skip: bool = False


def read(where: Where) -> Manifest:
    """The manifest of samples, references and training images.

    Raises:
        OutputsError: if images do not match, occur twice, or have no reference.
        PatternError, SourceError: for a pattern or table that cannot be used.
    """
    if not where.data.exists():
        raise OutputsError(f"{where.data}: no such file or folder")
    found = _of_table(where) if where.data.is_file() else _of_folder(where)
    if where.prompts is not None:
        found = _in_words(found, where.prompts)

    made = [p for p in found if p.role == GENERATED]
    rest = [p for p in found if p.role != GENERATED]
    alone = all(p.fields["subject"] == ONLY for p in made)
    if where.references is not None:
        rest = [p for p in rest if p.role != REFERENCE] + _photos(where.references, REFERENCE, alone, where.skip)
    if where.training is not None:
        rest += _photos(where.training, TRAINING, alone, where.skip)
    return as_manifest([*sorted(made, key=lambda p: int(p.fields["method"])), *rest], "step")


# Samples


def _of_table(where: Where) -> list[Picture]:
    if where.base is not None:
        raise OutputsError("--base is for folders: give the base model's images in the table, as step 0")
    found = read_table(where.data)
    if not any("step" in picture.fields for picture in found):
        raise OutputsError(f"{where.data}: no column 'step'")
    return [_at_step(p) if p.role == GENERATED else p for p in found]


def _at_step(picture: Picture) -> Picture:
    """The picture with its step as its method."""
    step = re.sub(r"\.0+$", "", picture.fields.get("step", ""))  # as data frames write it, where rows have none
    if not (step.isascii() and step.isdigit()):
        raise OutputsError(f"{picture.path}: the step {step!r} is not a whole number of 0 or more")
    kept = {name: text for name, text in picture.fields.items() if name not in ("step", "epoch")}
    return replace(picture, fields={**kept, "method": str(int(step))})


def _of_folder(where: Where) -> list[Picture]:
    folder, files = where.data, images_below(where.data)
    sample, base, about = _by_trainer(folder, files) if where.pattern is None else _by_pattern(where.pattern)
    found, rest = matched(folder, files, GENERATED, sample)
    refuse_unmatched(rest, f"{folder} and {about}", where.skip)
    epochs = sum("epoch" in picture.fields for picture in found)
    if 0 < epochs < len(found):  # they cannot be put into one order
        raise OutputsError(
            f"{folder}: {epochs} images are samples of epochs (e000003), {len(found) - epochs} of steps (000500): keep "
            "one kind, by a --pattern and --on-error skip, or in another folder"
        )
    found = [_at_step(picture) for picture in found]
    if where.base is None:
        return found

    if any(picture.fields["method"] == str(BASE) for picture in found):
        raise OutputsError(f"--base {where.base}: {folder} has images of the base model already, as step 0")
    own, rest = matched(where.base, images_below(where.base), GENERATED, base)
    refuse_unmatched(rest, f"--base {where.base} and {about}", where.skip)
    return found + [_at_step(replace(p, fields={**p.fields, "step": str(BASE)})) for p in own]


def _by_pattern(text: str) -> tuple[Fields, Fields, str]:
    """The fields of a sample's path and of a base image's path, and words for messages."""
    pattern = Pattern(text, _DIGITS)
    if "step" not in pattern.fields:
        raise OutputsError(f"--pattern {text!r}: it needs a field {{step}}, such as {_EXAMPLE}")
    below = "/".join(part for part in text.split("/") if "{step}" not in part)
    inner = Pattern(below, _DIGITS) if below else pattern
    return pattern.match, lambda path: pattern.match(path) or inner.match(path), repr(text)


def _by_trainer(folder: Path, files: Sequence[Path]) -> tuple[Fields, Fields, str]:
    """As `_by_pattern`, of the trainer that names most of the files so."""
    counts = {trainer: len(matched(folder, files, GENERATED, partial(fields_of, trainer))[0]) for trainer in TRAINERS}
    best = max(counts, key=lambda trainer: counts[trainer])
    if not counts[best]:
        raise OutputsError(
            f"{folder}: its images, such as {files[0].relative_to(folder).as_posix()}, are not named as samples of "
            f"{', '.join(TRAINERS)}: give their --pattern, such as {_EXAMPLE}"
        )
    fields = partial(fields_of, best)
    return fields, lambda path: fields(path) or fields(f"checkpoint-{BASE}/{path}"), f"names of {best}"


def _in_words(found: Sequence[Picture], path: Path) -> list[Picture]:
    """The pictures with the prompts of a file in place of their numbers.

    A line is a prompt, as in kohya's `sample_prompts.txt`: empty lines and comments (#) do not count, and
    options at its end (` --w 512`) are not part of it.
    """
    try:
        lines = [line.strip() for line in json_file.read_text(path).splitlines()]
    except (OSError, ValueError) as error:
        raise OutputsError(f"--prompts {path} cannot be read: {error}") from error
    prompts = [line.split(" --")[0].strip() for line in lines if line and not line.startswith("#")]

    def worded(picture: Picture) -> Picture:
        number = picture.fields.get("prompt", "")
        if picture.role != GENERATED or not number.isdigit():
            return picture
        if int(number) >= len(prompts):
            raise OutputsError(f"{picture.path}: {path} has {len(prompts)} prompts, and none of number {int(number)}")
        return replace(picture, text=prompts[int(number)])

    return [worded(picture) for picture in found]


# Photos


def _photos(place: str, role: str, alone: bool, skip: bool) -> list[Picture]:
    """References or training images; of the one subject, if samples name none."""
    folder = Path(place)
    if alone and folder.is_dir():
        return [Picture(file, role, {"subject": ONLY}) for file in images_below(folder)]
    return of_subjects(place, role, skip)
