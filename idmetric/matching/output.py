"""What `Match` and `Consistency` have in common: their rows as tables, CSV and JSON, and text for a terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from idmetric.metric.files import StrPath, json_text
from idmetric.scoring.scores import Records
from idmetric.tables import aligned, first_few, four, rounded


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

    def contents(self) -> dict[str, Any]:
        """Further parts of the JSON, by name."""
        return {}

    @abstractmethod
    def lines(self) -> list[str]:
        """The rows and more, for a terminal."""

    def _repr_html_(self) -> str:
        """The first rows as a notebook shows them."""
        return self.rows._repr_html_()

    def to_pandas(self) -> Any:
        """`rows` as a pandas DataFrame."""
        return self.rows.to_pandas()

    def to_csv(self) -> str:
        """`rows` as CSV text."""
        return self.rows.to_csv()

    def to_jsonl(self) -> str:
        """A JSON object for each row."""
        return self.rows.to_jsonl()

    def to_json(self) -> str:
        """Signature, rows and all other results."""
        content = {
            "signature": dict(self.signature),
            "rows": self.rows.to_records(),
            **self.contents(),
            "skipped": dict(self.skipped),
            "unlisted": list(self.unlisted),
        }
        return json_text(rounded(content), indent=2) + "\n"

    def to_table(self) -> str:
        """Aligned columns for a terminal, then what all rows share."""
        signature = [f"{name}={value}" for name, value in self.signature.items()]
        lines = self.lines()
        if self.unlisted:
            lines.append(f"not listed with regions: {len(self.unlisted)}, {', '.join(first_few(self.unlisted))}")
        lines.append("  ".join(signature))
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def write(self, path: StrPath) -> None:
        """Write the rows as .csv, .json or .jsonl, atomically; ValueError for another ending."""
        self.rows.write(path)


def columns(records: Records, names: Sequence[str]) -> list[str]:
    """Some columns of a table, aligned; "-" where there is no value."""
    lines = [list(names)]
    for row in records:
        cells = []
        for name in names:
            value = row[name]
            if value in (None, ""):
                cells.append("-")
            elif name in ("seconds", "start", "end"):
                cells.append(f"{value:.2f}")
            else:
                cells.append(four(value) if isinstance(value, float) else str(value))
        lines.append(cells)
    return aligned(lines)
