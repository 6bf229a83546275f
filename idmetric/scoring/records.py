"""Results as rows of plain values, for pandas, CSV and JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.metric.files import StrPath, json_text, need, replacing
from idmetric.tables import csv_text, in_csv, rounded

Record = dict[str, Any]
File = tuple[str, str | None]  # an image and its mask


@dataclass(frozen=True)
class Records(Sequence[Record]):
    """A table: a dict of plain values for each row.

    >>> table.to_pandas().groupby("group")["image"].count()  # doctest: +SKIP

    Attributes:
        rows: the dicts. columns: their keys, in order, also of an empty table.
    """

    rows: list[Record]
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def _repr_html_(self) -> str:
        """The first rows as a notebook shows them."""
        from idmetric.page import ROWS, notebook_table  # Pillow: not for --help

        rows = [[row.get(name) for name in self.columns] for row in self.rows[:ROWS]]
        return notebook_table(self.columns, rows, len(self.rows))

    def to_records(self) -> list[Record]:
        """Return a list of dicts."""
        return [dict(row) for row in self.rows]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; `to_records` needs no pandas."""
        need("eval", "to_pandas", pandas="pandas")
        import pandas

        return pandas.DataFrame(self.rows, columns=list(self.columns))

    def to_csv(self) -> str:
        """Format CSV text with a header, for spreadsheets (see `files.tables`); numbers have four decimals.

        A missing or undefined value is an empty field.
        """
        lines = []
        for row in map(in_csv, self.rows):
            lines.append([row.get(name) for name in self.columns])
        return csv_text(self.columns, lines)

    def to_json(self) -> str:
        """Format a JSON list; numbers have nine significant digits."""
        return json_text(rounded(self.rows), indent=2) + "\n"

    def to_jsonl(self) -> str:
        """Format a JSON object for each row; numbers have nine significant digits."""
        return "".join(json_text(row) + "\n" for row in rounded(self.rows))

    def write(self, path: StrPath) -> None:
        """Write a .csv, .json or .jsonl file, atomically.

        Raises:
            ValueError: for another ending.
        """
        target = Path(path)
        forms = {".csv": self.to_csv, ".json": self.to_json, ".jsonl": self.to_jsonl}
        ending = target.suffix.lower()
        if ending not in forms:
            raise ValueError(f"{os.fspath(path)!r} ends in none of {', '.join(forms)}")
        text = forms[ending]()
        with replacing(target) as temporary:
            # file names may not be UTF-8
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
