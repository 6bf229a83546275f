"""Rules of a manifest's rows: column names, types, values, and ids that are unique."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from idmetric.data.manifest.schema import COLUMNS, PATHS, ROLES, SCHEMA, SLOTS, TEXT_SLOTS, TYPES, Row
from idmetric.data.manifest.values import (
    ManifestError,
    as_array,
    casts,
    dump_all,
    free_array,
    is_binary,
    is_object,
    objects,
    refuse_rows,
    short,
)

_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def table_of(rows: Sequence[Row], name: str, first: int) -> pa.Table:
    """Rows as columns of the schema; `first` counts the rows before them, for messages."""
    columns = {c: [getattr(row, c) for row in rows] for c in COLUMNS}
    columns["parameters"] = dump_all(columns["parameters"], name, first)
    try:
        if any(isinstance(v, str) for c in COLUMNS if is_binary(TYPES[c]) for v in columns[c]):
            raise TypeError  # pyarrow would take text for bytes
        return pa.table({c: pa.array(columns[c], TYPES[c]) for c in COLUMNS}, schema=SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, UnicodeEncodeError):
        return pa.table({c: as_array(columns[c], TYPES[c], c, name, first) for c in COLUMNS}, schema=SCHEMA)


def array_of(values: list[Any], column: str, name: str) -> pa.Array:
    """The values of a column of the schema or a free column, in its type."""
    if column == "parameters":
        values = dump_all(values, name)
    return as_array(values, TYPES[column], column, name) if column in COLUMNS else free_array(values, column, name)


def check_names(names: Sequence[str], name: str) -> None:
    """Raise a `ManifestError` for an unknown or repeated column, or if `identity` is missing."""
    unknown = [n for n in names if n not in COLUMNS and not n.startswith("x_")]
    if unknown:
        raise ManifestError(
            f"{name}: unknown column {unknown[0]!r}; a manifest has {', '.join(COLUMNS)}, and free columns x_..."
        )
    if "identity" not in names:
        raise ManifestError(f"{name}: column 'identity' is missing; it says which images show the same subject")
    repeated = {n for n in names if list(names).count(n) > 1}
    if repeated:
        raise ManifestError(f"{name}: column {min(repeated)!r} occurs twice")


def typed(table: pa.Table, name: str) -> pa.Table:
    """The table with all columns of the schema, in its order and types, and its free columns after them."""
    check_names(table.column_names, name)
    columns = {column: _typed_column(table, column, name) for column in COLUMNS}
    for column in COLUMNS:
        if TYPES[column] == pa.string():  # an empty text is an empty value, in every format
            empty = pc.equal(columns[column], "")
            columns[column] = pc.if_else(pc.fill_null(empty, False), None, columns[column])
    columns |= {c: table[c] for c in table.column_names if c.startswith("x_")}
    return pa.table(columns)


def _typed_column(table: pa.Table, column: str, name: str) -> Any:
    kind = TYPES[column]
    if column not in table.column_names:
        return pa.nulls(len(table), kind)

    given = table[column]
    if given.type == kind:
        return given
    if column == "parameters" and pa.types.is_nested(given.type):
        return pa.array(dump_all(objects(given), name), pa.string())

    try:
        if casts(given.type, kind):
            return given.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass

    return as_array(given.to_pylist(), kind, column, name)


def checked(table: pa.Table, name: str) -> pa.Table:
    """The table with empty ids and roles filled in.

    Raises:
        ManifestError: naming rows and column of values that break the rules of `Row`.
    """
    table = table.set_column(COLUMNS.index("role"), "role", pc.fill_null(table["role"], "real"))
    _check_identities(table, name)
    _check_images(table, name)
    _check_paths(table, name)
    _check_choices(table, name)
    _check_numbers(table, name)
    _check_parameters(table, name)
    return _with_ids(table, name)


def _values(table: pa.Table, column: str) -> list[Any]:
    return cast("list[Any]", table[column].to_pylist())


def _given(table: pa.Table, column: str) -> NDArray[np.bool_]:
    return np.asarray(pc.is_valid(table[column]))


def _refuse(wrong: Iterable[bool], column: str, name: str, message: Callable[[int], str]) -> None:
    """Raise a `ManifestError` with a message for every row that is wrong, if there are any."""
    refuse_rows([(row + 1, message(row)) for row, is_wrong in enumerate(wrong) if is_wrong], column, name)


def _check_identities(table: pa.Table, name: str) -> None:
    blank = (v is not None and not v.strip() for v in _values(table, "identity"))
    _refuse(blank, "identity", name, lambda row: "is blank")


def _check_images(table: pa.Table, name: str) -> None:
    path = _given(table, "path")
    alone = np.array([slot in TEXT_SLOTS for slot in _values(table, "slot")], dtype=bool) & _given(table, "text")
    wrong = (path == _given(table, "image_bytes")) & (path | ~alone)
    _refuse(
        wrong, "path", name,
        lambda row: "path and image_bytes are both given" if path[row] else "no image: neither path nor image_bytes",
    )  # fmt: skip
    for column in ("mask", "part_mask"):
        message = f"{column} and {column}_bytes are both given"
        both = _given(table, column) & _given(table, f"{column}_bytes")
        _refuse(both, column, name, lambda row, message=message: message)  # type: ignore[misc]


def _check_paths(table: pa.Table, name: str) -> None:
    for column in PATHS:
        values = _values(table, column)
        wrong = [v is not None and (not v.strip() or "\0" in v or bool(_ADDRESS.match(v))) for v in values]
        _refuse(wrong, column, name, lambda row, v=values: f"{short(v[row])} is not a file's path")  # type: ignore[misc]


def _check_choices(table: pa.Table, name: str) -> None:
    for column, allowed in (("role", ROLES), ("slot", SLOTS)):
        values, advice = _values(table, column), f"is not one of {', '.join(allowed)}"
        wrong = [v is not None and v not in allowed for v in values]
        _refuse(wrong, column, name, lambda row, v=values, a=advice: f"{short(v[row])} {a}")  # type: ignore[misc]
    lone = _given(table, "group") != _given(table, "slot")
    _refuse(lone, "slot", name, lambda row: "group and slot go together; one of them is empty")


def _check_numbers(table: pa.Table, name: str) -> None:
    for column, low, high in (("oracle", 0.0, 1.0), ("label", -np.inf, np.inf), ("seed", 0, np.inf)):
        values = _values(table, column)
        wrong = [v is not None and not (low <= v <= high and np.isfinite(v)) for v in values]
        span = "a finite number" if low == -np.inf else f"within {low:g}..{high:g}"
        _refuse(wrong, column, name, lambda row, v=values, s=span: f"{v[row]} is not {s}")  # type: ignore[misc]


def _check_parameters(table: pa.Table, name: str) -> None:
    values = _values(table, "parameters")
    wrong = (not is_object(v) for v in values)
    _refuse(wrong, "parameters", name, lambda row: f"{short(values[row])} is not a JSON object")


def _with_ids(table: pa.Table, name: str) -> pa.Table:
    """The table with an id for every row, made of group, slot and path (or the hash of the bytes) where it is empty."""
    ids = _values(table, "id")
    if not all(ids):
        path, group, slot, text = (_values(table, column) for column in ("path", "group", "slot", "text"))
        for i in range(len(table)):
            if not ids[i]:
                content = table["image_bytes"][i].as_py()
                image = path[i] or hashlib.sha256(text[i].encode() if content is None else content).hexdigest()[:16]
                ids[i] = image if group[i] is None else f"{group[i]}/{slot[i]}/{image}"
        table = table.set_column(COLUMNS.index("id"), "id", pa.array(ids, pa.string()))

    first: dict[str, int] = {}
    repeated = [first.setdefault(v, i) != i for i, v in enumerate(ids)]
    _refuse(repeated, "id", name, lambda row: f"{short(ids[row])} is also the id of row {first[ids[row]] + 1}")
    return table
