"""Numbers, columns and CSV as people read them.

The only place that writes CSV for people and spreadsheets. A spreadsheet runs a cell that begins with = + - @ as a
formula, even if it is the name of a file. As OWASP advises (CSV Injection), such text gets a single quote in front.
So does text after a semicolon, a tab or a line break, where a spreadsheet may begin a new cell, whatever the quotes of
CSV say. Numbers stay as they are. Data that this package reads back, such as manifests, is not written here: it must
stay as it is, letter by letter.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Container, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

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


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Text in one line for a terminal or Markdown: characters that control them or turn the direction are escaped.

    >>> printable("a\x1b[2J\n")
    'a\\x1b[2J\\n'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


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


def first_few(lines: Sequence[str], shown: int = 10) -> list[str]:
    """The first lines and, if there are more, a line with their number.

    >>> first_few(["a", "b", "c"], shown=2)
    ['a', 'b', 'and 1 more']
    """
    more = len(lines) - shown
    if more <= 0:
        return list(lines)
    return [*lines[:shown], f"and {more} more"]


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
