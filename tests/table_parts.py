"""Manifests of tests, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pandas import DataFrame

from idmetric.data.manifest import checked, take


def a_row(identity: str | None = None, path: str | None = None, **cells: Any) -> dict[str, Any]:
    """A row of a manifest, without its missing values."""
    return {"identity": identity, "path": path, **cells}


def a_table(rows: Iterable[dict[str, Any]], root: Path | str = ".") -> DataFrame:
    """The manifest of these rows."""
    return checked(rows, root)


def with_row(table: DataFrame, row: dict[str, Any]) -> DataFrame:
    """The manifest with one more row at its end."""
    return a_table([*table.to_dict("records"), row])


def where(table: DataFrame, **values: Any) -> DataFrame:
    """The rows with these values in their columns, or one of several in a tuple."""
    for column, wanted in values.items():
        options = wanted if isinstance(wanted, tuple) else (wanted,)
        table = take(table, table[column].isin(options))
    return table
