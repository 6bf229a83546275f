"""Tables of results for a terminal and in Markdown, and as files.

    print(tables.table(results))
    print(tables.FORMATS["latex"](results))
    tables.write(results, Path("results"), "generator")

`grids` chooses their rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from idmetric.evaluate.protocols.common.grids import Grid, grids, text
from idmetric.evaluate.protocols.common.latex import latex
from idmetric.evaluate.protocols.common.result import (
    Result,
    Value,
    as_csv,
    as_json,
    footnotes,
    slug,
    write_items,
)
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.metric.files import replacing
from idmetric.tables import aligned


def table(results: Sequence[Result], width: int = 0, elsewhere: str = "") -> str:
    """Aligned columns, in lines of at most `width` characters; 0 = of any length.

    Intervals are left out first, then columns from the right; a line says which, and `elsewhere` where they are.
    """
    parts = [_fitting(grid, width, elsewhere) for grid in grids(results)]
    notes = [f"{note}\n" for note in footnotes(results)]
    return "\n".join(parts) + "".join(notes)


def _fitting(grid: Grid, width: int, elsewhere: str) -> str:
    """The table of a grid, as much of it as fits."""
    intervals = True
    missing: list[str] = []
    count = len(grid.metrics)
    lines = _aligned(grid, count, intervals)
    while width and count > 1 and max(map(len, lines)) > width:
        if intervals:
            if any(_has_interval(numbers) for _, numbers in grid.lines):
                missing.append("intervals")
            intervals = False
        else:
            count -= 1
        lines = _aligned(grid, count, intervals)
    missing += grid.metrics[count:]

    if grid.title:
        lines.insert(0, f"{grid.title}:")
    lines += _below(grid)
    if missing:
        line = f"not shown for lack of room: {', '.join(missing)}"
        if elsewhere:
            line += f" ({elsewhere})"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _has_interval(numbers: Sequence[Value | None]) -> bool:
    return any(value is not None and value.low is not None for value in numbers)


def _aligned(grid: Grid, count: int, intervals: bool) -> list[str]:
    """The lines of a table of the first columns of numbers."""
    heads = grid.labels + grid.metrics[:count]
    cells = [heads]
    for texts, numbers in grid.lines:
        shown = [text(value, intervals) for value in numbers[:count]]
        cells.append(texts + shown)
    return aligned(cells, right=range(len(grid.labels), len(heads)))


def _below(grid: Grid) -> list[str]:
    """What all rows share, in a line."""
    if not grid.same:
        return []
    facts = [f"{name} {value}" for name, value in grid.same.items()]
    return ["in all rows: " + ", ".join(facts)]


def markdown(results: Sequence[Result]) -> str:
    """Markdown tables."""
    parts = []
    for grid in grids(results):
        lines = []
        if grid.title:
            lines += [f"**{grid.title}**", ""]
        lines.append(_markdown_row(grid.labels + grid.metrics))
        rule = "---|" * len(grid.labels) + "---:|" * len(grid.metrics)
        lines.append("|" + rule)
        for texts, numbers in grid.lines:
            shown = [text(value) for value in numbers]
            lines.append(_markdown_row(texts + shown))
        if grid.same:
            lines += ["", *_below(grid)]
        parts.append("\n".join(lines) + "\n")
    notes = [f"- {note}\n" for note in footnotes(results)]
    if notes:
        parts.append("".join(notes))
    return "\n".join(parts)


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return "| " + " | ".join(escaped) + " |"


def explained(results: Sequence[Result]) -> list[str]:
    """A line for each column: what it is, its unit, its direction and its source."""
    meanings: dict[str, Column] = {}
    for grid in grids(results):
        meanings |= grid.meanings
    return [f"{name}: {column}" for name, column in meanings.items()]


FORMATS: dict[str, Callable[[Sequence[Result]], str]] = {
    "table": table,
    "json": as_json,
    "csv": as_csv,
    "markdown": markdown,
    "latex": latex,
}


def write(results: Sequence[Result], out: Path, name: str) -> list[Path]:
    """Write `name`.json and .csv (all numbers), .md and .tex, each atomically.

    The items go to `name`.MODEL.TABLE.parquet.
    """
    texts = {
        "md": markdown(results),
        "tex": latex(results),
        "csv": as_csv(results),
    }
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
