"""Columns of a manifest: what a row holds, the Arrow types that store it, and the rules of its values."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from idmetric.metric.files.tables import first_few
from idmetric.metric.files.typed import shown
from idmetric.metric.images.paths import is_address

ROLES = ("real", "context-edit", "identity-edit", "distractor", "part-edit")
TEXT_SLOTS = ("query", "positive", "negative", "candidate")  # of rows that may be a text without an image
SLOTS = ("anchor", "positive", "negative", "query", "candidate", "left", "right")


@dataclass(frozen=True)
class Row:
    """One image of a manifest, or one text of a multimodal search. Empty values are None.

    Attributes:
        identity: name of the identity, equal exactly for images of the same subject in all datasets of the manifest;
            empty if it is unknown or the image shows no subject (a background).
        path, image_bytes: the image, either as a file, relative to the manifest's folder, or as its encoded bytes.
            Rows with a text in one of the slots `TEXT_SLOTS` may lack it: a caption as query, an answer as target.
        id: unique name of the row; by default made of group, slot and path (or a hash of the bytes).
        dataset: origin of the image.
        split: such as train, val, test.
        domain: such as animals, products.
        category: such as dog, mug.
        mask, mask_bytes: mask of the object, see `idmetric.metric.images.masks`.
        part_mask, part_mask_bytes: mask of its edited part.
        role: one of `ROLES`: real (a photo or a rendering), context-edit (the parent's identity in another context),
            identity-edit and distractor (another identity in the parent's context), part-edit (a part is changed).
        background: id of the background.
        engine: generator of the image.
        oracle: 1 - |part| / |object|, at most 1: the share of the object that an edit kept (NearID, section 3.4); below
            0 if the part's mask is larger than the object's.
        text: instruction, prompt or caption.
        label: a human or model judgment of this row within its group; the dataset defines its meaning.
        group, slot: rows with one group belong together (a pair, a triplet, a query with candidates); the slot is the
            row's place in the group, one of `SLOTS`.
        parent: id of the row that this one was made from.
        seed, parameters: everything else that made the image.
    """

    identity: str | None
    path: str | None = None
    image_bytes: bytes | None = None
    id: str = ""
    dataset: str | None = None
    split: str | None = None
    domain: str | None = None
    category: str | None = None
    mask: str | None = None
    mask_bytes: bytes | None = None
    part_mask: str | None = None
    part_mask_bytes: bytes | None = None
    role: str = "real"
    background: str | None = None
    engine: str | None = None
    oracle: float | None = None
    text: str | None = None
    label: float | None = None
    group: str | None = None
    slot: str | None = None
    parent: str | None = None
    seed: int | None = None
    parameters: Mapping[str, Any] | None = None


TYPES = {
    **{f.name: pa.string() for f in fields(Row)},
    "image_bytes": pa.large_binary(), "mask_bytes": pa.large_binary(), "part_mask_bytes": pa.large_binary(),
    "oracle": pa.float64(), "label": pa.float64(), "seed": pa.int64(),
}  # fmt: skip
SCHEMA = pa.schema(TYPES.items(), metadata={"idmetric.manifest": "1"})
COLUMNS = tuple(SCHEMA.names)
PATHS = {"path": "image_bytes", "mask": "mask_bytes", "part_mask": "part_mask_bytes"}  # column -> that of its bytes
_NUMBERS = {
    "oracle": (-np.inf, 1.0, "at most 1"), "label": (-np.inf, np.inf, "a finite number"),
    "seed": (0, np.inf, "0 or more"),
}  # fmt: skip
_EXPECTED = {pa.string(): "text", pa.int64(): "a whole number", pa.float64(): "a number", pa.large_binary(): "bytes"}


class ManifestError(ValueError):
    """A manifest that cannot be used; the message names file, row and column, and says how to fix it."""


# Values to Arrow


def array_of(values: Sequence[Any], column: str, name: str, first: int = 0) -> pa.Array:
    """The values of a column of the schema in its type, or those of a free column, which must be of one type.

    A `ManifestError` names the first row with a value that cannot be converted; `first` rows come before the values.
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
    for row, value in enumerate(values, first):
        try:
            text = json.dumps(value, **_JSON) if column == "parameters" and not isinstance(value, str | None) else value
            out.append(None if value is None else _convert(text, kind))
        except (ValueError, TypeError, OverflowError) as error:
            says = f"{shown(value)} is not {_EXPECTED[kind]}"
            if isinstance(error, UnicodeEncodeError):  # file names that are not UTF-8: no format can store them
                says = f"{shown(value)} is not UTF-8 text; rename the file or value"
            elif column == "parameters":
                says = f"not JSON serializable: {error}"
            raise ManifestError(f"{name}: row {row + 1}, column {column!r}: {says}") from error
    return pa.array(out, kind)


def _convert(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool):
        raise TypeError
    if kind == pa.float64():
        return float(value)
    if isinstance(value, float) and value.is_integer():  # whole numbers of JSON and pandas
        value = int(value)
    if kind == pa.string() and isinstance(value, str | int | os.PathLike):
        str(value).encode()
        return str(value)
    if kind == pa.int64() and isinstance(value, str | int | np.integer) and -(2**63) <= int(value) < 2**63:
        return int(value)
    if kind == pa.large_binary() and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError


def plain(value: Any) -> Any:
    """The JSON value for a NumPy value, path, date or number, for `json.dumps(default=...)`."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike | datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


_JSON: dict[str, Any] = {"ensure_ascii": False, "sort_keys": True, "allow_nan": False, "default": plain}


# Rules


def check_names(names: Sequence[str], name: str) -> None:
    """Raise a `ManifestError` for an unknown or repeated column, or if `identity` is missing."""
    if unknown := [n for n in names if n not in COLUMNS and not n.startswith("x_")]:
        raise ManifestError(
            f"{name}: unknown column {shown(unknown[0])}; a manifest has {', '.join(COLUMNS)}, and free columns x_..."
        )
    if "identity" not in names:
        raise ManifestError(f"{name}: column 'identity' is missing; it says which images show the same subject")
    if repeated := [n for k, n in enumerate(names) if n in names[:k]]:
        raise ManifestError(f"{name}: column {shown(repeated[0])} occurs twice")


def checked(table: pa.Table, name: str) -> pa.Table:
    """The table with all columns of the schema, in its order and types, then free ones; empty ids and roles filled in.

    A `ManifestError` names rows and column of values that break the rules of `Row`.
    """
    check_names(table.column_names, name)
    columns = {column: _typed(table, column, name) for column in COLUMNS}
    for column in COLUMNS:
        if TYPES[column] == pa.string():  # an empty text is an empty value, in every format
            empty = pc.equal(columns[column], "")
            columns[column] = pc.if_else(pc.fill_null(empty, False), None, columns[column])
    columns["role"] = pc.fill_null(columns["role"], "real")
    table = pa.table(columns | {c: table[c] for c in table.column_names if c.startswith("x_")})
    table = table.set_column(COLUMNS.index("id"), "id", pa.array(_ids(table), pa.string()))
    if problems := [f"row {row + 1}, column {column!r}: {says}" for row, column, says in _faults(table)]:
        raise ManifestError(f"{name}: " + "; ".join(first_few(problems)))
    return table


def _typed(table: pa.Table, column: str, name: str) -> Any:
    """The column in its type; values that Arrow cannot cast, or would cast otherwise, are converted one by one."""
    kind = TYPES[column]
    if column not in table.column_names:
        return pa.nulls(len(table), kind)
    given = table[column]
    if given.type == kind:
        return given
    # Arrow would cast 1.0 and true to text, and text to bytes
    number = pa.types.is_floating(given.type) or pa.types.is_boolean(given.type)
    fits = is_binary(given.type) if kind == pa.large_binary() else kind != pa.string() or not number
    if fits and not pa.types.is_nested(given.type):
        with suppress(pa.ArrowException):
            return given.cast(kind)
    return array_of(given.to_pylist(), column, name)


def is_binary(kind: pa.DataType) -> bool:
    """Whether the type is that of bytes, or of a column of empty values."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind))


def _faults(table: pa.Table) -> Iterator[tuple[int, str, str]]:
    """Row, column and reason of every value that breaks the rules."""
    given = {column: np.asarray(table[column].is_valid()) for column in COLUMNS}

    def values(column: str) -> Iterator[tuple[int, Any]]:
        return ((row, value) for row, value in enumerate(table[column].to_pylist()) if value is not None)

    yield from ((row, "identity", "is blank") for row, value in values("identity") if not value.strip())
    for column, held in PATHS.items():
        for row in np.flatnonzero(given[column] & given[held]).tolist():
            yield row, column, f"{column} and {held} are both given"
        for row, value in values(column):
            if not value.strip() or "\0" in value or is_address(value):
                yield row, column, f"{shown(value)} is not a file's path"
    text = given["text"] & np.asarray(pc.is_in(table["slot"], pa.array(TEXT_SLOTS)))
    for row in np.flatnonzero(~(text | given["path"] | given["image_bytes"])).tolist():
        yield row, "path", "no image: neither path nor image_bytes"
    for column, allowed in (("role", ROLES), ("slot", SLOTS)):
        for row, value in values(column):
            if value not in allowed:
                yield row, column, f"{shown(value)} is not one of {', '.join(allowed)}"
    for row in np.flatnonzero(given["group"] != given["slot"]).tolist():
        yield row, "slot", "group and slot go together; one of them is empty"
    first: dict[str, int] = {}
    for row, value in values("id"):
        if first.setdefault(value, row) != row:
            yield row, "id", f"{shown(value)} is also the id of row {first[value] + 1}"
    for column, (low, high, span) in _NUMBERS.items():
        for row, value in values(column):
            if not (low <= value <= high and np.isfinite(value)):
                yield row, column, f"{value} is not {span}"
    for row, value in values("parameters"):
        with suppress(ValueError, RecursionError):
            if isinstance(json.loads(value, parse_constant=int), dict):  # int refuses NaN and Infinity, as JSON does
                continue
        yield row, "parameters", f"{shown(value)} is not a JSON object"


def _ids(table: pa.Table) -> list[str]:
    """The id of every row, made of group, slot and path (or the hash of the bytes or text) where it is empty."""
    path, group, slot, text = (table[column].to_pylist() for column in ("path", "group", "slot", "text"))
    ids: list[str] = table["id"].to_pylist()
    for row in [row for row, own in enumerate(ids) if not own]:
        content = table["image_bytes"][row].as_py() or (text[row] or "").encode()
        image = path[row] or hashlib.sha256(content).hexdigest()[:16]
        ids[row] = image if group[row] is None else f"{group[row]}/{slot[row]}/{image}"
    return ids
