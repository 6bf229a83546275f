"""How `Scores`, whose module imports this one, look in a notebook: a table with pictures, and a plot."""

from __future__ import annotations

from typing import Any

from idmetric.metric.files import need
from idmetric.page import ROWS, notebook_table, picture_of, short
from idmetric.tables import four

_MOST_NAMES = 30  # of images next to a plot


def scores_html(scores: Any) -> str:
    """The first rows with pictures of their image and reference, which are read from their files, and the summary."""
    rows = scores.rows[:ROWS]
    names = _names(rows)
    has_probability = any("probability" in row for row in rows)
    has_copies = any(row.get("copy") for row in rows)
    columns = ["", "image", "distance"]
    if has_probability:
        columns.append("P(same)")
    columns += ["", "reference"]
    if has_copies:
        columns.append("copy")

    pictures = {path: picture_of(path, path) for row in rows for path in (row["image"], row["reference"])}
    lines = []
    for row in rows:
        line: list[Any] = [pictures[row["image"]], names[row["image"]], row["distance"]]
        if has_probability:
            line.append(row.get("probability"))
        line += [pictures[row["reference"]], names[row["reference"]]]
        if has_copies:
            line.append("copy" if row.get("copy") else "")
        lines.append(line)
    return notebook_table(columns, lines, len(scores.rows), _notes(scores))


def _notes(scores: Any) -> list[str]:
    summary = scores.summary
    notes = []
    if summary["mean"] is not None:
        notes.append(f"lower = more surely the same identity; mean {four(summary['mean'])} over {summary['n']}")
    if scores.limit is not None:
        notes.append(f"{summary['passing']} within the threshold {scores.limit}")
    if scores.baseline is not None:
        notes.append(f"real photos to each other: mean {four(scores.baseline.mean)}, max {four(scores.baseline.max)}")
    if scores.skipped:
        notes.append(f"{len(scores.skipped)} skipped, see .skipped")
    notes.append("  ".join(scores.signature.values()))
    return notes


def plot_scores(scores: Any, ax: Any = None) -> Any:
    """Draw the distances, see `Scores.plot`."""
    need("eval", "plot()", matplotlib="matplotlib")
    import matplotlib.pyplot as plt

    distances = [row["distance"] for row in scores.rows]
    names = _names(scores.rows)
    if ax is None:
        height = 1 + 0.25 * min(len(distances), _MOST_NAMES)
        _, ax = plt.subplots(figsize=(6, max(2, height)), layout="constrained")
    ranks = range(len(distances))
    ax.plot(distances, ranks, "o")
    if len(distances) <= _MOST_NAMES:
        ax.set_yticks(ranks, [names[row["image"]] for row in scores.rows])
    else:
        ax.set_ylabel("rank")
    ax.invert_yaxis()
    ax.set_xlabel(f"distance ({scores.signature.get('distance', '')}); lower = more surely the same identity")
    if scores.baseline is not None:
        nearest = min(scores.baseline.distances.values())
        ax.axvspan(nearest, scores.baseline.max, alpha=0.15)
        ax.axvline(scores.baseline.max, alpha=0.5, label="farthest real photo")
    if scores.threshold is not None:
        ax.axvline(scores.threshold, linestyle="--", color="gray", label=f"threshold {four(scores.threshold)}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
    return ax


def _names(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The names of images and references, without the folders that all share."""
    paths = list(dict.fromkeys(row[column] for row in rows for column in ("image", "reference")))
    return dict(zip(paths, short(paths), strict=True))
