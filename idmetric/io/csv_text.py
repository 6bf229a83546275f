"""CSV for people and spreadsheets, the only place that writes it.

A spreadsheet runs a cell that begins with = + - @ as a formula, even if it is the name of a file. As OWASP
advises (CSV Injection), such text gets a single quote in front. Numbers stay as they are. Data that this package reads
back, such as manifests, is not written here: it must stay as it is, letter by letter.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last: full-width
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and a line for each row; None is an empty field, and text that a spreadsheet would run is quoted."""
    lines: list[str] = []
    # with \r\n, so that it also puts cells in quotes that hold a \r
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    writer.writerows([_cell(value) for value in row] for row in (columns, *rows))
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"
