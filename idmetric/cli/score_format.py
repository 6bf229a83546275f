"""What `idmetric-score` prints: a table, JSON, JSON lines or CSV."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idmetric.io import json_file
from idmetric.io.csv_text import csv_text
from idmetric.io.decimals import four, in_csv, rounded
from idmetric.io.output import OutputError, check, refuse_inputs, replacing

Row = dict[str, Any]
# an image and its mask; of those that could not be read, the reason
File = tuple[str, str | None]
Skipped = dict[File, str]
# of a row, whatever the options: other columns of --pairs may not have these names
COLUMNS = ("rank", "distance", "image", "reference", "model", "revision", "distance_name", "resolution", "dtype",
           "idmetric", "probability", "probability_basis", "real_percentile", "real_mean", "real_max", "copy",
           "copy_agreement")  # fmt: skip
NEEDS_TWO = "how far real photos of the subject are from each other is shown with two references or more: --ref"


class UsageError(Exception):
    """Something the user asked for cannot be; the message says what and how to fix it."""


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
    """What is printed.

    Attributes:
        rows: in the order to print: by distance, pairs as in their file.
        references: how many were given; 0 for pairs.
        threshold: that of --threshold.
        left_out: references among the images, which are in no row.
        other: columns of --pairs that are carried through.
    """

    rows: list[Row]
    signature: dict[str, str]
    skipped: Skipped
    baseline: Baseline | None
    references: int
    threshold: float | None = None
    left_out: Sequence[str] = ()
    other: Sequence[str] = ()


def summary_of(rows: Sequence[Row], threshold: float | None) -> dict[str, Any]:
    """Count, mean and sample standard deviation (n - 1; None for one) of the distances, and how many pass.

    Returns:
        n, mean, std; with a threshold also threshold, passing (how many are not above it) and share_passing in [0, 1].
    """
    far = [row["distance"] for row in rows]
    found: dict[str, Any] = {
        "n": len(far), "mean": statistics.fmean(far), "std": statistics.stdev(far) if len(far) > 1 else None
    }  # fmt: skip
    if threshold is not None:
        passing = sum(value <= threshold for value in far)
        found |= {"threshold": threshold, "passing": passing, "share_passing": passing / len(far)}
    return found


def table(scores: Scores) -> str:
    """Aligned columns, as far as there are values; below them what all rows share."""
    rows = scores.rows
    several = len({row["reference"] for row in rows}) > 1
    columns: list[tuple[str, list[str]]] = [
        ("rank", [f"{row['rank']:>4}" for row in rows]),
        ("distance", [f"{four(row['distance']):>8}" for row in rows]),
    ]
    if "probability" in rows[0]:
        columns.append(("P(same)", [f"{four(row['probability']):>7}" for row in rows]))
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
            f"{four(found.mean)}, max {four(found.max)}; percentile = real ones that are nearer, in percent"
        )
    if scores.left_out:
        lines.append(f"left out, as references: {_some(scores.left_out)} (--include-refs scores them too)")
    if scores.other:
        lines.append(f"other columns, in --format csv, json and jsonl: {', '.join(scores.other)}")
    if "probability_basis" in rows[0]:
        lines.append(rows[0]["probability_basis"])
    lines.append("  ".join(f"{key}={value}" for key, value in scores.signature.items()))
    lines.append(_summary_line(summary_of(rows, scores.threshold)))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _summary_line(found: dict[str, Any]) -> str:
    parts = [f"n {found['n']}", f"mean {four(found['mean'])}"]
    if found["std"] is not None:
        parts.append(f"std {four(found['std'])}")
    if "passing" in found:
        share = four(found["share_passing"])
        parts.append(f"share passing {share} ({found['passing']} of {found['n']} at most {found['threshold']:g})")
    return f"summary: {', '.join(parts)}"


def as_object(scores: Scores) -> dict[str, Any]:
    """Everything, as one object; numbers with nine significant digits."""
    lost = [{"image": path, "reason": reason} for (path, _), reason in scores.skipped.items()]
    found = scores.baseline
    baseline = None if found is None else {**asdict(found), "mean": found.mean, "max": found.max}
    note = {"baseline_note": NEEDS_TWO} if scores.references == 1 else {}
    left_out = {"references_left_out": list(scores.left_out)} if scores.left_out else {}
    found_all = {"signature": scores.signature, "rows": scores.rows, "baseline": baseline, **note, "skipped": lost,
                 **left_out, "summary": summary_of(scores.rows, scores.threshold)}  # fmt: skip
    answer: dict[str, Any] = rounded(found_all)
    return answer


def as_json(scores: Scores) -> str:
    """Everything, as one object's text."""
    return json_file.text(as_object(scores), indent=2) + "\n"


def as_lines(scores: Scores) -> str:
    """An object for each row."""
    return "".join(json_file.text(rounded(row)) + "\n" for row in _with_baseline(scores))


def as_csv(scores: Scores) -> str:
    """A line for each row, for spreadsheets (see `idmetric.io.csv_text`); numbers with four decimals."""
    rows = [in_csv(row) for row in _with_baseline(scores)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text(columns, [[row.get(name) for name in columns] for row in rows])


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


def check_stdout(output: str | None) -> None:
    """Check that stdout is open, if results go to it.

    Raises:
        UsageError: if the shell has closed it.
    """
    if output is None and sys.stdout is None:
        raise UsageError("stdout is closed: name a file with --output")


def write(text: str, output: str | None) -> None:
    """To stdout, or atomically to a file; where a file fails after all the work, to stdout.

    Raises:
        LostOutputError: if it cannot be written there.
        BrokenPipeError: if nobody reads stdout any more.
    """
    if output is None:
        _print(text)
        return
    try:
        with replacing(Path(output)) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # file names may not be UTF-8
    except OSError as error:
        _print(text)
        raise LostOutputError(f"{_says(error, output)}; the result is on stdout instead") from error


def check_not_read(outputs: Mapping[str, str | None], inputs: Iterable[str]) -> None:
    """Check, before the work, that no output is an input.

    Raises:
        UsageError: naming the first that is.
    """
    try:
        refuse_inputs(outputs, inputs)
    except OSError as error:
        raise UsageError(str(error)) from error


def _print(text: str) -> None:
    stream = sys.stdout
    if stream is None:
        raise LostOutputError("stdout is closed: name a file with --output")
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would fail again at the end
        raise LostOutputError(f"cannot write to stdout: {error}; name a file with --output") from error


def _says(error: OSError, output: str) -> str:
    return str(error) if isinstance(error, OutputError) else f"cannot write {output!r}: {error}"
