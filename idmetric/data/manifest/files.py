"""Manifest files: Parquet, CSV and JSON lines, read into Arrow tables and written from them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from idmetric.data.manifest.schema import SCHEMA, ManifestError, array_of, plain
from idmetric.metric.files import StrPath, json_file
from idmetric.metric.files.output import refuse_irregular, replacing

FORMATS = (".parquet", ".csv", ".jsonl")
CHUNK = 4096  # rows held as objects at once


def check_extension(path: Path) -> None:
    """Raise a `ManifestError` unless the file's extension is one of `FORMATS`."""
    if path.suffix not in FORMATS:
        raise ManifestError(f"{path}: a manifest ends in {', '.join(FORMATS)}")


def json_lines(path: StrPath) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines; blank lines are skipped.

    Raises:
        OSError: if the file cannot be read.
        ValueError: naming the line, if it is not a JSON object.
    """
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json_file.parse(line)
            except ValueError as error:  # also raised for numbers with thousands of digits
                raise ValueError(f"line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not an object of columns")
            yield row


def read_table(path: Path) -> pa.Table:
    """The columns of a manifest file, not yet checked; a `ManifestError` names a file that cannot be read."""
    check_extension(path)
    try:
        refuse_irregular(path)
        if path.suffix == ".csv":
            return read_csv(path)
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
            table.validate(full=True)  # also checks that text is UTF-8, which reading does not
            return table
        rows = list(json_lines(path))
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: no such file") from error
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        raise ManifestError(f"{path}: not readable as {path.suffix[1:]}: {error}") from error

    if not rows:
        return SCHEMA.empty_table()
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        columns[name] = array_of(values, name, str(path))
    return pa.table(columns)


def write_table(table: pa.Table, path: Path) -> None:
    """Write the table in the format of the file's extension, atomically; errors as in `Manifest.write`."""
    if path.suffix != ".parquet":  # text formats leave empty columns out
        for column in table.column_names:
            kind = table[column].type
            if table[column].null_count == len(table) and column != "identity":
                table = table.drop_columns(column)
            elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                raise ManifestError(f"{path}: {path.suffix} holds no bytes (column {column!r}); write .parquet")
            elif path.suffix == ".csv" and pa.types.is_nested(kind):
                raise ManifestError(f"{path}: .csv holds no lists or objects (column {column!r}); write .parquet")

    with replacing(path, parents=True) as temporary:
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table.replace_schema_metadata(SCHEMA.metadata), temporary)
        elif path.suffix == ".csv":
            pyarrow.csv.write_csv(table, temporary)
        else:
            _write_lines(table, temporary, str(path))


def read_csv(path: Path) -> pa.Table:
    """The columns of a CSV file as text; empty fields are null."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])

    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(use_threads=False),  # one thread: errors name their row
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={n: pa.string() for n in names},
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            null_values=[""],
        ),
    )


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
