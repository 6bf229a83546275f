"""The result of `idmetric.score`: rows, the facts that all rows share, and how both are printed."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric.files import StrPath, json_text, need, replacing
from idmetric.tables import aligned, csv_text, first_few, four, in_csv, printable, rounded

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder

GIVEN = "given"  # sources of a `Limit`
OWN_PHOTOS = "own photos"
_MOST_NAMES = 30  # of images beside a plot


@dataclass(frozen=True)
class Limit:
    """The largest distance that passes.

    Attributes:
        source: where it comes from, in words to show next to it: "given" by an argument, of a command such as
            "option --threshold", "own photos" (leave-one-out), or "stored calibration, 5 % of pairs".
        rate: of a calibration's threshold, the share of pairs of two identities within it; None for others.
    """

    distance: float
    source: str = GIVEN
    rate: float | None = None

    @classmethod
    def of(cls, value: float | Limit) -> Limit:
        """A limit as it is, or one of a given distance."""
        return value if isinstance(value, Limit) else cls(value)

    def __str__(self) -> str:
        """Its distance with the source, such as "0.3 (option --threshold)"."""
        return f"{self.distance:.6g} ({self.source})"


Record = dict[str, Any]


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
        """Format CSV text with a header, for spreadsheets (see `idmetric.tables`); numbers have four decimals.

        A missing or undefined value is an empty field.
        """
        lines = [[row.get(name) for name in self.columns] for row in map(in_csv, self.rows)]
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


NO_CALIBRATION = "no calibration for a word of same, unsure or different: make one, idmetric eval calibrate"


@dataclass(frozen=True)
class Scores(Records):
    """Scored images: a row for each, sorted by distance; rows of pairs keep the order of the pairs.

    Attributes:
        signature: model, revision, distance, resolution, dtype and version, to report with the scores.
        skipped: image -> the reason why it has no row, with on_error="skip".
        real: reference -> its distance to the other references, with several photos; a copy of another has none.
        threshold: the largest distance that passes; None without one. threshold_source: where it comes from.
        basis: of the calibration, see `answered_by`.
        left_out: references among the images, which have no row.
        named: name, value and note of a published score, if the model was opened by its name (`metric.named`).
    """

    signature: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    real: Mapping[str, float] = field(default_factory=dict)
    threshold: float | None = None
    threshold_source: str = ""
    basis: str = NO_CALIBRATION
    left_out: Sequence[str] = ()
    named: Mapping[str, Any] | None = None

    @property
    def answered_by(self) -> str:
        """What the words in `answer` rest on, in a sentence; or why there are none."""
        if self.threshold is None:
            return self.basis
        return f"pass: a distance of at most {self.threshold:.6g} ({self.threshold_source})"

    def _repr_html_(self) -> str:
        """The first rows with pictures of image and reference, which are read from their files."""
        from idmetric.page import ROWS, notebook_table, picture_of  # Pillow: not for --help

        lines = []
        for row in self.rows[:ROWS]:
            pictures = [picture_of(row[name], row[name]) for name in ("image", "reference")]
            lines.append([*pictures, *[row.get(name) for name in self.columns]])
        return notebook_table(["", "", *self.columns], lines, len(self.rows), [self.answered_by])

    def plot(self, ax: Any = None) -> Any:
        """Draw the distance of each image, the range of the real photos and the threshold; returns matplotlib's Axes.

        Args:
            ax: Axes to draw into; default: new ones.

        Raises:
            MissingExtraError: without matplotlib.
        """
        need("eval", "plot()", matplotlib="matplotlib")
        import matplotlib.pyplot as plt

        from idmetric.page import short

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        ranks = range(1, len(self.rows) + 1)
        ax.plot([row["distance"] for row in self.rows], ranks, "o")
        if len(self.rows) <= _MOST_NAMES:
            ax.set_yticks(ranks, short([row["image"] for row in self.rows]))
        ax.invert_yaxis()
        ax.set_xlabel(f"distance ({self.signature.get('distance', '')}); lower = more surely the same identity")
        if self.real:
            distances = self.real.values()
            ax.axvspan(min(distances), max(distances), alpha=0.15, label="real photos")
        if self.threshold is not None:
            ax.axvline(self.threshold, linestyle="--", color="gray", label=f"threshold {self.threshold:.6g}")
        if ax.get_legend_handles_labels()[0]:
            ax.legend()
        return ax

    @property
    def summary(self) -> dict[str, Any]:
        """Numbers of all rows, and in `without_copies` of those that repeat no reference, if some do.

        Returns:
            n; mean and std (n - 1) of the distances, None without enough rows; with a threshold also passing and
            share_passing; with several references real_mean, real_min and real_max.
        """
        distances = [row["distance"] for row in self.rows]
        count = len(distances)
        summary: dict[str, Any] = {
            "n": count,
            "mean": statistics.fmean(distances) if distances else None,
            "std": statistics.stdev(distances) if count > 1 else None,
        }
        if self.threshold is not None:
            passing = count - len(self.beyond(self.threshold))
            summary |= {"threshold": self.threshold, "threshold_source": self.threshold_source}
            summary |= {"passing": passing, "share_passing": passing / count if count else None}
        if self.real:
            real = self.real.values()
            summary |= {"real_mean": statistics.fmean(real), "real_min": min(real), "real_max": max(real)}
        if self.named is not None:
            summary["named"] = self.named
        new_rows = [row for row in self.rows if not row.get("copy")]
        if len(new_rows) < len(self.rows):
            without_copies = replace(self, rows=new_rows, named=None, real={})
            summary["without_copies"] = without_copies.summary
        return summary

    def beyond(self, distance: float) -> list[Record]:
        """The rows with a larger distance."""
        from idmetric.metric.ties import comparable

        limit = comparable(distance)
        return [row for row in self.rows if not comparable(row["distance"]) <= limit]

    def write(self, path: StrPath) -> None:
        """Write a .csv, .json or .jsonl file, or the page (.html), atomically; ValueError for another ending."""
        if os.fspath(path).lower().endswith(".html"):
            from idmetric.page import write_page
            from idmetric.scoring.sheet import read_album, score_page

            write_page(score_page(self, read_album(self)), path)
            return
        super().write(path)

    def to_dict(self) -> dict[str, Any]:
        """The object that `--format json` prints; numbers with nine significant digits."""
        values = {
            "signature": self.signature,
            "rows": self.rows,
            "answers": self.answered_by,
            "real": self.real,
            "skipped": self.skipped,
            "references_left_out": list(self.left_out),
            "summary": self.summary,
        }
        return dict(rounded(values))

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json_text(self.to_dict(), indent=2) + "\n"

    def to_table(self) -> str:
        """Rows with the columns to read first, aligned, and below them the facts that all rows share."""
        references = {row["reference"] for row in self.rows}
        columns = ["rank", "distance", "image"]
        if any(row.get("answer") for row in self.rows):
            columns.insert(2, "answer")
        if len(references) > 1:
            columns.append("reference")
        if any(row.get("copy") for row in self.rows):
            columns.append("copy")

        lines = [columns]
        for row in self.rows:
            cells = {"answer": "", **row}
            cells["rank"] = f"{row['rank']:>4}"
            cells["distance"] = f"{four(row['distance']):>8}"
            cells["copy"] = "copy" if row.get("copy") else ""
            lines.append([cells[column] for column in columns])
        table = aligned(lines) if self.rows else []
        notes = [printable(note) for note in self.notes]
        return "\n".join(line.rstrip() for line in [*table, *notes]) + "\n"

    @property
    def notes(self) -> list[str]:
        """The lines below the table."""
        lines = []
        if len({row["reference"] for row in self.rows}) == 1:
            lines.append(f"reference: {self.rows[0]['reference']}")
        summary = self.summary
        if self.real:
            low, high, mean = (four(summary[name]) for name in ("real_min", "real_max", "real_mean"))
            lines.append(f"real photos to each other: {low} to {high}, mean {mean}, over {len(self.real)} references")
        if self.left_out:
            lines.append(f"left out, as references: {', '.join(first_few(self.left_out, 5))}")
        lines.append(self.answered_by)
        lines.append("  ".join(f"{name}={value}" for name, value in self.signature.items()))
        lines.append(f"summary: {_numbers(summary)}")
        if "without_copies" in summary:
            lines.append(f"without copies: {_numbers(summary['without_copies'])}")
        return [*lines, *self.named_notes]

    @property
    def named_notes(self) -> list[str]:
        """The line of the published score, if there is one."""
        if self.named is None:
            return []
        number = self.named["value"]
        value = "none" if number is None else four(number)
        return [f"{self.named['name']}: {value} ({self.named['note']})"]


def _numbers(summary: Mapping[str, Any]) -> str:
    parts = [f"n {summary['n']}"]
    for name in ("mean", "std"):
        if summary[name] is not None:
            parts.append(f"{name} {four(summary[name])}")
    if summary.get("share_passing") is not None:
        parts.append(f"share passing {four(summary['share_passing'])} ({summary['passing']} of {summary['n']})")
    return ", ".join(parts)


def named_score(metric: Embedder, distances: Sequence[Sequence[float]], of_whole_images: bool) -> dict[str, Any] | None:
    """The number of the published score that the model was opened by (`metric.named`); None for other models."""
    published = metric.named
    if published is None or not distances:
        return None
    value = None
    note = "of whole images, by --distance cls"
    if of_whole_images:
        cosines = [[1 - distance for distance in row] for row in distances]
        try:
            value = published.value(cosines)
        except ValueError as error:
            note = str(error)
    note = f"{published.source}: {note}"
    if value is not None:
        note = f"from {len(distances)} x {len(distances[0])} cosines; {published.source}"
    return {"name": metric.name, "value": value, "note": note}
