"""The data that a path names: a manifest, a folder, or a pattern of both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.metric.errors import RequestError
from idmetric.metric.paths import matches

if TYPE_CHECKING:
    from pandas import DataFrame


def read_data(path: Path) -> DataFrame:
    """Read a manifest, or make one of a folder with one folder per identity, or join those of a pattern.

    Identities of a folder are named after its folders; where several are joined, with the name of the folder above.
    """
    from idmetric.data.manifest import merge, with_columns

    sources = [path]
    if not path.exists():
        sources = [Path(source) for source in matches(os.fspath(path))]
    if not sources:
        raise RequestError(f"{path}: no such file or folder")
    if len(sources) > 1:
        return merge([_read(source) for source in sources])

    table = _read(sources[0])
    prefix = f"{sources[0].resolve().name}/"
    if sources[0].is_dir() and table["id"].str.startswith(prefix).all():
        names = {column: table[column].str.removeprefix(prefix) for column in ("identity", "id")}
        table = with_columns(table, **names)
    return table


def _read(path: Path) -> DataFrame:
    """The manifest of a file or folder; names of a folder without one begin with its own."""
    from idmetric.data.importers.run import import_dataset
    from idmetric.data.manifest import FORMATS, read

    for file in [path, *(path / f"manifest{ending}" for ending in FORMATS)]:
        if file.is_file():
            return read(file)
    return import_dataset("folder", path, name=path.resolve().name)
