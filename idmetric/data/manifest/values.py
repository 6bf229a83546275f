"""Values of a manifest's columns: from Python to Arrow, parameters as JSON, and errors that name row and column."""

from __future__ import annotations

import datetime
import decimal
import json
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

SHOWN = 10  # problems that an error lists


class ManifestError(ValueError):
    """A manifest that cannot be used; the message names file, row and column, and says what to do."""


def refuse_rows(problems: list[tuple[int, str]], column: str, name: str) -> None:
    """Raise a `ManifestError` with these problems (row from 1, what it says), if there are any."""
    if problems:
        lines = [f"row {number}, column {column!r}: {says}" for number, says in problems[:SHOWN]]
        if len(problems) > SHOWN:
            lines.append(f"and {len(problems) - SHOWN} more")
        raise ManifestError(f"{name}: " + "; ".join(lines))


def short(value: Any) -> str:
    """A value for messages."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_array(values: list[Any], kind: pa.DataType, column: str, name: str, first: int = 0) -> pa.Array:
    """Values as the column's type, one by one, so that a wrong one is named; `first` counts the rows before them."""
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
        if isinstance(value, float) and value.is_integer():  # pandas writes whole numbers so
            return str(int(value))
    elif kind == pa.int64():
        number = int(value) if isinstance(value, str) else value
        if isinstance(number, int | np.integer) and not isinstance(number, bool) and abs(number) < 2**63:
            return int(number)
        if isinstance(number, float) and number.is_integer():  # JSON and pandas write whole numbers so
            return int(number)
    elif kind == pa.float64():
        if not isinstance(value, bool):
            return float(value)
    elif isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError


def free_array(values: list[Any], column: str, name: str) -> pa.Array:
    """Values of a free column, of whatever one kind they are."""
    _check_utf8(values, column, name)
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ManifestError(
            f"{name}: column {column!r} mixes kinds of values, or holds none of Arrow's: {error}"
        ) from error


def _check_utf8(values: Sequence[Any], column: str, name: str, first: int = 0) -> None:
    """Refuse half characters, as names of files have that are not UTF-8: no format can hold them."""
    problems = [
        (number, f"{short(value)} is not UTF-8 text; rename what is called so")
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
    """Whether Arrow's cast does what `_convert` does: not for text as bytes, nor for 1.0 and true as text."""
    if wanted == pa.large_binary():
        return is_binary(kind)
    return wanted != pa.string() or not (pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether values are bytes, or all empty."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind))


def objects(column: pa.ChunkedArray) -> list[Any]:
    """Structs and maps as dicts; a struct has every field in every row, so its empty ones are left out."""
    if pa.types.is_struct(column.type):
        return [None if v is None else {k: x for k, x in v.items() if x is not None} for v in column.to_pylist()]
    if pa.types.is_map(column.type):
        return [None if v is None else dict(v) for v in column.to_pylist()]
    return cast("list[Any]", column.to_pylist())


def dump_all(values: list[Any], name: str, first: int = 0) -> list[str | None]:
    """Parameters as JSON text; text is taken for JSON already. `first` counts the rows before them."""
    out: list[str | None] = []
    problems = []
    for number, value in enumerate(values, first + 1):
        try:
            out.append(value if isinstance(value, str) else _dump(value))
        except (TypeError, ValueError, RecursionError) as error:
            problems.append((number, f"no JSON: {json_reason(error)}"))
            out.append(None)
    refuse_rows(problems, "parameters", name)
    return out


def _dump(value: Any) -> str | None:
    if value is None:
        return None
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=plain, allow_nan=False)


def plain(value: Any) -> Any:
    """What JSON knows, of NumPy values, paths and dates."""
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
    """What an error of `json` says."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_STRICT = json.JSONDecoder(parse_constant=_no_number)  # NaN and Infinity are no JSON, though Python writes them


def is_object(text: str | None) -> bool:
    """Whether a text is a JSON object; None is, being an empty value."""
    if text is None:
        return True
    try:
        return isinstance(_STRICT.decode(text), dict)
    except (ValueError, RecursionError):
        return False
