"""Columns of a manifest: what a row holds, the Arrow types that store it, and the rules of its values."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from idmetric.data.old_manifest.arrow import compute, pa
from idmetric.data.old_manifest.errors import ManifestError as ManifestError  # part of this module
from idmetric.data.split import split_name
from idmetric.metric.files import shown
from idmetric.metric.paths import is_address
from idmetric.tables import first_few, number_of

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
        mask, mask_bytes: mask of the object, see `idmetric.metric.masks`.
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


TYPES = dict.fromkeys((column.name for column in fields(Row)), pa.string())
TYPES |= dict.fromkeys(("image_bytes", "mask_bytes", "part_mask_bytes"), pa.large_binary())
TYPES |= {"oracle": pa.float64(), "label": pa.float64(), "seed": pa.int64()}
SCHEMA = pa.schema(TYPES.items(), metadata={"idmetric.manifest": "1"})
COLUMNS = tuple(SCHEMA.names)
PATHS = {"path": "image_bytes", "mask": "mask_bytes", "part_mask": "part_mask_bytes"}  # column -> that of its bytes
_EXPECTED = {pa.string(): "text", pa.int64(): "a whole number", pa.float64(): "a number", pa.large_binary(): "bytes"}


# Values to Arrow


def array_of(values: Sequence[Any], column: str, name: str, offset: int = 0) -> pa.Array:
    """The values of a column of the schema in its type, or those of a free column, which must be of one type.

    A `ManifestError` names the first row with a value that cannot be converted; `offset` rows come before the values.
    """
    kind = TYPES.get(column)
    if kind is None:
        try:
            return pa.array(values)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise ManifestError(
                f"{name}: column {column!r} mixes types of values, or has a type that Arrow lacks: {error}"
            ) from error

    converted = []
    for row, value in enumerate(values, offset + 1):
        try:
            if column == "parameters" and not isinstance(value, str | None):
                value = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False, default=plain)
            is_missing = value is None or (kind != pa.float64() and _is_nan(value))
            converted.append(None if is_missing else _convert(value, kind))
        except (ValueError, TypeError, OverflowError) as error:
            reason = f"{shown(value)} is not {_EXPECTED[kind]}"
            if kind == pa.float64() and isinstance(value, str):
                reason = str(error)
            if isinstance(error, UnicodeEncodeError):  # file names that are not UTF-8: no format can store them
                reason = f"{shown(value)} is not UTF-8 text; rename the file or value"
            elif column == "parameters":
                reason = f"not JSON serializable: {error}"
            raise ManifestError(f"{name}: row {row}, column {column!r}: {reason}") from error
    return pa.array(converted, kind)


def text_of(value: Any) -> str | None:
    """The text of a name or id in any table, as in a manifest's columns: 7 and 7.0 are "7", None and NaN are missing.

    Raises:
        TypeError: for lists, bytes, booleans, fractions and other values that cannot be names.
        UnicodeEncodeError: for text that is not UTF-8.
    """
    if value is None or _is_nan(value):
        return None
    text: str = _convert(value, pa.string())
    return text


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _convert(value: Any, kind: pa.DataType) -> Any:
    """The value in a type of the schema; TypeError or ValueError if it does not fit."""
    if kind == pa.float64():
        return number_of(value.strip()) if isinstance(value, str) else float(value)
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, float) and value.is_integer():  # whole numbers of JSON and pandas
        value = int(value)
    if kind == pa.string() and isinstance(value, str | int | np.integer | os.PathLike):
        text = str(value)
        text.encode()
        return text
    if kind == pa.int64() and isinstance(value, str | int | np.integer):
        return np.int64(int(value)).item()
    if kind == pa.large_binary() and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError


_WRITTEN_AS_TEXT = (os.PathLike, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)


def plain(value: Any) -> Any:
    """The JSON value for a NumPy value, path, date or number, for `json.dumps(default=...)`."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, _WRITTEN_AS_TEXT):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


# Rules


def check_names(names: Sequence[str], name: str) -> None:
    """Raise a `ManifestError` for an unknown or repeated column, or if `identity` is missing."""
    for column in names:
        if names.count(column) > 1:
            raise ManifestError(f"{name}: column {shown(column)} occurs twice")
    if "identity" not in names:
        raise ManifestError(f"{name}: column 'identity' is missing; it says which images show the same subject")


