"""Reads generated images with their references as one manifest: from folders by a pattern, or from a table.

A row's free columns hold its place: x_role (generated, reference, training), x_method, x_subject, x_prompt, x_seed,
x_held_out, and a column for each further field of the pattern or column of the table.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.data.importers.source import ENDINGS, SourceError, open_source
from idmetric.evaluate.protocols.common.columns import listed
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.generator.layouts import LAYOUTS, Layout, indexed, prompted
from idmetric.evaluate.protocols.generator.options import OutputsOptions
from idmetric.evaluate.protocols.generator.pattern import (
    GENERATED,
    ONLY,
    REFERENCE,
    TRAINING,
    Fields,
    OutputsError,
    Picture,
    fields_of,
    split,
)
from idmetric.metric.files.output import replacing
from idmetric.metric.images import paths
from idmetric.metric.images.read import read_image
from idmetric.metric.scoring.keys import key_of

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

KNOWN = ("role", "method", "subject", "prompt", "seed", "held_out")
_HELD_OUT = {**dict.fromkeys(("yes", "true", "1", "y"), "yes"), **dict.fromkeys(("no", "false", "0", "n"), "no")}
_SHOWN = 10
_CELLS = ((0, 0), (1, 0), (0, 1), (1, 1))  # column, row of a grid: the order of XVerse's `split_grid`


def read(
    data: Path | None,
    pattern: str | None = None,
    *,
    layout: str | None = None,
    references: str | None = None,
    training: str | None = None,
    benchmark: Path | None = None,
    cells: Path | None = None,
    skip: bool = False,
) -> Manifest:
    """The manifest of outputs, references and training images.

    Args:
        data: folder of outputs, or a table (.csv, .parquet, .jsonl) with a row for each image; None: references alone.
        pattern, layout: of the outputs in a folder: a pattern, or the name of one of `LAYOUTS`.
        references: folder with a folder per subject, or a path with fields (`refs/{subject}/*.jpg`).
        training: images that the generators were trained on, given as references are.
        benchmark: the file that a layout with `{index}` needs.
        cells: folder that keeps the images of a layout with grids.
        skip: leave images out that do not match the pattern, with a warning.

    Raises:
        OutputsError: if images do not match, occur twice, or have no reference.
        SourceError: for a table that cannot be used.
    """
    found: list[Picture] = []
    if data is not None and data.is_file():
        found = read_table(data)
    elif data is not None:
        if not data.is_dir():
            raise OutputsError(f"{data}: there is no such file or folder")
        if (pattern is None) == (layout is None):
            raise OutputsError(
                f"{data} is a folder: name its layout by --pattern, such as "
                f"'{{method}}/{{subject}}/{{prompt}}_{{seed}}.png', or by --layout ({', '.join(LAYOUTS)})"
            )
        found = _of_layout(data, LAYOUTS[layout] if layout else Layout(pattern or ""), benchmark, cells, skip)
    return as_manifest(with_photos(found, references, training, skip), outputs=data is not None)


def open_outputs(
    data: Path | None, settings: EvalSettings, options: OutputsOptions, training: str | None = None
) -> Manifest:
    """`read` what the options of a command name."""
    return read(
        data,
        options.pattern,
        layout=options.layout,
        references=options.references,
        training=training,
        benchmark=options.benchmark,
        cells=None if settings.out is None else settings.out / "cells",
        skip=settings.on_error == "skip",
    )


# Tables


def read_table(path: Path) -> list[Picture]:
    """The pictures of a .csv, .parquet or .jsonl file, with their columns as fields."""
    if path.suffix not in ENDINGS:
        raise OutputsError(f"{path}: a table ends in {', '.join(ENDINGS)}")
    table = open_source(path)
    if "path" not in table.columns:
        raise SourceError(f"{path}: no column 'path'; there are {', '.join(table.columns)}")

    found = []
    for number, (_, row) in enumerate(table.rows(), 1):
        fields = {name: text for name, value in row.items() if (text := _text(value))}
        given, role = fields.pop("path", ""), fields.pop("role", GENERATED)
        text, mask = fields.pop("text", ""), fields.pop("mask", "")
        if not given:
            raise SourceError(f"{path}: row {number} has no path")
        if role not in (GENERATED, REFERENCE, TRAINING):
            raise SourceError(f"{path}: row {number}, column 'role': {role!r} is not generated, reference or training")
        if "held_out" in fields:
            stated = _HELD_OUT.get(fields["held_out"].lower())
            if stated is None:
                raise SourceError(f"{path}: row {number}, column 'held_out': {fields['held_out']!r} is not yes or no")
            fields["held_out"] = stated
        first = {"subject": ONLY, **({"method": path.stem} if role == GENERATED else {})}
        cover = path.parent / mask if mask else None
        found.append(Picture(path.parent / given, role, first | fields, text or None, cover))
    return found


def _text(value: Any) -> str:
    """A cell as text; whole numbers of data frames without decimals."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


