"""What `Match` and `Consistency` have in common: their rows as tables, CSV and JSON, and text for a terminal."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from idmetric.matching.published_values import PublishedValue
from idmetric.metric.files import StrPath, json_file
from idmetric.metric.files.tables import aligned, first_few, four, rounded
from idmetric.pages.render import write_page
from idmetric.scoring.records import Records


class Output(ABC):
    """A result with rows.

    Attributes:
        skipped: image or clip -> why it has no rows.
        unlisted: the images that a file or a dict of regions does not list; they count as images without regions.
        signature: what the distances depend on.
    """

    skipped: Mapping[str, str]
    unlisted: tuple[str, ...]
    signature: Mapping[str, str]

    @property
    @abstractmethod
    def rows(self) -> Records:
        """The result as a table."""

    @abstractmethod
    def contents(self) -> dict[str, Any]:
        """Further parts of the JSON, by name."""

    @abstractmethod
    def lines(self) -> list[str]:
        """The rows and more, for a terminal."""

    def rows_with(self, numbers: Sequence[PublishedValue]) -> Records:
        """`rows` with a column for each published number, such as "nexus:corrected", see `PublishedValue.value_of`."""
        rows = []
        for row in self.rows:
            values = {number.label: number.value_of(row) for number in numbers}
            rows.append({**row, **values})
        return Records(rows, (*self.rows.columns, *(number.label for number in numbers)))

    def _repr_html_(self) -> str:
        """The first rows as a notebook shows them."""
        return self.rows._repr_html_()

    def to_pandas(self) -> Any:
        """`rows` as a pandas DataFrame."""
        return self.rows.to_pandas()

    def to_csv(self, numbers: Sequence[PublishedValue] = ()) -> str:
        """`rows_with` published numbers as CSV text."""
        return self.rows_with(numbers).to_csv()

    def to_jsonl(self, numbers: Sequence[PublishedValue] = ()) -> str:
        """A JSON object for each row, with the values of published numbers as in `rows_with`."""
        return self.rows_with(numbers).to_jsonl()

    def to_json(self, numbers: Sequence[PublishedValue] = ()) -> str:
        """Signature, rows and all other results, and published numbers with all of their values."""
        content = {
            "signature": dict(self.signature),
            "rows": self.rows.to_records(),
            **self.contents(),
            "published": [asdict(number) for number in numbers],
            "skipped": dict(self.skipped),
            "unlisted": list(self.unlisted),
        }
        return json_file.text(rounded(content), indent=2) + "\n"

    def to_table(self, numbers: Sequence[PublishedValue] = ()) -> str:
        """Aligned columns for a terminal, then what all rows share."""
        signature = [f"{name}={value}" for name, value in self.signature.items()]
        lines = self.lines()
        if self.unlisted:
            lines.append(f"not listed with regions: {len(self.unlisted)}, {', '.join(first_few(self.unlisted))}")
        lines += ["  ".join(signature), *map(str, numbers)]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    @abstractmethod
    def to_html(self, numbers: Sequence[PublishedValue] = ()) -> str:
        """A page that opens from disk; ImportError without jinja2, which the extra `eval` brings."""

    def write(self, path: StrPath, numbers: Sequence[PublishedValue] = ()) -> None:
        """Write the rows as .csv, .json or .jsonl, or the page as .html, atomically; ValueError for another ending.

        Args:
            numbers: published ones, for columns of the rows (see `rows_with`), or a part of the page.
        """
        ending = Path(path).suffix.lower()
        if ending == ".html":
            write_page(self.to_html(numbers), path)
        elif ending in (".csv", ".json", ".jsonl"):
            self.rows_with(numbers).write(path)
        else:
            raise ValueError(f"{os.fspath(path)!r} ends in none of .csv, .json, .jsonl, .html")


def columns(records: Records, names: Sequence[str]) -> list[str]:
    """Some columns of a table, aligned; "-" where there is no value."""
    lines = [list(names)]
    for row in records:
        cells = []
        for name in names:
            value = row[name]
            if value in (None, ""):
                cells.append("-")
            elif name == "seconds":
                cells.append(f"{value:.2f}")
            else:
                cells.append(four(value) if isinstance(value, float) else str(value))
        lines.append(cells)
    return aligned(lines)