def checked(table: pa.Table, name: str) -> pa.Table:
    """The table with all columns of the schema, in its order and types, then free ones; empty ids and roles filled in.

    A `ManifestError` names rows and column of values that break the rules of `Row`.
    """
    check_names(table.column_names, name)
    columns = {}
    for column, kind in TYPES.items():
        columns[column] = _typed(table, column, name)
        if kind == pa.string():  # an empty text is an empty value, in every format
            is_empty = compute.fill_null(compute.equal(columns[column], ""), False)
            columns[column] = compute.if_else(is_empty, None, columns[column])
    columns["split"] = pa.array([name and split_name(name) for name in columns["split"].to_pylist()], pa.string())
    columns["role"] = compute.fill_null(columns["role"], "real")
    columns["id"] = pa.array(_ids(columns), pa.string())
    for column in table.column_names:
        columns.setdefault(column, table[column])

    table = pa.table(columns)
    problems = [f"row {row + 1}, column {column!r}: {reason}" for row, column, reason in _faults(table)]
    if problems:
        raise ManifestError(f"{name}: {'; '.join(first_few(problems))}")
    return table


def _typed(table: pa.Table, column: str, name: str) -> Any:
    """The column in its type; empty if the table lacks it."""
    kind = TYPES[column]
    if column not in table.column_names:
        return pa.nulls(len(table), kind)
    values = table[column]
    return values if values.type == kind else array_of(values.to_pylist(), column, name)


def _faults(table: pa.Table) -> Iterator[tuple[int, str, str]]:
    """Row, column and reason of every value that breaks the rules."""
    for column, (is_valid, expected) in _RULES.items():
        for row, value in enumerate(table[column].to_pylist()):
            if value is not None and not is_valid(value):
                yield row, column, f"{shown(value)} is not {expected}"

    # rules for several columns
    has = {column: np.asarray(table[column].is_valid()) for column in COLUMNS}
    for column, bytes_column in PATHS.items():
        has_both = has[column] & has[bytes_column]
        for row in np.flatnonzero(has_both).tolist():
            yield row, column, f"{column} and {bytes_column} are both given"
    slots = table["slot"].to_pylist()
    is_text = has["text"] & np.array([slot in TEXT_SLOTS for slot in slots], dtype=bool)
    has_content = has["path"] | has["image_bytes"] | is_text
    for row in np.flatnonzero(~has_content).tolist():
        yield row, "path", "no image: neither path nor image_bytes"
    for row in np.flatnonzero(has["group"] != has["slot"]).tolist():
        yield row, "slot", "group and slot go together; one of them is empty"

    rows: dict[str, int] = {}
    for row, name in enumerate(table["id"].to_pylist()):
        earlier = rows.setdefault(name, row)
        if earlier != row:
            yield row, "id", f"{shown(name)} is also the id of row {earlier + 1}"


def _is_path(value: str) -> bool:
    return bool(value.strip()) and "\0" not in value and not is_address(value)


def _is_json_object(value: str) -> bool:
    try:
        return isinstance(json.loads(value, parse_constant=int), dict)  # int refuses NaN and Infinity, as JSON does
    except (ValueError, RecursionError):
        return False


# column -> a test of each of its values, and what the value must be
_RULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "identity": (str.strip, "a name: it is blank"),
    **dict.fromkeys(PATHS, (_is_path, "a file's path")),
    "role": (ROLES.__contains__, f"one of {', '.join(ROLES)}"),
    "slot": (SLOTS.__contains__, f"one of {', '.join(SLOTS)}"),
    "oracle": (lambda value: -math.inf < value <= 1, "at most 1"),
    "label": (math.isfinite, "a finite number"),
    "seed": (lambda value: value >= 0, "0 or more"),
    "parameters": (_is_json_object, "a JSON object"),
}


def _ids(columns: Mapping[str, Any]) -> list[str]:
    """The id of every row, made of group, slot and path (or the hash of the bytes or text) where it is empty."""
    values = [columns[name].to_pylist() for name in ("id", "path", "group", "slot", "text")]
    ids = []
    for row, (name, path, group, slot, text) in enumerate(zip(*values, strict=True)):
        if not name:
            name = path
            if not path:
                content = columns["image_bytes"][row].as_py() or (text or "").encode()
                name = hashlib.sha256(content).hexdigest()[:16]
            if group is not None:
                name = f"{group}/{slot}/{name}"
        ids.append(name)
    return ids
