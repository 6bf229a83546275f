"""How a `Match` looks in a notebook: each subject's numbers, the worst images with their pictures, and a plot.

Its module imports this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from idmetric.metric.files import need
from idmetric.page import ROWS, notebook_table, picture_of, short
from idmetric.tables import four

_SUMMARY = ("subject", "n", "coverage", "mean", "worst", "worst_image", "threshold")
_MOST_NAMES = 30  # of images below a plot


def match_html(match: Any) -> str:
    """Two tables: a row for each subject, and the worst images first, with the state and distance of each subject."""
    summary = [[row.get(name) for name in _SUMMARY] for row in match.summary.rows[:ROWS]]
    subjects = notebook_table(_SUMMARY, summary, len(match.summary))

    names = match.table.times
    short_names = short(names)
    order = np.argsort(-match.badness.max(axis=1, initial=-np.inf), kind="stable").tolist()
    rows = []
    for time in order[:ROWS]:
        picture = picture_of(names[time], names[time])
        cells = [_state(match, time, subject) for subject in range(len(match.table.subjects))]
        rows.append([picture, short_names[time], *cells])
    notes = ["the worst images first; distances: lower = more surely the same identity"]
    if match.skipped:
        notes.append(f"{len(match.skipped)} skipped, see .skipped")
    images = notebook_table(["", "image", *match.table.subjects], rows, len(names), notes)
    return subjects + images


def _state(match: Any, time: int, subject: int) -> str:
    state: str = match.states[time][subject]
    distance = match.nearest[time, subject]
    if np.isnan(distance):
        return state
    return f"{state} {four(float(distance))}".strip()


def plot_match(match: Any, ax: Any = None) -> Any:
    """Draw the distances, see `Match.plot`."""
    need("eval", "plot()", matplotlib="matplotlib")
    import matplotlib.pyplot as plt

    names = match.table.times
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
    positions = np.arange(len(names))
    for number, subject in enumerate(match.table.subjects):
        [line] = ax.plot(positions, match.nearest[:, number], "o-", label=subject)
        if not np.isnan(match.thresholds[number]):
            ax.axhline(match.thresholds[number], linestyle="--", color=line.get_color())
    if len(names) <= _MOST_NAMES:
        ax.set_xticks(positions, short(names), rotation=30, ha="right")
    else:
        ax.set_xlabel("image")
    ax.set_ylabel("distance to the nearest region")
    if match.table.subjects:
        ax.legend()
    return ax
