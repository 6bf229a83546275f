"""Reads generated images with their references as one manifest: from folders by a pattern, or from a table.

Columns that begin with `FIELD` hold a row's place: x_role (generated, reference, training), x_method, x_subject,
x_prompt, x_seed, x_held_out, and each further field of the pattern or column of the table.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.evaluate.protocols.common.columns import listed
from idmetric.evaluate.protocols.generator.pattern import (
    FIELD,
    GENERATED,
    LAYOUTS,
    ONLY,
    REFERENCE,
    TRAINING,
    Fields,
    GeneratedPicture,
    fields_of,
    split,
)
from idmetric.metric import paths
from idmetric.metric.errors import RequestError
from idmetric.store import key_of
from idmetric.tables import first_few

if TYPE_CHECKING:
    from pandas import DataFrame

KNOWN = ("role", "method", "subject", "prompt", "seed", "held_out")
_YES, _NO = ("yes", "true", "1", "y"), ("no", "false", "0", "n")  # Parquet has booleans, data frames write them as text
_SHOWN = 10


def read(
    data: Path | DataFrame,
    pattern: str | None = None,
    *,
    layout: str | None = None,
    references: str | None = None,
    training: str | None = None,
    skip: bool = False,
) -> DataFrame:
    """The manifest of outputs, references and training images.

    Args:
        data: folder of outputs, or a table with a row for each image: a file (.csv, .parquet, .jsonl) or a DataFrame.
        pattern, layout: of the outputs in a folder: a pattern, or the name of one of `LAYOUTS`.
        references: folder with a folder per subject, or a path with fields (`refs/{subject}/*.jpg`).
        training: images that the generators were trained on, given as references are.
        skip: leave images out that do not match the pattern, with a warning.

    Raises:
        RequestError: if images do not match, occur twice, or have no reference.
        ManifestError: for a table that cannot be used.
    """
    from idmetric.data.manifest import refuse_boxes

    patterns: tuple[str, str | None] | None = None
    if pattern is not None and layout is None:
        patterns = pattern, None
    elif layout is not None and pattern is None:
        patterns = LAYOUTS[layout]

    if isinstance(data, Path):
        pictures = _outputs(data, patterns, skip)
    else:
        refuse_boxes(map(str, data.columns), "the table")
        cells = data.astype(object).where(data.notna(), None)
        pictures = pictures_of(cells.to_dict("records"), "the table", Path(), "outputs")
    return as_manifest(with_photos(pictures, references, training, skip))


def _outputs(data: Path, patterns: tuple[str, str | None] | None, skip: bool) -> list[GeneratedPicture]:
    """The pictures of a table or folder."""
    if not data.exists():
        data, tables = _matched(data)
        if tables:
            return list(chain.from_iterable(map(read_table, tables)))
    if data.is_file():
        return read_table(data)
    if not data.is_dir():
        raise RequestError(f"{data}: no file or folder has this name")
    if patterns is None:
        raise RequestError(
            f"{data} is a folder: name its layout by --pattern, such as "
            f"'{{method}}/{{subject}}/{{prompt}}_{{seed}}.png', or by --layout ({', '.join(LAYOUTS)})"
        )
    return _of_folder(data, *patterns, skip)


def _matched(pattern: Path) -> tuple[Path, list[Path]]:
    """The file or folder that a pattern matches, or the tables, if it matches several; the path itself if none."""
    sources = [Path(source) for source in paths.matches(str(pattern))]
    if len(sources) < 2:
        return next(iter(sources), pattern), []
    folders = [source for source in sources if source.is_dir()]
    if folders:
        raise RequestError(
            f"{pattern} matches {len(sources)} folders, such as {folders[0]}: name the folder above them, and their "
            "names in --pattern, such as '{method}/{subject}/{prompt}_{seed}.png'"
        )
    return pattern, sources


# Tables


def read_table(path: Path) -> list[GeneratedPicture]:
    """The pictures of a .csv, .parquet or .jsonl file, with their columns as fields."""
    from idmetric.data.importers.source import ENDINGS, open_source
    from idmetric.data.manifest import ManifestError, refuse_boxes

    if path.suffix.lower() not in ENDINGS:
        raise RequestError(f"{path}: a table ends in {', '.join(ENDINGS)}")
    table = open_source(path)
    if "path" not in table.columns:
        raise ManifestError(f"{path}: no column 'path'; there are {', '.join(table.columns)}")
    refuse_boxes(table.columns, str(path))

    rows = (record.values for record in table)
    return pictures_of(rows, str(path), path.parent, path.stem)


def pictures_of(rows: Iterable[Mapping[str, Any]], name: str, folder: Path, method: str) -> list[GeneratedPicture]:
    """The pictures of a table's rows, with their columns as fields.

    Args:
        name: of the table, for messages. folder: of relative paths. method: of generated images without one.
    """
    from idmetric.data.manifest import ManifestError

    pictures = []
    for number, row in enumerate(rows, 1):
        fields = {column: text for column, value in row.items() if (text := _text(value))}
        file, role = fields.pop("path", ""), fields.pop("role", GENERATED)
        text, mask = fields.pop("text", ""), fields.pop("mask", "")
        if not file:
            raise ManifestError(f"{name}: row {number} has no path")
        if role not in (GENERATED, REFERENCE, TRAINING):
            raise ManifestError(
                f"{name}: row {number}, column 'role': {role!r} is not generated, reference or training"
            )
        if "held_out" in fields:
            answer = fields["held_out"].lower()
            if answer not in _YES + _NO:
                raise ManifestError(f"{name}: row {number}, column 'held_out': {fields['held_out']!r} is not yes or no")
            fields["held_out"] = "yes" if answer in _YES else "no"
        fields.setdefault("subject", ONLY)
        if role == GENERATED:
            fields.setdefault("method", method)
        file_path, mask_path = (Path(paths.with_slashes(str(folder / file))) for file in (file, mask))
        pictures.append(GeneratedPicture(file_path, role, fields, text or None, mask_path if mask else None))
    return pictures


def _text(value: Any) -> str:
    """A cell as text; whole numbers of data frames without decimals."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


