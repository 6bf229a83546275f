"""Manifest files: Parquet, CSV and JSON lines, read into Arrow tables and written from them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from idmetric.data.manifest.schema import SCHEMA, ManifestError, array_of, check_names, is_binary, plain
from idmetric.metric.files import json_file
from idmetric.metric.files.output import refuse_irregular, replacing

FORMATS = (".parquet", ".csv", ".jsonl")
CHUNK = 4096  # rows held as objects at once


def check_extension(path: Path) -> None:
    """Raise a `ManifestError` unless the file's extension is one of `FORMATS`."""
    if path.suffix not in FORMATS:
        raise ManifestError(f"{path}: a manifest ends in {', '.join(FORMATS)}")


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
        rows = list(json_file.lines(path))
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: no such file") from error
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        raise ManifestError(f"{path}: not readable as {path.suffix[1:]}: {error}") from error

    names = list(dict.fromkeys(name for row in rows for name in row)) or ["identity"]
    check_names(names, str(path))
    return pa.table({name: array_of([row.get(name) for row in rows], name, str(path)) for name in names})


def write_table(table: pa.Table, path: Path) -> None:
    """Write the table in the format of the file's extension, atomically; errors as in `Manifest.write`."""
    if path.suffix != ".parquet":  # text formats leave empty columns out
        table = table.select([n for n in table.column_names if table[n].null_count < len(table) or n == "identity"])
        for column, kind in zip(table.column_names, table.schema.types, strict=True):
            bytes_in_it = is_binary(kind) and not pa.types.is_null(kind)
            if bytes_in_it or (path.suffix == ".csv" and pa.types.is_nested(kind)):
                what = "bytes" if bytes_in_it else "lists or objects"
                raise ManifestError(f"{path}: {path.suffix} holds no {what} (column {column!r}); write .parquet")

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
    rows = (values for batch in table.to_batches(max_chunksize=CHUNK) for values in batch.to_pylist())
    with open(path, "w", encoding="utf-8") as file:
        for number, values in enumerate(rows, 1):
            if values.get("parameters") is not None:
                values["parameters"] = json.loads(values["parameters"])
            kept = {k: v for k, v in values.items() if k == "identity" or not (v is None or v != v)}  # v != v: NaN
            try:
                file.write(json.dumps(kept, ensure_ascii=False, allow_nan=False, default=plain) + "\n")
            except (TypeError, ValueError) as error:
                raise ManifestError(f"{name}: row {number}: a free column cannot be JSON ({error})") from error