# Folders


def _of_layout(data: Path, layout: Layout, benchmark: Path | None, cells: Path | None, skip: bool) -> list[Picture]:
    if layout.benchmark and benchmark is None:
        raise OutputsError("this layout needs --benchmark FILE.json: its prompts and references")
    if layout.grid and cells is None:
        raise OutputsError("this layout needs --out DIR: the four images of each file are kept there")

    data = Path(os.path.abspath(data))
    files = images_below(data)
    found, rest = _by_layout(data, files, layout)
    if not any(p.role == GENERATED for p in found):  # the folder of one method
        found, rest = _by_layout(data.parent, files, layout)
    found = [replace(p, fields={"method": data.name, **p.fields}) if p.role == GENERATED else p for p in found]
    refuse_unmatched(rest, f"{data} and {layout.outputs!r}", skip)

    if layout.prompts is not None:
        found = [prompted(picture, layout.prompts) for picture in found]
    if cells is not None and layout.grid:
        found = [cell for picture in found for cell in _cells(picture, cells)]
    return found if benchmark is None or layout.benchmark is None else indexed(found, benchmark, layout.benchmark)


def _by_layout(folder: Path, files: Sequence[Path], layout: Layout) -> tuple[list[Picture], Sequence[Path]]:
    """Pictures of the files that match the layout's patterns, and the other files."""
    found: list[Picture] = []
    for role, text in ((REFERENCE, layout.references), (TRAINING, layout.training), (GENERATED, layout.outputs)):
        if text is not None:
            own, files = matched(folder, files, role, fields_of(text))
            found += own
    return found, files


def _cells(grid: Picture, folder: Path) -> list[Picture]:
    """The four images of a grid, by seed, kept in `folder`; of an odd side the last pixel is lost."""
    whole, found = read_image(grid.path), []
    width, height = whole.width // 2, whole.height // 2
    for seed, (column, row) in enumerate(_CELLS):
        path = folder / grid.fields["method"] / f"{grid.path.stem}_{seed}.png"
        with replacing(path, parents=True) as temporary:
            corners = (column * width, row * height, (column + 1) * width, (row + 1) * height)
            whole.crop(corners).save(temporary, format="PNG")
        found.append(replace(grid.having(seed=str(seed)), path=path))
    return found


def images_below(folder: Path) -> list[Path]:
    """The images in and below a folder, in natural order."""
    if not folder.is_dir():
        raise OutputsError(f"{folder}: no such file or folder")
    return [Path(path) for path in paths.listed(folder)]


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


def with_photos(
    found: Sequence[Picture], references: str | None, training: str | None, skip: bool, alone: bool = False
) -> list[Picture]:
    """The pictures with references in place of theirs, and training images, where these are given.

    Args:
        references, training: a folder, a file, or a path with fields.
        alone: all images in and below a folder show the only subject.
    """
    out = [p for p in found if references is None or p.role != REFERENCE]
    for place, role in ((references, REFERENCE), (training, TRAINING)):
        if place is not None:
            out += _photos(place, role, skip, alone)
    return out


def _photos(place: str, role: str, skip: bool, alone: bool) -> list[Picture]:
    root, text = (place, "") if os.path.isdir(place) else split(place)
    folder = Path(root)
    files = images_below(folder)
    if alone and not text:
        return [Picture(file, role, {"subject": ONLY}) for file in files]
    # by default a folder per subject, or the images of the only subject
    pattern = text or ("{subject}/*" if any(file.parent != folder for file in files) else "*")
    found, rest = matched(folder, files, role, fields_of(pattern))
    if not found:
        raise OutputsError(f"{place}: no such images")
    refuse_unmatched([] if text else rest, f"{folder} and {pattern!r}", skip)
    return found


