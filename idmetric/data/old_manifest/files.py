"""Manifest files: Parquet, CSV and JSON lines, read into Arrow tables and written from them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from idmetric import tables
from idmetric.data.old_manifest.arrow import csv, pa, parquet
from idmetric.data.old_manifest.schema import COLUMNS, PATHS, SCHEMA, ManifestError, array_of, plain
from idmetric.metric.files import refuse_irregular, replacing
from idmetric.metric.paths import with_slashes

FORMATS = (".parquet", ".csv", ".jsonl")
CHUNK = 4096  # rows held as objects at once


def check_extension(path: Path) -> None:
    """Raise a `ManifestError` unless the file's extension is one of `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise ManifestError(f"{path}: a manifest ends in {', '.join(FORMATS)}")


def read_table(path: Path) -> pa.Table:
    """The columns of a manifest file, not yet checked; a `ManifestError` names a file that cannot be read."""
    check_extension(path)
    try:
        refuse_irregular(path)
        if path.suffix.lower() == ".parquet":
            table = parquet.read_table(path)
            table.validate(full=True)  # also checks that text is UTF-8, which reading does not
            return table
        text_table = tables.read_table(path, known=COLUMNS)
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: no such file") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ManifestError(f"{path}: not readable as {path.suffix[1:]}: {error}") from error

    if not text_table.columns:
        return SCHEMA.empty_table()
    columns = {}
    for name in text_table.columns:
        values = text_table.column(name)
        if name in PATHS:
            values = [_with_slashes(value, path.parent) for value in values]
        columns[name] = array_of(values, name, str(path))
    return pa.table(columns)


def _with_slashes(value: Any, root: Path) -> Any:
    """A path of a text table, which may be from Windows, relative to the root; other values as they are."""
    if isinstance(value, str) and "\\" in value and not os.path.lexists(root / value):
        return with_slashes(value)
    return value


def write_table(table: pa.Table, path: Path) -> None:
    """Write the table in the format of the file's extension, atomically; errors as in `Manifest.write`."""
    ending = path.suffix.lower()
    for column in PATHS.values():
        if table[column].null_count == len(table):
            table = table.drop_columns(column)
    if ending != ".parquet":  # text formats leave empty columns out
        for column in table.column_names:
            kind = table[column].type
            if table[column].null_count == len(table) and column != "identity":
                table = table.drop_columns(column)
            elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                raise ManifestError(f"{path}: {ending} holds no bytes (column {column!r}); write .parquet")
            elif ending == ".csv" and pa.types.is_nested(kind):
                raise ManifestError(f"{path}: .csv holds no lists or objects (column {column!r}); write .parquet")

    with replacing(path, parents=True) as temporary:
        if ending == ".parquet":
            parquet.write_table(table.replace_schema_metadata(SCHEMA.metadata), temporary)
        elif ending == ".csv":
            csv.write_csv(table, temporary)
        else:
            _write_lines(table, temporary, str(path))


def _write_lines(table: pa.Table, path: Path, name: str) -> None:
    number = 0
    with open(path, "w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=CHUNK):
            for values in batch.to_pylist():
                number += 1
                if values.get("parameters") is not None:
                    values["parameters"] = json.loads(values["parameters"])
                row = {}
                for key, value in values.items():
                    is_empty = value is None or value != value  # NaN
                    if key == "identity" or not is_empty:
                        row[key] = value
                try:
                    line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
                except (TypeError, ValueError) as error:
                    raise ManifestError(f"{name}: row {number}: a free column cannot be JSON ({error})") from error
                file.write(line + "\n")
