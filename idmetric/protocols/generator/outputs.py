"""Reads generated images with their references as one manifest: from folders by a pattern, or from a table.

A row's free columns hold its place: x_role (generated, reference, training), x_method, x_subject, x_prompt, x_seed,
x_held_out, and a column for each further field of the pattern or column of the table.
"""

from __future__ import annotations

import argparse
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from idmetric.data.importers.source import ENDINGS, SourceError, open_source
from idmetric.data.manifest.table import Manifest, Row
from idmetric.embed.keys import key_of
from idmetric.images import paths
from idmetric.images.read import ImageReadError, read_image
from idmetric.io.output import replacing, writing
from idmetric.protocols.generator.layouts import LAYOUTS, Layout, indexed, prompted
from idmetric.protocols.generator.pattern import (
    GENERATED,
    NO,
    ONLY,
    REFERENCE,
    TRAINING,
    YES,
    OutputsError,
    Pattern,
    Picture,
    UnmatchedWarning,
    split,
)


def read_table(path: Path) -> list[Picture]:
    """The pictures of a .csv, .parquet or .jsonl file, with their columns as fields.

    Raises:
        OutputsError, SourceError: for a table that cannot be used, naming row and column.
    """
    if path.suffix not in ENDINGS:
        raise OutputsError(f"{path}: a table ends in {', '.join(ENDINGS)}")
    table = open_source(path)
    if "path" not in table.columns:
        raise SourceError(f"{path}: no column 'path'; there are {', '.join(table.columns)}")
    return list(_of_rows(path, table.columns, (row for _, row in table.rows())))


def _of_rows(path: Path, columns: Sequence[str], rows: Iterator[dict[str, Any]]) -> Iterator[Picture]:
    own = [name for name in columns if name not in ("path", "role", "text", "mask")]
    for number, row in enumerate(rows, 1):
        where = f"{path}: row {number}"
        role = _text(row.get("role")) or GENERATED
        if role not in (GENERATED, REFERENCE, TRAINING):
            raise SourceError(f"{where}, column 'role': {role!r} is not generated, reference or training")
        given = row.get("path")
        if not isinstance(given, str) or not given:
            raise SourceError(f"{where} has no path")
        fields = {name: text for name in own if (text := _text(row.get(name)))}
        held = fields.get("held_out")
        if held is not None and held.lower() not in YES + NO:
            raise SourceError(f"{where}, column 'held_out': {held!r} is neither yes nor no")
        if role == GENERATED:
            fields = {"method": path.stem, **fields}
        mask = _text(row.get("mask"))
        yield Picture(path.parent / given, role, {"subject": ONLY, **fields}, _text(row.get("text")),
                      path.parent / mask if mask else None)  # fmt: skip