def refuse_unmatched(rest: Sequence[Path], where: str, skip: bool) -> None:
    """Refuse images that no pattern matches, or leave them out with a warning."""
    if not rest:
        return
    names = "".join(f"\n  {path}" for path in rest[:_SHOWN])
    more = f"\n  and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
    problem = f"{len(rest)} images do not match ({where})"
    if not skip:
        raise OutputsError(
            f"{problem}; change the pattern ({{ignore}} and * match any text), or leave them out (--on-error skip):"
            f"{names}{more}"
        )
    warnings.warn(f"{problem} and are left out:{names}{more}", stacklevel=3)


# Manifest


def as_manifest(found: Sequence[Picture], noun: str = "method", outputs: bool = True) -> Manifest:
    """The manifest of pictures; generated ones get a seed, and equal references of a subject count once.

    Args:
        noun: what the field `method` holds, for messages. outputs: refuse references alone.

    Raises:
        OutputsError: if a place occurs twice, or images have no reference.
    """
    from idmetric.data.manifest.table import Manifest, Row

    made, shown = ({p.fields["subject"] for p in found if p.role == role} for role in (GENERATED, REFERENCE))
    if outputs and not made:
        raise OutputsError("no generated images")
    if not shown:
        raise OutputsError("no references: name their folder by --references, or give rows the role reference")
    if made - shown:
        raise OutputsError(f"no references of {listed(sorted(made - shown))}; there are references of "
                           f"{listed(sorted(shown))}")  # fmt: skip

    found = _numbered(_one_of_each(found), noun)
    root = os.path.commonpath([os.path.abspath(p.path.parent) for p in found if p.role == GENERATED or not outputs])
    times: Counter[str] = Counter()
    rows = []
    for p in found:
        name = Path(os.path.relpath(p.path, root)).as_posix()
        times[name] += 1  # a path that occurs twice is numbered
        rows.append(Row(
            p.fields["subject"] if p.role == REFERENCE else None, os.path.abspath(p.path),
            id=name if times[name] == 1 else f"{name} ({times[name]})",
            role="context-edit" if p.role == GENERATED else "real", engine=p.fields.get("method"),
            text=p.text or words(p.fields.get("prompt")), mask=None if p.mask is None else os.path.abspath(p.mask),
        ))  # fmt: skip
    names = dict.fromkeys([*KNOWN, *(name for p in found for name in p.fields)])
    columns = {f"x_{name}": [p.fields.get(name) for p in found] for name in names}
    return Manifest.from_rows(rows).replace(**{**columns, "x_role": [p.role for p in found]})


def _one_of_each(found: Sequence[Picture]) -> list[Picture]:
    """The pictures, with equal files among a subject's references once."""
    different: dict[object, Picture] = {}
    for k, picture in enumerate(found):
        alone = picture.role == GENERATED or not picture.path.is_file()
        different.setdefault(k if alone else (picture.role, picture.fields["subject"], key_of(picture.path)), picture)
    return list(different.values())


def _numbered(found: Sequence[Picture], noun: str) -> list[Picture]:
    """Outputs with a seed; without one, they count from 0 within method, subject and prompt."""
    nth: Counter[tuple[str, ...]] = Counter()
    first: dict[tuple[str, ...], Path] = {}
    out = []
    for picture in found:
        if picture.role == GENERATED:
            cell = tuple(picture.fields.get(name, "") for name in ("method", "subject", "prompt"))
            seed = re.sub(r"\.0+$", "", picture.fields.get("seed") or str(nth[cell]))  # tables with gaps write 0 as 0.0
            nth[cell] += 1
            picture = picture.having(seed=seed)
            other = first.setdefault((*cell, seed), picture.path)
            if other is not picture.path:
                method, subject, prompt = cell
                raise OutputsError(
                    f"{other} and {picture.path} are both of {noun} {method!r}, subject {subject!r}, prompt {prompt!r},"
                    f" seed {seed!r}: a field or column that separates them is missing"
                )
        out.append(picture)
    return out


def words(prompt: str | None) -> str | None:
    """A prompt in a file's name as words; None for a number."""
    if prompt is None or prompt.isdigit():
        return None
    return prompt if " " in prompt else prompt.replace("_", " ")
