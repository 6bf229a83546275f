"""Tables of results for a terminal and in Markdown, and as files.

    print(tables.table(results))
    print(tables.FORMATS["latex"](results, View("method", "subject", show=("identity",))))
    tables.write(results, Path("results"), "generator")

`grids` chooses their rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from idmetric.evaluate.protocols.common.grids import Grid, View, grids, text
from idmetric.evaluate.protocols.common.latex import latex
from idmetric.evaluate.protocols.common.result import Result, as_csv, as_json, footnotes, slug, write_items
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.metric.files.output import replacing
from idmetric.metric.files.tables import aligned


def table(results: Sequence[Result], view: View = View(), width: int = 0, elsewhere: str = "") -> str:
    """Aligned columns, in lines of at most `width` characters; 0 = of any length.

    Intervals are left out first, then columns from the right; a line says which, and `elsewhere` where they are.
    """
    parts = [_fitting(grid, width, view.intervals is not False, elsewhere) for grid in grids(results, view)]
    return "\n".join(parts) + "".join(f"{note}\n" for note in footnotes(results))


def _fitting(grid: Grid, width: int, intervals: bool, elsewhere: str) -> str:
    """The table of a grid, as much of it as fits."""
    missing: list[str] = []
    count = len(grid.metrics)
    lines = _aligned(grid, count, intervals)
    if intervals and width and max(map(len, lines)) > width and count > 1:
        lines = _aligned(grid, count, intervals=False)
        values = [value for _, numbers in grid.lines for value in numbers]
        if any(value is not None and value.low is not None for value in values):
            missing.append("intervals")
    while width and max(map(len, lines)) > width and count > 1:
        count -= 1
        lines = _aligned(grid, count, intervals=False)
    missing += grid.metrics[count:]

    if grid.title:
        lines.insert(0, f"{grid.title}:")
    lines += _below(grid)
    if missing:
        place = f" ({elsewhere})" if elsewhere else ""
        lines.append(f"not shown for lack of room: {', '.join(missing)}{place}")
    return "\n".join(lines) + "\n"


def _aligned(grid: Grid, count: int, intervals: bool) -> list[str]:
    """The lines of a table of the first columns of numbers."""
    cells = [grid.labels + grid.metrics[:count]]
    for texts, numbers in grid.lines:
        cells.append(texts + [text(value, intervals) for value in numbers[:count]])
    return aligned(cells, right=range(len(grid.labels), len(cells[0])))


def _below(grid: Grid) -> list[str]:
    """What all rows share, in a line."""
    if not grid.same:
        return []
    return ["in all rows: " + ", ".join(f"{name} {value}" for name, value in grid.same.items())]


def markdown(results: Sequence[Result], view: View = View()) -> str:
    """Markdown tables."""
    parts = []
    for grid in grids(results, view):
        lines = [f"**{grid.title}**", ""] if grid.title else []
        lines.append(_markdown_row(grid.labels + grid.metrics))
        lines.append("|" + "---|" * len(grid.labels) + "---:|" * len(grid.metrics))
        for texts, numbers in grid.lines:
            lines.append(_markdown_row(texts + [text(value, view.intervals is not False) for value in numbers]))
        if grid.same:
            lines += ["", *_below(grid)]
        parts.append("\n".join(lines) + "\n")
    notes = "".join(f"- {note}\n" for note in footnotes(results))
    return "\n".join([*parts, notes] if notes else parts)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def explained(results: Sequence[Result], view: View = View()) -> list[str]:
    """A line for each column: what it is, its unit, its direction and its source."""
    meanings: dict[str, Column] = {}
    for grid in grids(results, view):
        meanings |= grid.meanings
    return [f"{name}: {column}" for name, column in meanings.items()]


FORMATS: dict[str, Callable[[Sequence[Result], View], str]] = {
    "table": table,
    "json": lambda results, _: as_json(results),
    "csv": lambda results, _: as_csv(results),
    "markdown": markdown,
    "latex": latex,
}


def write(results: Sequence[Result], out: Path, name: str, view: View = View()) -> list[Path]:
    """Write `name`.json and .csv (all numbers), .md and .tex (the view), each atomically.

    The items go to `name`.MODEL.TABLE.parquet.

    Raises:
        TableError: see `grids`.
    """
    texts = {"md": markdown(results, view), "tex": latex(results, view), "csv": as_csv(results)}
    out.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, str]] = {}
    written = []
    for result in results:
        for kind, columns in result.items.items():
            path = out / f"{name}.{slug(result.model)}.{kind}.parquet"
            write_items(path, columns, result)
            files.setdefault(result.model, {})[kind] = path.name
            written.append(path)

    texts["json"] = as_json(results, files)
    for ending, content in texts.items():
        path = out / f"{name}.{ending}"
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
        written.append(path)
    return written