def _text(value: Any) -> str:
    """A cell as text; whole numbers of data frames without decimals."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


# Outputs


Fields = Callable[[str], dict[str, str] | None]  # of a path with forward slashes; None if it is another one
KNOWN = ("role", "method", "subject", "prompt", "seed", "held_out")
_SHOWN = 10


@dataclass(frozen=True)
class Where:
    """The places of outputs and references.

    Attributes:
        data: folder of outputs, or a table (.csv, .parquet, .jsonl) with a row for each image; None: references alone.
        pattern, layout: of the outputs in a folder: a pattern, or the name of one of `LAYOUTS`.
        references: folder with a folder per subject, or a path with fields (`refs/{subject}/*.jpg`).
        training: images that the generators were trained on, given as references are.
        benchmark: the file that a layout with `{index}` needs.
        cells: folder that keeps the images of a layout with grids.
        skip: leave images out that do not match the pattern, with an `UnmatchedWarning`.
    """

    data: Path | None
    pattern: str | None = None
    layout: str | None = None
    references: str | None = None
    training: str | None = None
    benchmark: Path | None = None
    skip: bool = False
    cells: Path | None = None


def read(where: Where) -> Manifest:
    """The manifest of outputs, references and training images.

    Raises:
        OutputsError: if images do not match, occur twice, or have no reference.
        PatternError, SourceError: for a pattern or table that cannot be used.
    """
    found: list[Picture] = []
    if where.data is not None:
        if not where.data.exists():
            raise OutputsError(f"{where.data}: no such file or folder")
        found = read_table(where.data) if where.data.is_file() else _of_folder(where.data, where)
    if where.references is not None:
        found = [p for p in found if p.role != REFERENCE]
        found += of_subjects(where.references, REFERENCE, where.skip)
    if where.training is not None:
        found += of_subjects(where.training, TRAINING, where.skip)
    return as_manifest(found, outputs=where.data is not None)


def as_manifest(found: Sequence[Picture], noun: str = "method", outputs: bool = True) -> Manifest:
    """The manifest of pictures; generated ones get a seed, and equal references of a subject count once.

    Args:
        noun: what the field `method` holds, for messages. outputs: refuse references alone.

    Raises:
        OutputsError: if a place occurs twice, or images have no reference.
    """
    found = _one_of_each(found)
    _check(found, outputs)
    return _manifest(_numbered(found, noun))


# Folders


def _of_folder(data: Path, where: Where) -> list[Picture]:
    if (where.pattern is None) == (where.layout is None):
        raise OutputsError(
            f"{data} is a folder: name its layout by --pattern, such as "
            f"'{{method}}/{{subject}}/{{prompt}}_{{seed}}.png', or by --layout ({', '.join(LAYOUTS)})"
        )
    if where.layout is not None and where.layout not in LAYOUTS:
        raise OutputsError(f"unknown layout {where.layout!r}: choose {', '.join(LAYOUTS)}")
    layout = LAYOUTS[where.layout] if where.layout else Layout(where.pattern or "")
    if where.benchmark and not layout.benchmark:
        raise OutputsError(f"--benchmark {where.benchmark}: only --layout uno and xversebench read it")
    if layout.benchmark and where.benchmark is None:
        raise OutputsError(f"--layout {where.layout} needs --benchmark FILE.json: its prompts and references")
    entries = layout.benchmark(where.benchmark) if layout.benchmark and where.benchmark else None
    if layout.grid and where.cells is None:
        raise OutputsError(f"--layout {where.layout} needs --out DIR: the four images of each file are kept there")

    files = images_below(data)
    found, rest = _by_layout(data, files, layout)
    if not any(p.role == GENERATED for p in found) and layout.outputs.startswith("{method}/"):
        # the folder of one method
        below = [None if text is None else text.removeprefix("{ignore}/")
                 for text in (layout.references, layout.training)]  # fmt: skip
        outputs = layout.outputs.removeprefix("{method}/")
        inner = replace(layout, outputs=outputs, references=below[0], training=below[1])
        found, rest = _by_layout(data, files, inner)
    refuse_unmatched(rest, f"{data} and {layout.outputs!r}", where.skip)

    if layout.prompts is not None:
        found = [prompted(picture, layout.prompts) for picture in found]
    if layout.grid and where.cells is not None:
        found = cut(found, where.cells, where.skip)
    return found if entries is None else indexed(found, entries, str(where.benchmark))


def images_below(folder: Path) -> list[Path]:
    """The images in and below a folder, in natural order.

    Raises:
        OutputsError: naming a folder without images, or one that cannot be listed.
    """
    try:
        return [Path(path) for path in paths.listed(folder) if paths.is_image(path)]
    except paths.InputError as error:
        raise OutputsError(str(error)) from error


def matched(folder: Path, files: Sequence[Path], role: str, fields: Fields) -> tuple[list[Picture], list[Path]]:
    """Pictures of the files with fields, by their paths below a folder, and the other files."""
    found, rest = [], []
    for file in files:
        own = fields(file.relative_to(folder).as_posix())
        if own is None:
            rest.append(file)
        else:
            found.append(Picture(file, role, {"subject": ONLY, **own}))
    return found, rest


def _by_layout(folder: Path, files: Sequence[Path], layout: Layout) -> tuple[list[Picture], list[Path]]:
    """Pictures of the files that match the layout's patterns, and the other files."""
    found: list[Picture] = []
    for role, text in ((REFERENCE, layout.references), (TRAINING, layout.training), (GENERATED, layout.outputs)):
        if text is not None:
            own, files = matched(folder, files, role, Pattern(text).match)
            found += own
    method = {"method": folder.resolve().name}
    found = [replace(p, fields={**method, **p.fields}) if p.role == GENERATED else p for p in found]
    return found, list(files)


