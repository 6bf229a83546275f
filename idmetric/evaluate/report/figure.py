"""Figures of matplotlib in the style of all plots, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.metric.files import StrPath, need, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(rows: int, columns: int, width: float = 4.8) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, row by row; `width` of a column, in inches."""
    need("eval", "a plot", matplotlib="matplotlib")
    from matplotlib.figure import Figure

    height = 2.4 * rows
    if rows == 1:
        height = 3.6
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    axes: list[Axes] = panels.ravel().tolist()
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Figure, path: StrPath) -> None:
    """Add missing legends and write the file atomically; its extension selects the format."""
    for axes in figure.axes:
        if axes.get_legend() is None and axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small", frameon=False)
    import matplotlib

    # no date, and ids derived from the content: the same numbers give the same file
    ending = Path(path).suffix.lower()
    metadata = None
    if ending in (".svg", ".svgz"):
        metadata = {"Date": None}
    style = matplotlib.rc_context({"svg.hashsalt": "idmetric"})
    with style, replacing(Path(path)) as temporary:
        figure.savefig(temporary, format=ending[1:] or "png", dpi=150, metadata=metadata)
