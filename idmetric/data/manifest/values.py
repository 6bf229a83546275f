"""Conversion of a manifest's values from Python to Arrow and JSON, with errors that name row and column."""

from __future__ import annotations

import datetime
import decimal
import json
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

SHOWN = 10  # most problems in an error message


class ManifestError(ValueError):
    """A manifest that cannot be used; the message names file, row and column, and says how to fix it."""


def refuse_rows(problems: list[tuple[int, str]], column: str, name: str) -> None:
    """Raise a `ManifestError` with these problems (row from 1, message), if there are any."""
    if problems:
        lines = [f"row {number}, column {column!r}: {says}" for number, says in problems]
        raise ManifestError(f"{name}: " + "; ".join(first_few(lines)))


def first_few(lines: Sequence[str], shown: int = SHOWN) -> list[str]:
    """The first lines and, if there are more, a line with their number."""
    more = len(lines) - shown
    return [*lines[:shown], f"and {more} more"] if more > 0 else list(lines)


def short(value: Any) -> str:
    """A value as a short text for messages."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_array(values: list[Any], kind: pa.DataType, column: str, name: str, first: int = 0) -> pa.Array:
    """Values converted to the column's type one by one; errors name rows, counted from `first` + 1."""
    out: list[Any] = []
    problems = []
    for number, value in enumerate(values, first + 1):
        try:
            out.append(None if value is None else _convert(value, kind))
        except (ValueError, TypeError, OverflowError):
            expected = {pa.string(): "text", pa.int64(): "a whole number", pa.float64(): "a number"}
            problems.append((number, f"{short(value)} is not {expected.get(kind, 'bytes')}"))
            out.append(None)
    refuse_rows(problems, column, name)
    _check_utf8(out, column, name, first)
    return pa.array(out, kind)


def _convert(value: Any, kind: pa.DataType) -> Any:
    if kind == pa.string():
        if isinstance(value, str | int | os.PathLike) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, float) and value.is_integer():  # whole numbers of pandas
            return str(int(value))
    elif kind == pa.int64():
        number = int(value) if isinstance(value, str) else value
        if isinstance(number, int | np.integer) and not isinstance(number, bool) and abs(int(number)) < 2**63:
            return int(number)
        if isinstance(number, float) and number.is_integer():  # whole numbers of JSON and pandas
            return int(number)
    elif kind == pa.float64():
        if not isinstance(value, bool):
            return float(value)
    elif isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)

    raise TypeError


def free_array(values: list[Any], column: str, name: str) -> pa.Array:
    """Values of a free column, which must be of one type."""
    _check_utf8(values, column, name)
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ManifestError(
            f"{name}: column {column!r} mixes types of values, or has a type that Arrow lacks: {error}"
        ) from error


def _check_utf8(values: Sequence[Any], column: str, name: str, first: int = 0) -> None:
    """Raise a `ManifestError` for lone surrogates, as in file names that are not UTF-8: no format can store them."""
    problems = [
        (number, f"{short(value)} is not UTF-8 text; rename the file or value")
        for number, value in enumerate(values, first + 1)
        if isinstance(value, str) and not _is_utf8(value)
    ]
    refuse_rows(problems, column, name)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def casts(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast equals `_convert`, which it does not from text to bytes, or from 1.0 and true to text."""
    if wanted == pa.large_binary():
        return is_binary(kind)
    return wanted != pa.string() or not (pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether the type is that of bytes, or of a column of empty values."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind))


def objects(column: pa.ChunkedArray) -> list[Any]:
    """Structs and maps as dicts, without empty fields of structs, which have every field in every row."""
    if pa.types.is_struct(column.type):
        return [None if v is None else {k: x for k, x in v.items() if x is not None} for v in column.to_pylist()]
    if pa.types.is_map(column.type):
        return [None if v is None else dict(v) for v in column.to_pylist()]
    return cast("list[Any]", column.to_pylist())


def dump_all(values: list[Any], name: str, first: int = 0) -> list[str | None]:
    """Parameters as JSON text; values that are text must be JSON already. `first` counts the rows before them."""
    out: list[str | None] = []
    problems = []
    for number, value in enumerate(values, first + 1):
        try:
            out.append(value if isinstance(value, str) else _dump(value))
        except (TypeError, ValueError, RecursionError) as error:
            problems.append((number, f"not JSON serializable: {json_reason(error)}"))
            out.append(None)
    refuse_rows(problems, "parameters", name)
    return out


def _dump(value: Any) -> str | None:
    if value is None:
        return None
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=plain, allow_nan=False)


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


def json_reason(error: Exception) -> str:
    """The reason of an error of `json`."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)  # JSON has no NaN or Infinity, though Python writes them


def is_object(text: str | None) -> bool:
    """Whether a text is a JSON object, or None."""
    if text is None:
        return True
    try:
        return isinstance(_STRICT.decode(text), dict)
    except (ValueError, RecursionError):
        return False
