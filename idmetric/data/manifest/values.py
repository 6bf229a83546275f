"""Conversion of a manifest's values from Python to Arrow and JSON, with errors that name row and column."""

from __future__ import annotations

import datetime
import decimal
import json
import os
from typing import Any, cast

import numpy as np
import pyarrow as pa

from idmetric.data.manifest.schema import TYPES
from idmetric.io.tables import first_few

_EXPECTED = {pa.string(): "text", pa.int64(): "a whole number", pa.float64(): "a number"}


class ManifestError(ValueError):
    """A manifest that cannot be used; the message names file, row and column, and says how to fix it."""


def refuse_rows(problems: list[tuple[int, str, str]], name: str) -> None:
    """Raise a `ManifestError` with these problems (row from 0, column, message), if there are any."""
    if problems:
        lines = [f"row {row + 1}, column {column!r}: {says}" for row, column, says in problems]
        raise ManifestError(f"{name}: " + "; ".join(first_few(lines)))


def short(value: Any) -> str:
    """A value as a short text for messages."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def array_of(values: list[Any], column: str, name: str, first: int = 0) -> pa.Array:
    """The values of a column of the schema in its type, or those of a free column, which must be of one type.

    Args:
        first: number of rows before them, for messages.

    Raises:
        ManifestError: naming the rows whose values cannot be converted.
    """
    kind = TYPES.get(column)
    if kind is None:
        try:
            return pa.array(values)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise ManifestError(
                f"{name}: column {column!r} mixes types of values, or has a type that Arrow lacks: {error}"
            ) from error

    out: list[Any] = []
    problems = []
    for row, value in enumerate(values, first):
        try:
            out.append(None if value is None else dump(value) if column == "parameters" else _convert(value, kind))
        except UnicodeEncodeError:  # file names that are not UTF-8: no format can store them
            problems.append((row, column, f"{short(value)} is not UTF-8 text; rename the file or value"))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            says = f"not JSON serializable: {error}"
            if column != "parameters":
                says = f"{short(value)} is not {_EXPECTED.get(kind, 'bytes')}"
            problems.append((row, column, says))
    refuse_rows(problems, name)
    return pa.array(out, kind)


def _convert(value: Any, kind: pa.DataType) -> Any:
    if kind == pa.string():
        if isinstance(value, float) and value.is_integer():  # whole numbers of pandas
            value = int(value)
        if isinstance(value, str | int | os.PathLike) and not isinstance(value, bool):
            text = str(value)
            text.encode()
            return text
    elif kind == pa.int64():
        number = int(value) if isinstance(value, str) else value
        if isinstance(number, float) and number.is_integer():  # whole numbers of JSON and pandas
            number = int(number)
        if isinstance(number, int | np.integer) and not isinstance(number, bool) and abs(int(number)) < 2**63:
            return int(number)
    elif kind == pa.float64():
        if not isinstance(value, bool):
            return float(value)
    elif isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)

    raise TypeError


def is_binary(kind: pa.DataType) -> bool:
    """Whether the type is that of bytes, or of a column of empty values."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind))


def objects(column: pa.ChunkedArray) -> list[Any]:
    """Structs and maps as dicts, without empty fields of structs, which have every field in every row."""
    values = cast("list[Any]", column.to_pylist())
    if pa.types.is_struct(column.type):
        return [None if v is None else {k: x for k, x in v.items() if x is not None} for v in values]
    return [None if v is None else dict(v) for v in values] if pa.types.is_map(column.type) else values


def dump(value: Any) -> str:
    """Parameters as JSON text; text must be JSON already."""
    if isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=plain, allow_nan=False)
    text.encode()
    return text


def plain(value: Any) -> Any:
    """The JSON value for a NumPy value, path, date or number, for `json.dumps(default=...)`."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")
