"""Finer-Personalization Rank: generated images, and the real look-alikes that they query (Kilrain et al., 2512.19026).

ROOT/gallery_data.csv      file_path, name, species: real images, data/sparrow/NAME/gallery/0.png
ROOT/train_data.csv        the same for the images that generators learned from, data/sparrow/NAME/train/0.png
ROOT/generated_data.csv    the same for their results, data/sparrow/NAME/generated_images/0.png

The scripts of github OSU-MLB/Finer-Personalization-Rank write these tables. A `name` is an animal, a bird's species or
a car's model, and images of one `species` are its look-alikes. Each method has a folder of its own, a copy of the data
with its results; give all of them, and their names name the methods. Or a column `method` of generated_data.csv does.

File paths are relative to the table, absolute, or relative to where the scripts ran: a file that is not there is looked
for below the table by the part of its path from `data/` on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from idmetric.data.importers.run import ImportJob, scalars
from idmetric.data.importers.source import Source
from idmetric.data.manifest.errors import ManifestError
from idmetric.data.manifest.table import Row

FILES = {"gallery": "gallery_data.csv", "train": "train_data.csv", "query": "generated_data.csv"}  # by split
_COLUMNS = ("file_path", "name", "species")


def rows(job: ImportJob) -> Iterator[Row]:
    """A row for each image: split "gallery", "train" or "query"; the column engine holds a query's method."""
    tables = []
    for root in map(job.folder, job.sources):
        paths = {split: root / file for split, file in FILES.items()}
        present = [(split, path) for split, path in paths.items() if path.is_file()]
        if not present:
            raise ManifestError(f"{root}: none of {', '.join(FILES.values())} in the folder")
        tables += present

    real: dict[str, tuple[Path, set[tuple[Any, ...]]]] = {}  # the first table of each split, which all methods share
    table_of: dict[str, Path] = {}  # of methods
    for split, table in tables:
        images = list(_images(job, split, table))
        if split == "query":
            for method in {str(image.engine) for image in images}:
                if table_of.setdefault(method, table) != table:
                    raise ManifestError(
                        f"{table} and {table_of[method]} are both of the method {method!r}: rename a folder"
                    )
            yield from images
            continue

        keys = {(image.category, image.identity, image.id) for image in images}
        if split not in real:
            real[split] = table, keys
            yield from images
        elif keys != real[split][1]:
            _, identity, name = min(keys ^ real[split][1])
            raise ManifestError(
                f"{table}: other images than {real[split][0]}: only one of them has {name} of {identity}; import "
                "methods with other real images separately, with another --name"
            )

    if "gallery" not in real or not (table_of or "train" in real):
        folders = ", ".join(map(str, job.sources))
        raise ManifestError(f"{folders}: needs {FILES['gallery']}, and {FILES['query']} or {FILES['train']}")


def _images(job: ImportJob, split: str, table: Path) -> Iterator[Row]:
    source = replace(job.open(*_COLUMNS, source=table, known=("method",)), name=str(table))
    for record in job.records(source):
        values = {name: value for name, value in record.values.items() if name and value}  # an index has no name
        missing = [column for column in _COLUMNS if column not in values]
        if missing:
            record.reject(f"no {missing[0]}")
            continue
        file, name = _find(values["file_path"], source)
        if not file.is_file():
            record.reject(f"{file}: no such file")
            continue
        columns = {"split": split, "category": values["species"]}
        if split == "query":
            method = values.get("method") or table.parent.resolve().name
            name = f"{method}/{name}"
            columns |= {"role": "context-edit", "engine": method}
        parameters = scalars(values, *_COLUMNS, "method")
        yield job.row(f"{values['species']}/{values['name']}", name, file, parameters=parameters, **columns)


def _find(path: str, source: Source) -> tuple[Path, str]:
    """The file of a path, and its path from the source's folder; see this module's docstring."""
    file = source.locate(path)
    parts = PureWindowsPath(path).parts
    ends = [PurePosixPath(*parts[start:]) for start, part in enumerate(parts) if part == "data"]
    if not file.is_file():
        for end in ends:
            if (source.root / end).is_file():
                file = source.root / end  # the last one counts

    absolute = Path(os.path.abspath(file))
    root = Path(os.path.abspath(source.root))
    if absolute.is_relative_to(root):
        return file, absolute.relative_to(root).as_posix()
    return file, str(ends[-1] if ends else PurePosixPath(*absolute.parts[1:]))
