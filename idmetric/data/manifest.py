"""The manifest: a checked pandas table of images that every recipe, protocol and data step reads and writes.

A row is an image, or one use of it in a triplet: its file, the identity it shows, and how it was made. Any table with a
column `path` is a manifest; columns of your own come along under their names. In memory all of `COLUMNS` are present,
the index counts the rows from 0, paths are absolute, and text is `str` or None (identities too: 007 stays 007).

    from idmetric.data.manifest import read, take, with_columns, write
    photos = read("photos.csv")
    dogs = take(photos, (photos["category"] == "dog") & (photos["role"] == "real"))
    write(with_columns(dogs, split="test"), "dogs.parquet")
"""

from __future__ import annotations

import csv
import datetime
import decimal
import hashlib
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from idmetric import tables
from idmetric.data.split import split_name
from idmetric.metric.files import MissingExtraError, StrPath, install, need, refuse_irregular, replacing, shown
from idmetric.metric.paths import is_address
from idmetric.tables import first_few, number_of, plain_name

try:
    import pandas as pd
except ImportError as error:
    raise MissingExtraError(f"manifests need pandas: {install('eval')}") from error

__all__ = ["COLUMNS", "ManifestError", "checked", "merge", "read", "take", "with_columns", "write"]

ROLES = ("real", "context-edit", "identity-edit", "distractor", "part-edit")
SLOTS = ("anchor", "positive", "negative", "query", "candidate", "left", "right")
TEXT_SLOTS = ("query", "positive", "negative", "candidate")  # of rows that may be a text without an image
PATHS = ("path", "mask", "part_mask")
FORMATS = (".parquet", ".csv", ".jsonl")

TEXT, NUMBER, WHOLE, JSON = "text", "a number", "a whole number", "JSON serializable"
COLUMNS = {  # column -> what its values are
    "id": TEXT,  # unique name of the row; by default made of group, slot and path as given (or a hash of the text)
    "identity": TEXT,  # equal exactly for images of one subject; missing if unknown, or if there is no subject
    "path": TEXT,  # the image; rows with a text in one of `TEXT_SLOTS` may lack it: a caption as query, an answer
    "dataset": TEXT,  # origin of the image
    "split": TEXT,  # such as train, val, test
    "domain": TEXT,  # such as animals, products
    "category": TEXT,  # such as dog, mug
    "mask": TEXT,  # mask of the object, see `idmetric.metric.masks`
    "part_mask": TEXT,  # mask of its edited part
    # one of `ROLES`: real (a photo or a rendering), context-edit (the parent's identity in another context),
    # identity-edit and distractor (another identity in the parent's context), part-edit (a part is changed)
    "role": TEXT,
    "background": TEXT,  # id of the background
    "engine": TEXT,  # generator of the image
    # 1 - |part| / |object|, at most 1: the share of the object that an edit kept (NearID, section 3.4); below 0 if the
    # part's mask is larger than the object's
    "oracle": NUMBER,
    "text": TEXT,  # instruction, prompt or caption
    "label": NUMBER,  # a human or model judgment of this row within its group; the dataset defines its meaning
    "group": TEXT,  # rows of one group belong together: a pair, a triplet, a query with candidates
    "slot": TEXT,  # the row's place in its group, one of `SLOTS`
    "parent": TEXT,  # id of the row that this one was made from
    "seed": WHOLE,  # int or None
    "parameters": JSON,  # everything else that made the image: the text of a JSON object, or None
}

# columns by which other tools say that a row is a part of its image, in small letters without underscores: one that
# holds a whole box, or all sides of it, which may begin with a prefix, as in bbox_x and face_xmin
_WHOLE_BOXES = ("bbox", "bboxes", "box", "boxes", "boundingbox", "boundingboxes", "facebox", "facebbox")
_SIDES = (
    {"x1", "y1", "x2", "y2"},
    {"x0", "y0", "x1", "y1"},
    {"xmin", "ymin", "xmax", "ymax"},
    {"xtl", "ytl", "xbr", "ybr"},
    {"x", "y", "w", "h"},
    {"x", "y", "width", "height"},
    {"cx", "cy", "w", "h"},
    {"xcenter", "ycenter", "width", "height"},
    {"left", "top", "width", "height"},
    {"left", "top", "right", "bottom"},
)
_BOX_PREFIX = re.compile("^(boundingbox|facebbox|facebox|bbox|box|bb|face)")
_BYTES = ("image_bytes", "mask_bytes", "part_mask_bytes")
_NOT_IN_CSV = (bytes, list, tuple, dict, np.ndarray)
_EXACT = 2**53  # whole numbers below it are exact as floats


