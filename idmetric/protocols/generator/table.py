"""Reads tables of generated images: a row for each, with the columns path, method, subject, prompt, seed, and others.

The column role marks rows of references and training images, held_out references that generators have not seen, text
holds the prompt in words, and mask the subject's mask. Paths are relative to the table's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from idmetric.data.importers.files import ENDINGS, open_table
from idmetric.data.importers.source import SourceError
from idmetric.protocols.generator.picture import GENERATED, NO, ONLY, REFERENCE, TRAINING, YES, OutputsError, Picture


def read_table(path: Path) -> list[Picture]:
    """The pictures of a .csv, .parquet or .jsonl file, with their columns as fields.

    Raises:
        OutputsError, SourceError: for a table that cannot be used, naming row and column.
    """
    if path.suffix not in ENDINGS:
        raise OutputsError(f"{path}: a table ends in {', '.join(ENDINGS)}")
    table = open_table(path)
    if "path" not in table.columns:
        raise SourceError(f"{path}: no column 'path'; there are {', '.join(table.columns)}")
    return list(_of_rows(path, table.columns, table.rows(table.columns)))


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