# Folders


def _of_folder(data: Path, pattern: str, references: str | None, skip: bool) -> list[GeneratedPicture]:
    data = Path(os.path.abspath(data))
    files = images_below(data)
    pictures, rest = _by_patterns(data, files, pattern, references, data.name)
    if not any(picture.role == GENERATED for picture in pictures):  # the folder of one method
        pictures, rest = _by_patterns(data.parent, files, pattern, references, data.name)
    refuse_unmatched(rest, f"{data} and {pattern!r}", skip)
    return pictures


def _by_patterns(
    folder: Path, files: Sequence[Path], pattern: str, references: str | None, method: str
) -> tuple[list[GeneratedPicture], Sequence[Path]]:
    """Pictures of the files that match the patterns, and the other files; `method` if the pattern has none."""
    photos: list[GeneratedPicture] = []
    if references is not None:
        photos, files = matched(folder, files, REFERENCE, fields_of(references))
    outputs, files = matched(folder, files, GENERATED, fields_of(pattern), method=method)
    return photos + outputs, files


def images_below(folder: Path) -> list[Path]:
    """The images in and below a folder, in natural order."""
    if not folder.is_dir():
        raise RequestError(f"{folder}: no such file or folder")
    return [Path(path) for path in paths.listed(folder)]


def matched(
    folder: Path, files: Sequence[Path], role: str, fields: Fields, **defaults: str
) -> tuple[list[GeneratedPicture], list[Path]]:
    """Pictures of the files with fields, by their paths below a folder, and the other files."""
    pictures, rest = [], []
    for file in files:
        file_fields = fields(file.relative_to(folder).as_posix())
        if file_fields is None:
            rest.append(file)
        else:
            pictures.append(GeneratedPicture(file, role, {"subject": ONLY, **defaults, **file_fields}))
    return pictures, rest


def with_photos(
    pictures: Sequence[GeneratedPicture], references: str | None, training: str | None, skip: bool
) -> list[GeneratedPicture]:
    """The pictures with references in place of theirs, and training images, where these are given.

    Args:
        references, training: a folder, a file, or a path with fields.
    """
    photos = list(pictures)
    if references is not None:
        photos = [picture for picture in pictures if picture.role != REFERENCE]
        photos += _photos(references, REFERENCE, skip)
    if training is not None:
        photos += _photos(training, TRAINING, skip)
    return photos


def _photos(source: str, role: str, skip: bool) -> list[GeneratedPicture]:
    root, pattern = (source, "") if os.path.isdir(source) else split(source)
    folder = Path(root)
    files = images_below(folder)
    if pattern:
        pictures, _ = matched(folder, files, role, fields_of(pattern))
    else:  # a folder per subject, or the images of the only subject
        has_folders = any(file.parent != folder for file in files)
        pattern = "{subject}/*" if has_folders else "*"
        pictures, rest = matched(folder, files, role, fields_of(pattern))
        refuse_unmatched(rest if pictures else [], f"{folder} and {pattern!r}", skip)
    if not pictures:
        raise RequestError(f"{source}: no such images")
    return pictures