class ManifestError(ValueError):
    """A manifest, or a dataset to make one from, that cannot be used; the message says where, and how to fix it."""


# Files


def read(file: StrPath) -> pd.DataFrame:
    """The manifest in a .parquet, .csv or .jsonl file, checked.

    Columns and ids may be missing. An empty CSV field is a missing value, and columns of your own in CSV hold text.

    Raises:
        ManifestError: naming the file, rows and columns at fault.
    """
    file = Path(file)
    table = checked(read_columns(file), file.parent, str(file))
    warn_of_twins(table)
    return table


def read_columns(file: Path) -> pd.DataFrame:
    """The columns of a manifest's file as they stand there, for `checked`; ManifestError if it cannot be read."""
    check_extension(file)
    try:
        refuse_irregular(file)
        return _read_parquet(file) if file.suffix.lower() == ".parquet" else _read_text(file)
    except (OSError, ValueError, NotImplementedError) as error:  # Arrow's errors are of these classes
        raise ManifestError(f"{file}: not readable as {file.suffix[1:]}: {error}") from error


def write(table: pd.DataFrame, file: StrPath) -> None:
    """Check a manifest and write it as .parquet, .csv or .jsonl, atomically.

    Paths become relative to the file's folder, with forward slashes; columns without any value are left out.

    Raises:
        ManifestError: for another ending, values that break the rules, or that the format cannot hold.
        OutputError: if it cannot be written.
    """
    file = Path(file)
    check_extension(file)
    table = checked(table, name=str(file))
    root = os.path.realpath(file.parent)
    table = _with_paths(table, partial(_relative, root=root))
    has_values = table.notna().any()
    has_values["path"] = True
    table = table.loc[:, has_values]

    write_format = _WRITE[file.suffix.lower()]
    with replacing(file, parents=True) as temporary:
        try:
            write_format(table, temporary)
        except (TypeError, ValueError, NotImplementedError) as error:  # Arrow's errors are of these classes
            raise ManifestError(f"{file}: {file.suffix} cannot hold the table: {error}") from error


def check_extension(file: StrPath) -> None:
    """Raise a `ManifestError` unless the file's extension is one of `FORMATS`."""
    if Path(file).suffix.lower() not in FORMATS:
        raise ManifestError(f"{os.fspath(file)}: a manifest ends in {', '.join(FORMATS)}")


def _read_parquet(file: Path) -> pd.DataFrame:
    need("eval", "a .parquet manifest", pyarrow="pyarrow")
    from pyarrow import parquet

    table = parquet.read_table(file)
    table.validate(full=True)  # also checks that text is UTF-8, which reading does not
    # named indexes of pandas come back as columns, and whole numbers never pass through floats
    frame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    is_named = [not name.startswith("__index_level_") for name in frame]
    return frame.loc[:, is_named]


def _read_text(file: Path) -> pd.DataFrame:
    """The columns of CSV or JSON lines as objects."""
    table = tables.read_table(file, known=COLUMNS)
    if file.suffix.lower() == ".csv":
        for expected, row in enumerate(table.rows, 2):
            if row.number != expected:
                raise ValueError(f"row {expected} is blank: remove it, or fill in its path")

    columns = {}
    for name in table.columns:
        values = table.column(name)
        if name in PATHS:
            values = [_with_slashes(value, file.parent) for value in values]
        columns[name] = pd.Series(values, dtype=object)
    return pd.DataFrame(columns)


def _with_slashes(value: Any, root: Path) -> Any:
    """A path of a text table, which may be from Windows, with forward slashes, unless a file is called so."""
    if isinstance(value, str) and "\\" in value and not os.path.lexists(root / value):
        return value.replace("\\", "/")
    return value


def _relative(path: str, root: str) -> str:
    with suppress(ValueError):  # another drive of Windows
        path = os.path.relpath(path, root)
    return Path(path).as_posix()


def _write_parquet(table: pd.DataFrame, file: Path) -> None:
    need("eval", "a .parquet manifest", pyarrow="pyarrow")
    table.to_parquet(file, index=False)


