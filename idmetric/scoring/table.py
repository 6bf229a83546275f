"""Scores as a text table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from idmetric.io.tables import aligned, four

if TYPE_CHECKING:
    from idmetric.scoring.scores import Scores

NEEDS_TWO = "how far real photos of the subject are from each other is shown with two references or more: --ref"


def table(scores: Scores) -> str:
    """Format the columns that have values, and below them the facts that all rows share."""
    lines = _columns(scores) if scores.rows else []
    return "\n".join(line.rstrip() for line in (*lines, *_notes(scores))) + "\n"


def _columns(scores: Scores) -> list[str]:
    rows = scores.rows
    columns = [
        ("rank", [f"{row['rank']:>4}" for row in rows]),
        ("distance", [f"{four(row['distance']):>8}" for row in rows]),
    ]
    if "probability" in rows[0]:
        columns.append(("P(same)", [f"{four(row['probability']):>7}" for row in rows]))
    if "real_percentile" in rows[0]:
        columns.append(("percentile", [f"{row['real_percentile']:10.0f}" for row in rows]))
    columns.append(("image", [row["image"] for row in rows]))
    if _has_several_references(scores):
        columns.append(("reference", [row["reference"] for row in rows]))
    if any(row.get("copy") for row in rows):
        columns.append(("copy", ["copy" if row.get("copy") else "" for row in rows]))

    return aligned([[head for head, _ in columns], *zip(*(cells for _, cells in columns), strict=True)])


def _has_several_references(scores: Scores) -> bool:
    return len({row["reference"] for row in scores.rows}) > 1


def _notes(scores: Scores) -> list[str]:
    lines = []
    if scores.rows and not _has_several_references(scores):
        note = f" ({NEEDS_TWO})" if scores.references == 1 else ""
        lines.append(f"reference: {scores.rows[0]['reference']}{note}")
    if (found := scores.baseline) is not None:
        lines.append(
            f"real to real, leave-one-out ({found.aggregate}) over {len(found.distances)} references: mean "
            f"{four(found.mean)}, max {four(found.max)}; percentile = real ones that are nearer, in percent"
        )
    if scores.left_out:
        lines.append(f"left out, as references: {_some(scores.left_out)} (--include-refs scores them too)")
    if scores.other:
        lines.append(f"other columns, in --format csv, json and jsonl: {', '.join(scores.other)}")
    if scores.rows and "probability_basis" in scores.rows[0]:
        lines.append(scores.rows[0]["probability_basis"])
    lines.append("  ".join(f"{key}={value}" for key, value in scores.signature.items()))
    lines.append(_summary(scores.summary))
    return lines


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _summary(found: dict[str, Any]) -> str:
    line = f"summary: {_numbers(found)}"
    if (new := found.get("without_copies")) is not None:
        line += f"\nwithout copies: {_numbers(new)}"
    if (named := found.get("named")) is not None:
        line += f"\n{named['name']}: {'none' if named['value'] is None else four(named['value'])} ({named['note']})"
    return line


def _numbers(found: dict[str, Any]) -> str:
    parts = [f"n {found['n']}"]
    if found["mean"] is not None:
        parts.append(f"mean {four(found['mean'])}")
    if found["std"] is not None:
        parts.append(f"std {four(found['std'])}")
    if found.get("share_passing") is not None:
        share = four(found["share_passing"])
        parts.append(f"share passing {share} ({found['passing']} of {found['n']} at most {found['threshold']:g})")
    return ", ".join(parts)
