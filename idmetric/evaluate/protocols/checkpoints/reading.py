"""Reads samples of checkpoints with their references as a manifest, as `generator.outputs` does for methods.

A step has the place of a method: its number, as text without leading zeros, is in the column x_method, and the rows of
samples are in the order of steps. Images of the base model are those of step 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.evaluate.protocols.generator.outputs import (
    as_manifest,
    images_below,
    matched,
    read_table,
    refuse_unmatched,
    with_photos,
)
from idmetric.evaluate.protocols.generator.pattern import GENERATED, ONLY, Fields, GeneratedPicture, fields_of
from idmetric.metric.errors import RequestError
from idmetric.metric.files import json_file
from idmetric.metric.files.tables import text_lines

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

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


def fields_by(trainer: str, path: str) -> dict[str, str] | None:
    """The fields of a path with forward slashes; None if the trainer does not name its samples so.

    >>> fields_by("kohya", "sample/dog_000500_01_20240101120000_42.png")
    {'step': '000500', 'prompt': '01', 'seed': '42'}
    """
    for pattern in TRAINERS[trainer]:
        match = pattern.fullmatch(path)
        if match is not None:
            return {name: text for name, text in match.groupdict().items() if text is not None}
    return None


BASE = 0  # the step of the base model
_EXAMPLE = "'{step}/{prompt}_{seed}.png'"


def read(
    data: Path,
    pattern: str | None = None,
    *,
    references: str | None = None,
    training: str | None = None,
    base: Path | None = None,
    prompts: Path | None = None,
    skip: bool = False,
) -> Manifest:
    """The manifest of samples, references and training images.

    Args:
        data: folder of samples, or a table (.csv, .parquet, .jsonl) with a column step and a row for each sample.
        pattern: of the samples in a folder, with `{step}`; None: as one of `TRAINERS` names them.
        references, training: as for `generator.outputs.read`; without `{subject}`, all images in and below a folder.
        base: folder of the base model's images, named as in `data`, or as there below the folder of a step.
        prompts: text file with a prompt in each line, for samples that are named by the prompt's number from 0.
        skip: leave images out that do not match, with a warning.

    Raises:
        RequestError: if images do not match, occur twice, or have no reference.
        ManifestError: for a table that cannot be used.
    """
    if data.is_file():
        if base is not None:
            raise RequestError("--base is for folders: give the base model's images in the table, as step 0")
        pictures = read_table(data)
    else:
        pictures = _of_folder(data, pattern, base, skip)
    if prompts is not None:
        pictures = _in_words(pictures, prompts)

    samples = [_at_step(picture) for picture in pictures if picture.role == GENERATED]
    samples.sort(key=lambda picture: int(picture.fields["method"]))
    photos = [picture for picture in pictures if picture.role != GENERATED]
    alone = all(picture.fields["subject"] == ONLY for picture in samples)
    return as_manifest([*samples, *with_photos(photos, references, training, skip, alone)], "step")


def _at_step(picture: GeneratedPicture) -> GeneratedPicture:
    """The picture with its step as its method."""
    step = re.sub(r"\.0+$", "", picture.fields.get("step", ""))  # as data frames write it, where rows have none
    if not (step.isascii() and step.isdigit()):
        raise RequestError(f"{picture.path}: the step {step!r} is not a whole number: fill the column step")
    fields = {**picture.fields, "method": str(int(step))}
    fields.pop("step")
    fields.pop("epoch", None)
    return replace(picture, fields=fields)


def _of_folder(data: Path, pattern: str | None, base: Path | None, skip: bool) -> list[GeneratedPicture]:
    files = images_below(data)
    if pattern is None:
        trainer = _trainer(data, files)
        about = f"names of {trainer}"
        sample: Fields = partial(fields_by, trainer)
        below: Fields = lambda path: sample(f"checkpoint-{BASE}/{path}")  # noqa: E731
    else:
        if "{step}" not in pattern:
            raise RequestError(f"--pattern {pattern!r}: it needs a field {{step}}, such as {_EXAMPLE}")
        about, sample = repr(pattern), fields_of(pattern)
        parts = [part for part in pattern.split("/") if "{step}" not in part]
        below = fields_of("/".join(parts) or pattern)
    pictures, rest = matched(data, files, GENERATED, sample)
    refuse_unmatched(rest, f"{data} and {about}", skip)
    epochs = sum("epoch" in picture.fields for picture in pictures)
    if 0 < epochs < len(pictures):  # they cannot be put into one order
        raise RequestError(
            f"{data}: {epochs} images are samples of epochs (e000003), {len(pictures) - epochs} of steps (000500): "
            "keep one kind, by a --pattern and --on-error skip, or in another folder"
        )
    if base is None:
        return pictures

    if any(int(picture.fields["step"]) == BASE for picture in pictures):
        raise RequestError(f"--base {base}: {data} has images of the base model already, as step 0")
    files = images_below(base)
    base_pictures, rest = matched(base, files, GENERATED, lambda path: sample(path) or below(path))
    refuse_unmatched(rest, f"--base {base} and {about}", skip)
    return pictures + [picture.having(step=str(BASE)) for picture in base_pictures]


def _trainer(folder: Path, files: Sequence[Path]) -> str:
    """The first trainer that names any of the files so."""
    for trainer in TRAINERS:
        if any(fields_by(trainer, file.relative_to(folder).as_posix()) for file in files):
            return trainer
    name = files[0].relative_to(folder).as_posix()
    raise RequestError(
        f"{folder}: its images, such as {name}, are not named as samples of {', '.join(TRAINERS)}: give their "
        f"--pattern, such as {_EXAMPLE}"
    )


def _in_words(pictures: Sequence[GeneratedPicture], path: Path) -> list[GeneratedPicture]:
    """The pictures with the prompts of a file in place of their numbers.

    A line is a prompt, as in kohya's `sample_prompts.txt`: empty lines and comments (#) do not count, and
    options at its end (` --w 512`) are not part of it.
    """
    lines = text_lines(json_file.read_text(path))
    prompts = [line.split(" --")[0].strip() for line in lines if not line.startswith("#")]

    in_words = []
    for picture in pictures:
        digits = picture.fields.get("prompt", "")
        if picture.role == GENERATED and digits.isdigit():
            number = int(digits)
            if number >= len(prompts):
                raise RequestError(f"{picture.path}: {path} has {len(prompts)} prompts, and none of number {number}")
            picture = replace(picture, text=prompts[number])
        in_words.append(picture)
    return in_words