def _write_csv(table: pd.DataFrame, file: Path) -> None:
    for column in table.columns.difference(list(COLUMNS)):
        types = set(map(type, table[column]))
        if not types.isdisjoint(_NOT_IN_CSV):
            raise TypeError(f"column {column!r} has bytes, lists or objects; write .parquet")
    # quotes around all text keep spaces at its ends
    table.to_csv(file, index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n", encoding="utf-8")


def _write_lines(table: pd.DataFrame, file: Path) -> None:
    is_given = table.notna().to_numpy()
    with open(file, "w", encoding="utf-8") as lines:
        for number, values in enumerate(table.itertuples(index=False, name=None)):
            cells = zip(table.columns, values, is_given[number], strict=True)
            row = {column: value for column, value, has_value in cells if has_value}
            if "parameters" in row:
                row["parameters"] = json.loads(row["parameters"])
            try:
                line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
                lines.write(line + "\n")
            except (TypeError, ValueError) as error:
                raise ValueError(f"row {number + 1}: {error}") from error


_WRITE = {".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_lines}


# The door


def checked(
    table: pd.DataFrame | Iterable[Mapping[str, Any]], root: StrPath = ".", name: str = "manifest"
) -> pd.DataFrame:
    """The table as a manifest: all of `COLUMNS`, then its own; every value in its type, and defaults filled in.

    Args:
        table: any table with a column `path`, or its rows; `parameters` may be dicts.
        root: folder of relative paths. name: of the file, for messages.

    Raises:
        ManifestError: naming rows (counted from 1) and columns of values that break the rules, and columns of boxes.
    """
    if not isinstance(table, pd.DataFrame):
        table = pd.DataFrame(list(table), dtype=object)  # objects keep whole numbers exact beside missing values
    _check_names(table, name)
    table = table.reset_index(drop=True)
    columns = {}
    for column in COLUMNS:
        columns[column] = _typed(table, column, name)
    for column in table.columns:
        if column not in COLUMNS:
            columns[column] = own_column(table[column], name)

    result = pd.DataFrame(columns)
    result = with_columns(
        result,
        id=_ids(result),
        split=[split and split_name(split) for split in result["split"]],
        role=[role or "real" for role in result["role"]],
    )
    problems = [f"row {row + 1}, column {column!r}: {reason}" for row, column, reason in _faults(result)]
    if problems:
        raise ManifestError(f"{name}: {'; '.join(first_few(problems))}")

    return _with_paths(result, partial(_absolute, root=os.path.realpath(root)))


def _with_paths(table: pd.DataFrame, changed: Callable[[str], str]) -> pd.DataFrame:
    """The table with the paths of images and masks changed."""
    columns = {}
    for column in PATHS:
        columns[column] = [path and changed(path) for path in table[column]]
    return with_columns(table, **columns)


def _absolute(path: str, root: str) -> str:
    return os.path.normpath(os.path.join(root, path))


def _check_names(table: pd.DataFrame, name: str) -> None:
    """Refuse columns of one name, of boxes and of bytes, a column as index, and a table without images."""
    for column in table.index.names:
        if column is not None:
            raise ManifestError(f"{name}: {column!r} is the table's index, not a column: call reset_index() first")
    columns = list(table.columns)
    for column, count in Counter(columns).items():
        if not isinstance(column, str):
            raise ManifestError(f"{name}: a column is called {shown(column)}: name it with text")
        if count > 1:
            raise ManifestError(f"{name}: column {shown(column)} occurs twice")
        if column in _BYTES:
            raise ManifestError(
                f"{name}: column {column!r}: images and masks are files; 'idmetric data import table' writes them"
            )

    refuse_boxes(columns, name)
    if columns and not {"path", "text"}.intersection(columns):
        names = ", ".join(map(shown, columns))
        raise ManifestError(
            f"{name}: column 'path' is missing; there are {names}: rename the column of image files, or "
            "'idmetric data import table --map path=COLUMN'"
        )


def refuse_boxes(columns: Iterable[str], name: str) -> None:
    """Refuse columns of boxes, which say that a row is a part of its image, in a table of this name."""
    boxes = []
    column_of = {}
    for column in columns:
        plain_column = plain_name(column).replace("_", "")
        if plain_column in _WHOLE_BOXES:
            boxes.append(column)
        side = _BOX_PREFIX.sub("", plain_column)
        column_of[side] = column

    for sides in _SIDES:
        if sides <= column_of.keys():
            boxes += [column_of[side] for side in sorted(sides)]
    if boxes:
        listed = ", ".join(dict.fromkeys(boxes))
        raise ManifestError(
            f"{name}: {listed}: columns of boxes, but whole images are read; crop the images and remove the "
            "columns, or import the set ('idmetric data import wildlife')"
        )


def _typed(table: pd.DataFrame, column: str, name: str) -> pd.Series:
    """A column of `COLUMNS` in its type: floats with NaN, or objects with None; missing if the table lacks it."""
    kind = COLUMNS[column]
    values: list[Any] = [None] * len(table)
    cells = table[column].tolist() if column in table else []
    for row in np.flatnonzero(pd.notna(cells)) if cells else ():
        value = cells[row]
        if isinstance(value, str) and not value:  # an empty text is missing, in every format
            continue
        try:
            values[row] = _CONVERT[kind](value)
        except (ValueError, TypeError, OverflowError) as error:
            reason = f"{shown(value)} is not {kind}: {error}".removesuffix(": ")
            raise ManifestError(f"{name}: row {row + 1}, column {column!r}: {reason}") from error
    return pd.Series(values, dtype=float if kind == NUMBER else object)


def own_column(values: pd.Series, name: str) -> pd.Series:
    """A column of the table's own: text with None, numbers as they are; several kinds of values are refused."""
    if not (pd.api.types.is_object_dtype(values) or pd.api.types.is_string_dtype(values)):
        return values
    values = values.astype(object)
    is_given = values.notna()
    values[~is_given] = None
    kinds = {_kind(value) for value in values[is_given]}
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise ManifestError(f"{name}: column {values.name!r} mixes values of types {names}: give them one type")
    types = set(map(type, values[is_given]))
    if types == {float}:
        return values.astype(float)
    return values.infer_objects() if is_given.all() and types <= {int, float, bool} else values


def _kind(value: Any) -> type:
    if isinstance(value, int | np.number) and not isinstance(value, bool):
        return float
    return type(value)


def _ids(table: pd.DataFrame) -> list[str]:
    """The id of every row, made of group, slot and path (or the hash of the text) where it is missing."""
    ids = []
    columns = ["id", "path", "group", "slot", "text"]
    for name, path, group, slot, text in table[columns].itertuples(index=False, name=None):
        if name is None:
            name = path or hashlib.sha256((text or "").encode()).hexdigest()[:16]
            if group is not None:
                name = f"{group}/{slot}/{name}"
        ids.append(name)
    return ids


def _faults(table: pd.DataFrame) -> Iterator[tuple[int, str, str]]:
    """Row, column and reason of every value that breaks the rules."""
    for column, (is_valid, expected) in _RULES.items():
        for row, value in enumerate(table[column].tolist()):
            is_missing = value is None or value != value  # NaN
            if not is_missing and not is_valid(value):
                yield row, column, f"{shown(value)} is not {expected}"

    # rules for several columns
    is_text = table["text"].notna() & table["slot"].isin(TEXT_SLOTS)
    lacks_image = table["path"].isna() & ~is_text
    for row in np.flatnonzero(lacks_image).tolist():
        yield row, "path", "no image: it is empty"
    is_half = table["group"].isna() != table["slot"].isna()
    for row in np.flatnonzero(is_half).tolist():
        yield row, "slot", "group and slot go together; one of them is empty"

    rows: dict[str, int] = {}
    for row, name in enumerate(table["id"]):
        earlier = rows.setdefault(name, row)
        if earlier != row:
            yield row, "id", f"{shown(name)} is also the id of row {earlier + 1}"


# Values


def text_of(value: Any) -> str:
    """The text of a name or id: 7 and 7.0 are "7".

    Raises:
        TypeError: for lists, bytes, booleans, fractions and other values that cannot be names.
        ValueError: for a whole number that a float may have rounded. UnicodeEncodeError: for text that is not UTF-8.
    """
    if isinstance(value, str | os.PathLike):
        text = str(value)
        text.encode()
        return text
    return str(_whole(value))


def _whole(value: Any) -> int:
    if isinstance(value, float | np.floating):
        if not float(value).is_integer():
            raise TypeError
        if abs(float(value)) >= _EXACT:
            raise ValueError("a float may have rounded it; keep it as text")
    elif isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError
    return int(value)


def _seed(value: Any) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return np.int64(_whole(value)).item()


def _number(value: Any) -> float:
    return number_of(value.strip()) if isinstance(value, str) else float(value)


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False, default=_plain)


WRITTEN_AS_TEXT = (os.PathLike, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)


def _plain(value: Any) -> Any:
    """The JSON value for a NumPy value, path, date or number, for `json.dumps(default=...)`."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, WRITTEN_AS_TEXT):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _is_path(value: str) -> bool:
    return bool(value.strip()) and "\0" not in value and not is_address(value)


def _is_json_object(value: str) -> bool:
    try:
        return isinstance(json.loads(value, parse_constant=int), dict)  # int refuses NaN and Infinity, as JSON does
    except (ValueError, RecursionError):
        return False


_CONVERT: dict[str, Callable[[Any], Any]] = {TEXT: text_of, NUMBER: _number, WHOLE: _seed, JSON: _json_text}

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


# Several manifests, and parts of one


def merge(manifests: Sequence[pd.DataFrame], shared: bool = False) -> pd.DataFrame:
    """One manifest of several.

    Args:
        shared: equal identity and group names in two manifests name the same identity and group. Otherwise they are
            refused, because two datasets with a name such as "0001" rarely mean the same subject.

    Raises:
        ManifestError: naming ids, identities or groups that occur twice, or an own column of two types.
    """
    for name in ("id",) if shared else ("id", "identity", "group"):
        counts: Counter[str] = Counter()
        for table in manifests:
            counts.update(table[name].dropna().unique())
        clashes = [repr(value) for value, count in counts.items() if count > 1]
        if clashes:
            advice = "" if name == "id" else ", or say they are shared"
            raise ManifestError(
                f"{len(clashes)} {name} values are in more than one manifest: {', '.join(first_few(sorted(clashes)))}; "
                f"prefix them with the dataset's name{advice}"
            )
    as_objects = [table.astype(object) for table in manifests]  # a missing column would turn whole numbers into floats
    return checked(pd.concat(as_objects, ignore_index=True), name="the merged manifest")


def take(table: pd.DataFrame, rows: Any) -> pd.DataFrame:
    """The rows of these numbers in this order, or the rows where a boolean mask (N,) is true, counted from 0 again."""
    chosen = np.asarray(rows)
    if chosen.dtype != bool:
        chosen = chosen.astype(np.int64)
    return table.iloc[chosen].reset_index(drop=True)


def numbered(table: pd.DataFrame) -> pd.DataFrame:
    """The rows in their order, counted from 0: pandas keeps old numbers when it filters, sorts or joins."""
    return table.reset_index(drop=True)


def with_columns(table: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """The manifest with these columns in place of its own: one value for all rows, or one for each.

    Text stays an object with None; `DataFrame.assign` would turn it into pandas' own type, with NaN.
    """
    changed = {}
    for name, values in columns.items():
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray | pd.Series):
            values = [values] * len(table)
        values = list(values)
        if len(values) != len(table):
            raise ValueError(f"{len(values)} values of {name} for {len(table)} rows")
        column = pd.Series(values, index=table.index, dtype=object, name=name)
        column[column.isna()] = None
        if name not in COLUMNS:
            column = own_column(column, "manifest")
        elif COLUMNS[name] == NUMBER:
            column = column.astype(float)
        changed[name] = column
    return table.assign(**changed)


def warn_of_twins(table: pd.DataFrame) -> None:
    """Warn of identities with names that differ by case, spaces or the coding of accents alone."""
    names = table["identity"].drop_duplicates().dropna()
    plain_names = names.str.normalize("NFC").str.casefold().str.strip()
    plain_names = plain_names.str.replace(" */ *", "/", regex=True)  # a data set's name may come first

    twins = []
    for _, group in names.groupby(plain_names, sort=False):
        if len(group) > 1:
            twins.append(" and ".join(map(ascii, group)))
    if twins:
        message = "identities that differ by case, spaces or the coding of accents alone stay different"
        warnings.warn(f"{message}: {'; '.join(first_few(twins, 5))}", stacklevel=3)