def of_subjects(place: str, role: str, skip: bool) -> list[Picture]:
    """References or training images of a folder, a file, or a path with fields."""
    root, text = (place, "") if os.path.isdir(place) else split(place)
    chosen = text != ""  # the folder may hold other images
    folder = Path(root)
    if not folder.is_dir() or not (os.path.exists(place) or "{" in text or "*" in text):
        raise OutputsError(f"{place}: no such file or folder")
    files = images_below(folder)
    if not text:  # a folder per subject, or the images of the only subject
        text = "{subject}/*" if any(file.parent != folder for file in files) else "*"
    found, rest = matched(folder, files, role, Pattern(text).match)
    if not found:
        raise OutputsError(f"{place}: no image matches {text!r}")
    refuse_unmatched([] if chosen else rest, f"{folder} and {text!r}", skip)
    return found


def refuse_unmatched(rest: Sequence[Path], where: str, skip: bool) -> None:
    """Refuse images that no pattern matches, or leave them out with an `UnmatchedWarning`."""
    if not rest:
        return
    shown = "".join(f"\n  {path}" for path in rest[:_SHOWN])
    more = f"\n  and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
    said = f"{len(rest)} images do not match ({where})"
    if skip:
        warnings.warn(f"{said} and are left out:{shown}{more}", UnmatchedWarning, stacklevel=3)
        return
    raise OutputsError(
        f"{said}; change the pattern ({{ignore}} and * match any text), or leave them out (--on-error skip):"
        f"{shown}{more}"
    )


# Manifest


def _one_of_each(found: Sequence[Picture]) -> list[Picture]:
    """The pictures, with equal files among a subject's references once."""
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for picture in found:
        if picture.role != GENERATED and picture.path.is_file():
            mark = picture.role, picture.fields["subject"], key_of(picture.path)
            if mark in seen:
                continue
            seen.add(mark)
        kept.append(picture)
    return kept


def _check(found: Sequence[Picture], generated: bool) -> None:
    subjects = {role: dict.fromkeys(p.fields["subject"] for p in found if p.role == role)
                for role in (GENERATED, REFERENCE)}  # fmt: skip
    if generated and not subjects[GENERATED]:
        raise OutputsError("no generated images")
    if not subjects[REFERENCE]:
        raise OutputsError("no references: name their folder by --references, or give rows the role reference")
    lacking = [name for name in subjects[GENERATED] if name not in subjects[REFERENCE]]
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise OutputsError(
            f"no references of {', '.join(lacking[:_SHOWN])}{more}; there are references of "
            f"{', '.join(list(subjects[REFERENCE])[:_SHOWN])}"
        )


def _numbered(found: Sequence[Picture], noun: str) -> list[Picture]:
    """Outputs with a seed; without one, they count from 0 within method, subject and prompt.

    Raises:
        OutputsError: if a seed occurs twice there.
    """
    nth: Counter[tuple[str, ...]] = Counter()
    first: dict[tuple[str, ...], Path] = {}
    out = []
    for picture in found:
        if picture.role != GENERATED:
            out.append(picture)
            continue
        cell = tuple(picture.fields.get(name, "") for name in ("method", "subject", "prompt"))
        seed = re.sub(r"\.0+$", "", picture.fields.get("seed") or str(nth[cell]))  # tables with gaps write 0 as 0.0
        nth[cell] += 1
        other = first.setdefault((*cell, seed), picture.path)
        if other is not picture.path:
            method, subject, prompt = cell
            raise OutputsError(
                f"{other} and {picture.path} are both of {noun} {method!r}, subject {subject!r}, prompt {prompt!r}, "
                f"seed {seed!r}: a field or column that separates them is missing"
            )
        out.append(Picture(picture.path, GENERATED, {**picture.fields, "seed": seed}, picture.text, picture.mask))
    return out


