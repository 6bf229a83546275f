"""Rules of a manifest's rows: column names, types, values, and ids that are unique."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from idmetric.data.manifest.schema import COLUMNS, PATHS, ROLES, SCHEMA, SLOTS, TEXT_SLOTS, TYPES, Row
from idmetric.data.manifest.values import ManifestError, array_of, is_binary, objects, refuse_rows, short

_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_NUMBERS = {"oracle": (0.0, 1.0), "label": (-np.inf, np.inf), "seed": (0, np.inf)}


def table_of(rows: Sequence[Row], name: str, first: int) -> pa.Table:
    """Rows as columns of the schema; `first` counts the rows before them, for messages."""
    columns = {c: array_of([getattr(row, c) for row in rows], c, name, first) for c in COLUMNS}
    return pa.table(columns, schema=SCHEMA)


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
    return pa.table(columns | {c: table[c] for c in table.column_names if c.startswith("x_")})


def _typed_column(table: pa.Table, column: str, name: str) -> Any:
    kind = TYPES[column]
    if column not in table.column_names:
        return pa.nulls(len(table), kind)
    given = table[column]
    if given.type == kind:
        return given
    if column == "parameters" and pa.types.is_nested(given.type):
        return array_of(objects(given), column, name)

    # Arrow would cast 1.0 and true to text, and text to bytes
    number = pa.types.is_floating(given.type) or pa.types.is_boolean(given.type)
    if is_binary(given.type) if kind == pa.large_binary() else kind != pa.string() or not number:
        try:
            return given.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    return array_of(given.to_pylist(), column, name)


def checked(table: pa.Table, name: str) -> pa.Table:
    """The table with empty ids and roles filled in.

    Raises:
        ManifestError: naming rows and column of values that break the rules of `Row`.
    """
    table = table.set_column(COLUMNS.index("role"), "role", pc.fill_null(table["role"], "real"))
    refuse_rows(list(_faults(table)), name)
    return _with_ids(table, name)


def _faults(table: pa.Table) -> Iterator[tuple[int, str, str]]:
    """Row, column and reason of every value that breaks the rules."""
    values: dict[str, list[Any]] = {c: table[c].to_pylist() for c in COLUMNS if not is_binary(TYPES[c])}
    given = {c: np.asarray(pc.is_valid(table[c])) for c in COLUMNS}

    for row, value in enumerate(values["identity"]):
        if value is not None and not value.strip():
            yield row, "identity", "is blank"

    text_alone = np.isin(np.array(values["slot"], dtype=object), TEXT_SLOTS) & given["text"]
    for row in np.flatnonzero(given["path"] & given["image_bytes"]).tolist():
        yield row, "path", "path and image_bytes are both given"
    for row in np.flatnonzero(~(given["path"] | given["image_bytes"] | text_alone)).tolist():
        yield row, "path", "no image: neither path nor image_bytes"
    for column in ("mask", "part_mask"):
        for row in np.flatnonzero(given[column] & given[f"{column}_bytes"]).tolist():
            yield row, column, f"{column} and {column}_bytes are both given"

    for column in PATHS:
        for row, value in enumerate(values[column]):
            if value is not None and (not value.strip() or "\0" in value or _ADDRESS.match(value)):
                yield row, column, f"{short(value)} is not a file's path"
    for column, allowed in (("role", ROLES), ("slot", SLOTS)):
        for row, value in enumerate(values[column]):
            if value is not None and value not in allowed:
                yield row, column, f"{short(value)} is not one of {', '.join(allowed)}"
    for row in np.flatnonzero(given["group"] != given["slot"]).tolist():
        yield row, "slot", "group and slot go together; one of them is empty"

    for column, (low, high) in _NUMBERS.items():
        span = "a finite number" if low == -np.inf else f"within {low:g}..{high:g}"
        for row, value in enumerate(values[column]):
            if value is not None and not (low <= value <= high and np.isfinite(value)):
                yield row, column, f"{value} is not {span}"
    for row, value in enumerate(values["parameters"]):
        if value is not None and not _is_object(value):
            yield row, "parameters", f"{short(value)} is not a JSON object"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)  # JSON has no NaN or Infinity, though Python writes them


def _is_object(text: str) -> bool:
    try:
        return isinstance(_STRICT.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _with_ids(table: pa.Table, name: str) -> pa.Table:
    """The table with an id for every row, made of group, slot and path (or the hash of the bytes) where it is empty."""
    ids: list[Any] = table["id"].to_pylist()
    if not all(ids):
        path, group, slot, text = (table[column].to_pylist() for column in ("path", "group", "slot", "text"))
        for i in range(len(table)):
            if not ids[i]:
                content = table["image_bytes"][i].as_py()
                image = path[i] or hashlib.sha256(text[i].encode() if content is None else content).hexdigest()[:16]
                ids[i] = image if group[i] is None else f"{group[i]}/{slot[i]}/{image}"
        table = table.set_column(COLUMNS.index("id"), "id", pa.array(ids, pa.string()))

    first: dict[str, int] = {}
    repeated = [(i, v) for i, v in enumerate(ids) if first.setdefault(v, i) != i]
    refuse_rows([(i, "id", f"{short(v)} is also the id of row {first[v] + 1}") for i, v in repeated], name)
    return table
