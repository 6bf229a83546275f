"""Tables that people and spreadsheets write, and numbers, columns and CSV for them to read.

The only place that reads CSV and JSON lines. A table may be separated by commas, semicolons or tabs, and be UTF-8 or
UTF-16, with or without a byte order mark. Rows without any text do not count. What cannot be read is refused by its row
and column. Rows are counted from 1 with the header, as spreadsheets count them.

Also the only place that writes CSV for people and spreadsheets. A spreadsheet runs a cell that begins with = + - @ as a
formula, even if it is the name of a file. As OWASP advises (CSV Injection), such text gets a single quote in front.
So does text after a semicolon, a tab or a line break, where a spreadsheet may begin a new cell, whatever the quotes of
CSV say. Numbers stay as they are. Data that this package reads back, such as manifests, is not written here: it must
stay as it is, letter by letter.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from idmetric.metric.files import StrPath, decoded_text, parse_json, read_bytes, read_text, shown
from idmetric.metric.files import first_few as first_few
from idmetric.metric.files import printable as printable

DIGITS = 9  # any two float32 numbers differ in these


def four(value: float) -> str:
    """Four decimals; what rounds to zero has no sign.

    >>> four(-0.00001), four(0.12345678)
    ('0.0000', '0.1235')
    """
    return f"{round(value, 4) + 0.0:.4f}"


def rounded(value: Any) -> Any:
    """Nine significant digits of a float, also of those in dicts and lists; everything else as it is.

    A score is computed in float32, so more digits are noise.

    >>> rounded({"distance": 0.0934123471379280, "rank": 1})
    {'distance': 0.0934123471, 'rank': 1}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") + 0.0  # no -0.0
    if isinstance(value, dict):
        return {key: item if isinstance(item, str) else rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def in_csv(row: dict[str, Any]) -> dict[str, Any]:
    """A row for CSV: its floats by `four`; undefined ones (NaN) are empty."""
    cells = dict(row)
    for key, value in row.items():
        if isinstance(value, float):
            cells[key] = four(value)
            if math.isnan(value):
                cells[key] = ""
    return cells


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Each row of cells as a line, the columns two spaces apart.

    >>> aligned([["image", "distance"], ["a.png", "0.1"]], right=[1])
    ['image  distance', 'a.png       0.1']

    Args:
        rows: as many cells in each. right: numbers of the columns that are aligned to the right.
    """
    columns = []
    for number, column in enumerate(zip(*rows, strict=True)):
        cells = [printable(cell) for cell in column]
        width = max(map(len, cells))
        justify = str.rjust if number in right else str.ljust
        columns.append([justify(cell, width) for cell in cells])
    lines = []
    for row in zip(*columns, strict=True):
        line = "  ".join(row)
        lines.append(line.rstrip())
    return lines


_FORMULA = "=+\\-@\uff1d\uff0b\uff0d\uff20"  # the last: full-width
_FIRST = re.compile(f"[{_FORMULA}\\t\\r\\n]")
_AFTER_SEPARATOR = re.compile(f"([;\\t\\r\\n][\"'\\s]*)(?=[{_FORMULA}])")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and a line for each row; None is an empty field, and text that a spreadsheet would run is quoted.

    Characters that control a terminal are escaped as by `printable`.
    """
    lines: list[str] = []
    # with \r\n, so that it also puts cells in quotes that hold a \r
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    for row in (columns, *rows):
        writer.writerow(map(_cell, row))
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    text = _AFTER_SEPARATOR.sub(r"\1'", value)
    if _FIRST.match(value):
        text = f"'{text}"
    # tabs and line breaks stay, within the quotes of CSV
    return re.sub(r"[^\t\r\n]+", lambda match: printable(match[0]), text)


# Reading

SEPARATORS = (",", ";", "\t")
_NUMBER_WITH_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}


class TableError(ValueError):
    """A table that cannot be used; the message names its row and column, and says how to fix it."""


@dataclass(frozen=True)
class TableRow:
    """The cells of a row of a file, and its number, counted from 1 with the header and empty rows."""

    number: int
    cells: list[Any]