def refuse_unmatched(rest: Sequence[Path], where: str, skip: bool) -> None:
    """Refuse images that no pattern matches, or leave them out with a warning."""
    if not rest:
        return
    names = first_few(list(map(str, rest)), _SHOWN)
    problem = f"{len(rest)} images do not match ({where})"
    if not skip:
        raise RequestError(
            f"{problem}; change the pattern ({{ignore}} and * match any text), or leave them out (--on-error skip):"
            + "".join(f"\n  {name}" for name in names)
        )
    warnings.warn(f"{problem} and are left out: {', '.join(names)}", stacklevel=3)


# Manifest


def as_manifest(pictures: Sequence[GeneratedPicture]) -> DataFrame:
    """The manifest of pictures; generated ones get a seed, and equal references of a subject count once.

    Raises:
        RequestError: if a place occurs twice, or images have no reference.
    """

    from idmetric.data.manifest import checked, with_columns

    _check_subjects(pictures)
    pictures = _numbered(_without_repeated_photos(pictures))
    placed = [picture for picture in pictures if picture.role == GENERATED]
    root = os.path.commonpath([os.path.abspath(picture.path.parent) for picture in placed])
    times: Counter[str] = Counter()  # a path that occurs twice is numbered
    rows = []
    for picture in pictures:
        name = Path(os.path.relpath(picture.path, root)).as_posix()
        times[name] += 1
        if times[name] > 1:
            name = f"{name} ({times[name]})"
        row = {
            "identity": picture.fields["subject"] if picture.role == REFERENCE else None,
            "path": os.path.abspath(picture.path),
            "id": name,
            "role": "context-edit" if picture.role == GENERATED else "real",
            "engine": picture.fields.get("method"),
            "text": picture.text or words(picture.fields.get("prompt")),
            "mask": os.path.abspath(picture.mask) if picture.mask else None,
        }
        rows.append(row)

    table = checked(rows)
    names = dict.fromkeys(chain(KNOWN, *(picture.fields for picture in pictures)))
    columns = {FIELD + name: [picture.fields.get(name) for picture in pictures] for name in names}
    columns[f"{FIELD}role"] = [picture.role for picture in pictures]
    return with_columns(table, **columns)


def _check_subjects(pictures: Sequence[GeneratedPicture]) -> None:
    generated = {picture.fields["subject"] for picture in pictures if picture.role == GENERATED}
    shown = {picture.fields["subject"] for picture in pictures if picture.role == REFERENCE}
    if not generated:
        raise RequestError("no generated images")
    if not shown:
        raise RequestError("no references: name their folder by --references, or give rows the role reference")
    if generated - shown:
        raise RequestError(
            f"no references of {listed(sorted(generated - shown))}; there are references of {listed(sorted(shown))}"
        )


def _without_repeated_photos(pictures: Sequence[GeneratedPicture]) -> list[GeneratedPicture]:
    """The pictures, with equal files among a subject's references once."""
    sizes = Counter(map(_size_of_photo, pictures))
    different: dict[object, GeneratedPicture] = {}
    for index, picture in enumerate(pictures):
        key: object = index
        size = _size_of_photo(picture)
        if size is not None and sizes[size] > 1:  # a file of another size has other bytes, and need not be read
            key = (picture.role, picture.fields["subject"], key_of(picture.path))
        different.setdefault(key, picture)
    return list(different.values())


def _size_of_photo(picture: GeneratedPicture) -> tuple[str, str, int] | None:
    """Role, subject and number of bytes of a reference or training image; None for other pictures."""
    if picture.role not in (REFERENCE, TRAINING) or not picture.path.is_file():
        return None
    return picture.role, picture.fields["subject"], picture.path.stat().st_size


def _numbered(pictures: Sequence[GeneratedPicture]) -> list[GeneratedPicture]:
    """Outputs with a seed; without one, they count from 0 within method, subject and prompt."""
    counts: Counter[tuple[str, ...]] = Counter()
    paths: dict[tuple[str, ...], Path] = {}
    numbered = []
    for picture in pictures:
        if picture.role == GENERATED:
            method, subject, prompt = cell = tuple(
                picture.fields.get(name, "") for name in ("method", "subject", "prompt")
            )
            seed = picture.fields.get("seed") or str(counts[cell])
            seed = re.sub(r"\.0+$", "", seed)  # tables with gaps write 0 as 0.0
            counts[cell] += 1
            picture = picture.having(seed=seed)
            if (*cell, seed) in paths:
                raise RequestError(
                    f"{paths[*cell, seed]} and {picture.path} are both of method {method!r}, subject {subject!r}, "
                    f"prompt {prompt!r}, seed {seed!r}: a field or column that separates them is missing"
                )
            paths[*cell, seed] = picture.path
        numbered.append(picture)
    return numbered


def words(prompt: str | None) -> str | None:
    """A prompt in a file's name as words; None for a number."""
    if prompt is None or prompt.isdigit():
        return None
    return prompt if " " in prompt else prompt.replace("_", " ")
