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

from idmetric.data.importers.run import Job, scalars
from idmetric.data.importers.source import Source, SourceError
from idmetric.data.manifest.table import Row

FILES = {"gallery": "gallery_data.csv", "train": "train_data.csv", "query": "generated_data.csv"}  # by split
_COLUMNS = ("file_path", "name", "species")


def rows(job: Job) -> Iterator[Row]:
    """A row for each image: split "gallery", "train" or "query"; the column engine holds a query's method."""
    real: dict[str, tuple[Path, set[tuple[Any, ...]]]] = {}  # the first table of each split, which all methods share
    made: dict[str, Path] = {}  # method -> its table

    tables = []
    for root in map(job.folder, job.sources):
        found = [(split, root / file) for split, file in FILES.items() if (root / file).is_file()]
        if not found:
            raise SourceError(f"{root}: none of {', '.join(FILES.values())} in the folder")
        tables += found
    for split, table in tables:
        images = list(_images(job, split, table))
        if split == "query":
            for method in {str(image.engine) for image in images}:
                if made.setdefault(method, table) != table:
                    raise SourceError(f"{table} and {made[method]} are both of the method {method!r}: rename a folder")
            yield from images
            continue
        keys = {(image.category, image.identity, image.id) for image in images}
        if split not in real:
            real[split] = table, keys
            yield from images
        elif real[split][1] != keys:
            _, identity, place = min(real[split][1] ^ keys)
            raise SourceError(
                f"{table}: other images than {real[split][0]}: only one of them has {place} of {identity}; import "
                "methods with other real images separately, with another --name"
            )

    if "gallery" not in real or not (made or "train" in real):
        raise SourceError(
            f"{', '.join(job.sources)}: needs {FILES['gallery']}, and {FILES['query']} or {FILES['train']}"
        )


def _images(job: Job, split: str, table: Path) -> Iterator[Row]:
    source = replace(job.open(*_COLUMNS, source=str(table)), name=str(table))
    for record in job.rows(source):
        values = record.values
        if lacks := [column for column in _COLUMNS if not values[column]]:
            record.reject(f"no {lacks[0]}")
            continue
        file, place = _find(str(values["file_path"]), source)
        if not file.is_file():
            record.reject(f"{file}: no such file")
            continue
        method = str(values.get("method") or table.parent.resolve().name) if split == "query" else None
        yield job.row(
            f"{values['species']}/{values['name']}",
            f"{method}/{place}" if method else place,
            file,
            split=split,
            category=str(values["species"]),
            role="context-edit" if method else "real",
            engine=method,
            parameters=scalars({key: v for key, v in values.items() if key}, *_COLUMNS, "method") or None,
        )


def _find(path: str, source: Source) -> tuple[Path, str]:
    """The file of a path, and its place below the source's folder; see this module's docstring."""
    file, parts = source.locate(path), PureWindowsPath(path).parts
    ends = [PurePosixPath(*parts[k:]) for k, part in enumerate(parts) if part == "data"]
    if not file.is_file():
        file = next((source.root / end for end in reversed(ends) if (source.root / end).is_file()), file)
    whole, root = Path(os.path.abspath(file)), Path(os.path.abspath(source.root))
    if whole.is_relative_to(root):
        return file, whole.relative_to(root).as_posix()
    return file, str(ends[-1] if ends else PurePosixPath(*whole.parts[1:]))
