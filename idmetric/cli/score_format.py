"""What `idmetric-score` prints: a table, JSON, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idmetric import json_file
from idmetric.output import OutputError, check, replacing

Row = dict[str, Any]
# an image and its mask; of those that could not be read, the reason
File = tuple[str, str | None]
Skipped = dict[File, str]
NEEDS_TWO = "how far real photos of the subject are from each other is shown with two references or more: --ref"


class UsageError(Exception):
    """Something the user asked for cannot be; the message says what and the way out."""


class LostOutputError(Exception):
    """What was found could not be written where it was to go; the message says where it is."""


@dataclass(frozen=True)
class Baseline:
    """How far genuine photos of the subject are from each other: leave-one-out, see `idmetric.evaluate.references`.

    Attributes:
        distances: of each reference to the others. aggregate: to the nearest ("best") or their mean.
    """

    distances: dict[str, float]
    aggregate: str

    @property
    def mean(self) -> float:
        """Of the references' distances."""
        return sum(self.distances.values()) / len(self.distances)

    @property
    def max(self) -> float:
        """Of the references' distances."""
        return max(self.distances.values())


@dataclass(frozen=True)
class Scores:
    """What is printed. `references`: how many were given; 0 for pairs."""

    rows: list[Row]
    signature: dict[str, str]
    skipped: Skipped
    baseline: Baseline | None
    references: int


def table(scores: Scores) -> str:
    """Aligned columns, those that there are; below them what all rows share."""
    rows = scores.rows
    several = len({row["reference"] for row in rows}) > 1
    columns: list[tuple[str, list[str]]] = [
        ("rank", [f"{row['rank']:>4}" for row in rows]),
        ("distance", [f"{row['distance']:8.4f}" for row in rows]),
    ]
    if "probability" in rows[0]:
        columns.append(("P(same)", [f"{row['probability']:7.3f}" for row in rows]))
    if "real_percentile" in rows[0]:
        columns.append(("percentile", [f"{row['real_percentile']:10.0f}" for row in rows]))
    columns.append(("image", [row["image"] for row in rows]))
    if several:
        columns.append(("reference", [row["reference"] for row in rows]))
    if any(row.get("copy") for row in rows):
        columns.append(("copy", ["copy" if row.get("copy") else "" for row in rows]))
    widths = [max(map(len, [head, *cells])) for head, cells in columns]
    texts = [[head for head, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(text, widths, strict=True)) for text in texts]
    if not several:
        note = f" ({NEEDS_TWO})" if scores.references == 1 else ""
        lines.append(f"reference: {rows[0]['reference']}{note}")
    if scores.baseline is not None:
        found = scores.baseline
        lines.append(
            f"real to real, leave-one-out ({found.aggregate}) over {len(found.distances)} references: mean "
            f"{found.mean:.4f}, max {found.max:.4f}; percentile = real ones that are nearer, in percent"
        )
    lines.append("  ".join(f"{key}={value}" for key, value in scores.signature.items()))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def as_object(scores: Scores) -> dict[str, Any]:
    """Everything, as one object."""
    lost = [{"image": path, "reason": reason} for (path, _), reason in scores.skipped.items()]
    found = scores.baseline
    baseline = None if found is None else {**asdict(found), "mean": found.mean, "max": found.max}
    note = {"baseline_note": NEEDS_TWO} if scores.references == 1 else {}
    return {"signature": scores.signature, "rows": scores.rows, "baseline": baseline, **note, "skipped": lost}


def as_json(scores: Scores) -> str:
    """Everything, as one object's text."""
    return json_file.text(as_object(scores), indent=2) + "\n"


def as_lines(scores: Scores) -> str:
    """An object for each row."""
    return "".join(json_file.text(row) + "\n" for row in _with_baseline(scores))


def as_csv(scores: Scores) -> str:
    """A line for each row."""
    rows = _with_baseline(scores)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _with_baseline(scores: Scores) -> list[Row]:
    found = scores.baseline
    about = {} if found is None else {"real_mean": found.mean, "real_max": found.max}
    return [{**row, **about} for row in scores.rows]


FORMATS = {"table": table, "json": as_json, "jsonl": as_lines, "csv": as_csv}


def check_output(output: str | None) -> None:
    """Whether `write` could write there, to be asked before the work.

    Raises:
        UsageError: if it could not.
    """
    if output is not None:
        try:
            check(output)
        except OSError as error:
            raise UsageError(_says(error, output)) from error


def write(text: str, output: str | None) -> None:
    """To stdout, or a file, whole or not at all; where a file fails after all the work, to stdout.

    Raises:
        LostOutputError: if it cannot be written there.
        BrokenPipeError: if nobody reads stdout any more.
    """
    if output is None:
        _print(text)
        return
    try:
        with replacing(Path(output)) as temporary:
            # names of files may be no UTF-8
            temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        _print(text)
        raise LostOutputError(f"{_says(error, output)}; the result is on stdout instead") from error


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would fail again at the end
        raise LostOutputError(f"cannot write to stdout: {error}; name a file with --output") from error


def _says(error: OSError, output: str) -> str:
    return str(error) if isinstance(error, OutputError) else f"cannot write {output!r}: {error}"
