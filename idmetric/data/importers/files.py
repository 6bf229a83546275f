"""Readers of table files: Parquet, Arrow, CSV and JSON lines, row by row."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.io import json_file
from idmetric.io.hints import install

_BATCH = 16  # rows read at once: rows may hold several images of megabytes


class SourceError(ValueError):
    """A dataset that cannot be imported; the message names file, row or column, and says what to do."""


@dataclass(frozen=True)
class Table:
    """A table of any format: its columns, a function that counts its rows, and one that reads some of their columns."""

    columns: tuple[str, ...]
    count: Callable[[], int]
    rows: Callable[[Sequence[str]], Iterator[dict[str, Any]]]


def open_table(path: Path) -> Table:
    """The table in a file, or in a folder that `save_to_disk` wrote.

    Raises:
        SourceError: if it cannot be read; so does reading its rows.
    """
    with _readable(path):
        return (_arrow if path.is_dir() else READERS[path.suffix])(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of readers become a `SourceError` that names the file."""
    try:
        yield
    except SourceError:
        raise
    except (OSError, ValueError, IndexError, csv.Error) as error:  # pyarrow's errors are among them
        raise SourceError(f"{path}: not readable: {error}; fetch it again") from error


def _parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    # a small buffer instead of reading ahead: else all row groups come into memory with their images
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
    names = _class_names(file.schema_arrow)

    def rows(columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        with _readable(path):
            for batch in file.iter_batches(_BATCH, columns=list(columns)):
                yield from (_named(row, names) for row in batch.to_pylist())

    return Table(tuple(file.schema_arrow.names), lambda: int(file.metadata.num_rows), rows)


def _arrow(path: Path) -> Table:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{path}: Arrow files need datasets: {install('data')}") from error

    whole = datasets.load_from_disk(str(path)) if path.is_dir() else datasets.Dataset.from_file(str(path))
    names = _class_names(whole.features.arrow_schema)

    def rows(columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        if not columns:
            yield from ({} for _ in range(len(whole)))
            return
        for table in whole.select_columns(list(columns)).with_format("arrow").iter(_BATCH):
            yield from (_named(row, names) for row in table.to_pylist())

    return Table(tuple(whole.column_names), lambda: len(whole), rows)


def _csv(path: Path) -> Table:
    def rows(_: Sequence[str]) -> Iterator[dict[str, Any]]:
        with _readable(path), path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for number, row in enumerate(reader, 1):
                if None in row or None in row.values():  # more fields than the header has, or fewer
                    raise SourceError(f"{path}: row {number} has another number of fields than the header")
                yield {name: value or None for name, value in row.items()}

    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file), [])
    return Table(tuple(header), lambda: sum(1 for _ in rows(())), rows)


def _lines(path: Path) -> Table:
    def rows(_: Sequence[str]) -> Iterator[dict[str, Any]]:
        with _readable(path), path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json_file.parse(line)
                except ValueError as error:
                    raise SourceError(f"{path}: line {number} is not JSON: {error}") from error
                if not isinstance(row, dict):
                    raise SourceError(f"{path}: line {number} is not an object of columns")
                yield row

    columns = tuple(dict.fromkeys(name for row in rows(()) for name in row))
    return Table(columns, lambda: sum(1 for _ in rows(())), rows)


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Column -> names of its classes, where the Hub stores class labels as numbers."""
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features") or {}
    return {name: f["names"] for name, f in features.items() if isinstance(f, dict) and f.get("_type") == "ClassLabel"}


def _named(row: dict[str, Any], names: dict[str, list[str]]) -> dict[str, Any]:
    for column in names.keys() & row.keys():
        number = row[column]
        row[column] = None if number is None or number < 0 else names[column][number]
    return row


READERS = {".parquet": _parquet, ".arrow": _arrow, ".csv": _csv, ".jsonl": _lines}
ENDINGS = tuple(READERS)