@dataclass(frozen=True)
class HeadedTable:
    """A table with a header.

    Attributes:
        columns: their names, which differ.
        rows: as many cells in each; None for an empty one. Cells of CSV are text, those of JSON lines any value.
    """

    columns: tuple[str, ...]
    rows: list[TableRow]

    def column(self, name: str) -> list[Any]:
        """The cells of a column."""
        index = self.columns.index(name)
        return [row.cells[index] for row in self.rows]

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each row, and its cells by the names of their columns."""
        for row in self.rows:
            yield row.number, dict(zip(self.columns, row.cells, strict=True))

    def check_kinds(self) -> None:
        """Refuse a column with values of several kinds, such as text and numbers."""
        for index, name in enumerate(self.columns):
            kind_above = ""
            for row in self.rows:
                value = row.cells[index]
                if value is None:
                    continue
                kind = _KINDS[type(value)]
                if kind_above not in ("", kind):
                    raise TableError(f"{cell_name(row.number, name)}: it is {kind}, but {kind_above} in rows above")
                kind_above = kind


def read_table(path: StrPath, needed: Sequence[str] = (), known: Iterable[str] = ()) -> HeadedTable:
    """The rows of a file of JSON lines, if its name ends so, or else of a table with a header in its first row.

    Args:
        needed: columns that the table must have.
        known: further columns that the caller uses. Both are recognized in capitals and with spaces or hyphens, too;
            other columns keep the names that they have in the file.

    Raises:
        OSError: if the file cannot be read. TableError: for a cell that cannot be read, or a missing column.
    """
    spellings = {*needed, *known}
    if Path(path).suffix.lower() in (".jsonl", ".ndjson"):
        table = _of_json_lines(path, spellings)
    else:
        separators: tuple[str, ...] = SEPARATORS
        if Path(path).suffix.lower() == ".txt":
            separators = (*SEPARATORS, " ")
        table = _with_header(read_cells(read_bytes(path), separators), spellings)
    missing = [name for name in needed if name not in table.columns]
    if missing:
        columns = ", ".join(table.columns) or "none"
        raise TableError(f"it has no column {', '.join(missing)}: {','.join(needed)} are needed, there are {columns}")
    return table


def _with_header(rows: list[TableRow], spellings: Container[str]) -> HeadedTable:
    """The rows below the first one, which names the columns; columns without a name, as pandas' index, are left out."""
    if not rows:
        raise TableError("it is empty: the first row names the columns")
    names = column_names(rows[0].cells, spellings)
    width = len(names)
    named = [index for index, name in enumerate(names) if name]
    if not named:
        raise TableError("its first row names no columns")
    for row in rows[1:]:
        count = len(row.cells)
        if count < width or any(row.cells[width:]):
            raise TableError(f"row {row.number} has {count} cells for {width} columns: quote cells with separators")
        row.cells[:] = [row.cells[index] or None for index in named]
    return HeadedTable(tuple(names[index] for index in named), rows[1:])


def column_names(cells: Sequence[str], spellings: Container[str]) -> list[str]:
    """The names in a header: the ones in `spellings` as they stand there, whatever their capitals, others as they are.

    Raises:
        TableError: for a column that occurs twice.
    """
    names: dict[str, str] = {}  # -> as the file has it
    in_order = []
    for cell in cells:
        name = cell
        if name not in spellings and plain_name(cell) in spellings:
            name = plain_name(cell)
        in_order.append(name)
        if name in names and name:
            columns = f"column {cell!r} occurs twice"
            if names[name] != cell:
                columns = f"columns {names[name]!r} and {cell!r} mean the same"
            raise TableError(f"the {columns}: rename or remove one")
        names[name] = cell
    return in_order


def plain_name(name: str) -> str:
    """A column's name in small letters, with underscores in place of spaces and hyphens.

    >>> plain_name(" Image A")
    'image_a'
    """
    return re.sub("[- ]+", "_", name.strip().lower())


def read_cells(data: bytes, separators: Sequence[str] = SEPARATORS) -> list[TableRow]:
    """The rows of a table that have any text, split by the separator that its first row has most of.

    Spaces before a cell do not count.

    Raises:
        TableError: naming the row that cannot be read.
    """
    if data.startswith(b"PK\x03\x04"):
        raise TableError("it is an archive or a workbook (.xlsx), not text: save the sheet as CSV")
    try:
        text = decoded_text(data)
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        raise TableError(f"row {row}: it is not {error.encoding.upper()} text: save the table as UTF-8") from error

    header = text.lstrip("\r\n").partition("\n")[0]
    separator = max(separators, key=header.count)
    rows = []
    number = 0
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
        for number, cells in enumerate(reader, 1):
            if any(cell.strip() for cell in cells):
                rows.append(TableRow(number, cells))
    except csv.Error as error:  # such as of quotes that do not end
        raise TableError(f"row {number + 1}: {error}") from error
    return rows


def cell_name(number: int, column: str) -> str:
    """The name of a cell in messages.

    >>> cell_name(3, "label"), cell_name(3, "2")
    ("row 3, column 'label'", 'row 3, column 2')
    """
    return f"row {number}, column {column if column.isdigit() else repr(column)}"


def number_of(text: str) -> float:
    """The number in a cell; one decimal comma is read where it cannot separate thousands.

    >>> number_of("0.5"), number_of("0,5"), number_of("12,25")
    (0.5, 0.5, 12.25)

    Raises:
        ValueError: for other text, and for 1,234, which is 1234 in some countries and 1.234 in others.
    """
    if _NUMBER.fullmatch(text):
        return float(text)
    if _THOUSANDS.fullmatch(text):
        raise ValueError(f"{text} may be {text.replace(',', '')} or {text.replace(',', '.')}: write it without a comma")
    if _NUMBER_WITH_COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    raise ValueError(f"{shown(text)} is not a number")


def text_lines(text: str) -> list[str]:
    """The lines that have any text, without spaces around them."""
    lines = re.split(r"\r\n|\r|\n", text)
    return [line.strip() for line in lines if line.strip()]


def json_lines(path: StrPath) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line of JSON lines, and its object; blank lines are skipped.

    Raises:
        OSError: if the file cannot be read. TableError: naming the line, if it is not a JSON object.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, unique=True)
        except ValueError as error:  # also raised for numbers with thousands of digits
            raise TableError(f"line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise TableError(f"line {number} is not an object of columns")
        yield number, row


def _of_json_lines(path: StrPath, spellings: Container[str]) -> HeadedTable:
    numbers = []
    rows = []
    keys: dict[str, int] = {}  # -> index of the column
    for number, row in json_lines(path):
        for key in row:
            keys.setdefault(key, len(keys))
        numbers.append(number)
        rows.append(row)
    names = column_names(list(keys), spellings)
    table_rows = []
    for number, row in zip(numbers, rows, strict=True):
        table_rows.append(TableRow(number, [row.get(key) for key in keys]))
    return HeadedTable(tuple(names), table_rows)