def _manifest(found: Sequence[Picture]) -> Manifest:
    generated = [p for p in found if p.role == GENERATED]
    root = os.path.commonpath([os.path.abspath(p.path.parent) for p in generated or found])
    times: Counter[str] = Counter()
    ids = []
    for p in found:  # paths, numbered where one occurs twice
        name = Path(os.path.relpath(p.path, root)).as_posix()
        times[name] += 1
        ids.append(name if times[name] == 1 else f"{name} ({times[name]})")
    rows = [
        Row(
            p.fields["subject"] if p.role == REFERENCE else None, os.path.abspath(p.path), id=name,
            role="context-edit" if p.role == GENERATED else "real", engine=p.fields.get("method"),
            text=p.text or words(p.fields.get("prompt")), mask=None if p.mask is None else os.path.abspath(p.mask),
        )
        for p, name in zip(found, ids, strict=True)
    ]  # fmt: skip
    names = dict.fromkeys([*KNOWN, *(name for p in found for name in p.fields)])
    columns: dict[str, list[str | None]] = {f"x_{name}": [p.fields.get(name) for p in found] for name in names}
    columns["x_role"] = [p.role for p in found]
    stated = [p.fields.get("held_out") for p in found]
    columns["x_held_out"] = [text if text is None else "yes" if text.lower() in YES else "no" for text in stated]
    return Manifest.from_rows(rows).replace(**columns)


def words(prompt: str | None) -> str | None:
    """A prompt in a file's name as words; None for a number."""
    if prompt is None or prompt.isdigit():
        return None
    return prompt if " " in prompt else prompt.replace("_", " ")


# Grids


CELLS = ((0, 0), (1, 0), (0, 1), (1, 1))  # column, row: the order of XVerse's `split_grid`


def cut(found: Sequence[Picture], folder: Path, skip: bool) -> list[Picture]:
    """Outputs with the four images of each grid in its place."""
    out: list[Picture] = []
    for picture in found:
        try:
            out += _cells(picture, folder) if picture.role == GENERATED else [picture]
        except ImageReadError as error:
            if not skip:
                raise OutputsError(f"{error}; leave it out (--on-error skip), or make it again") from error
            warnings.warn(f"{error}: left out", UnmatchedWarning, stacklevel=4)
    return out


def _cells(picture: Picture, folder: Path) -> list[Picture]:
    """The four images of a grid, by seed, kept as `folder`/METHOD/STEM_SEED.png; of an odd side the last pixel is lost.

    Raises:
        ImageReadError: if the grid cannot be read. OSError: if a cell cannot be written.
    """
    grid, found = read_image(picture.path), []
    width, height = grid.width // 2, grid.height // 2
    for seed, (column, row) in enumerate(CELLS):
        path = folder / picture.fields["method"] / f"{picture.path.stem}_{seed}.png"
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            corners = (column * width, row * height, (column + 1) * width, (row + 1) * height)
            grid.crop(corners).save(temporary, format="PNG")
        found.append(replace(picture, path=path, fields={**picture.fields, "seed": str(seed)}))
    return found


# Options of commands


def where_of(args: argparse.Namespace, training: str | None = None) -> Where:
    """The places that the options name."""
    return Where(args.data, args.pattern, args.layout, args.references, training, args.benchmark,
                 args.on_error == "skip", None if args.out is None else args.out / "cells")  # fmt: skip
