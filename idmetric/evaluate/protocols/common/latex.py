"""Tables of results in LaTeX (package booktabs)."""

from __future__ import annotations

from collections.abc import Sequence

from idmetric.evaluate.protocols.common.grids import Grid, grids, text
from idmetric.evaluate.protocols.common.result import Result, footnotes
from idmetric.metric.files import need


def latex(results: Sequence[Result]) -> str:
    """A tabular with a row for each row of the results, and notes as comments below it.

    Raises:
        ImportError: without pandas or jinja2.
    """
    parts = [_tabular(grid) for grid in grids(results)]
    notes = [f"% {note}\n" for note in footnotes(results)]
    return "\n".join(parts) + "".join(notes)


def _tabular(grid: Grid) -> str:
    """The table of a grid, and what all its rows share as a comment."""
    need("eval", "LaTeX", pandas="pandas", jinja2="jinja2")
    import pandas as pd

    # the model stays in each row, also if there is one
    shared = dict(grid.same)
    labels = list(grid.labels)
    model = shared.pop("model", None)
    if model is not None:
        labels.insert(0, "model")

    rows = []
    for texts, numbers in grid.lines:
        names = texts if model is None else [model, *texts]
        rows.append([*names, *(text(value, intervals=False) for value in numbers)])
    frame = pd.DataFrame(rows, columns=[*labels, *grid.metrics])
    styler = frame.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis="columns")
    column_format = "l" * len(labels) + "r" * len(grid.metrics)
    tabular: str = styler.to_latex(hrules=True, column_format=column_format)

    tabular = tabular.replace("\n[", "\n{}[")  # a bracket would be an option of the line break before it
    if shared:
        facts = ", ".join(f"{name} {value}" for name, value in shared.items())
        tabular += f"% in all rows: {facts}\n"
    return tabular
