"""Tables of results in LaTeX (package booktabs)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from idmetric.evaluate.protocols.common.grids import Grid, View, figure, grids
from idmetric.evaluate.protocols.common.protocol import compared_rows
from idmetric.evaluate.protocols.common.result import (
    Result,
    Value,
    comparisons_of,
    copying,
    footnotes,
    smoke_tests,
)
from idmetric.metric.files.tables import printable
from idmetric.metric.scoring.copies import MANY

_DAGGER = "$^\\dagger$"
_ARROWS = {1: " $\\uparrow$", -1: " $\\downarrow$", 0: ""}
_COMPARED = ("method", "step")  # labels of the rows that may copy


def latex(results: Sequence[Result], view: View = View()) -> str:
    """LaTeX tables: the best number of a column is bold, the second underlined.

    Methods that copy have a dagger and no marks, and of methods that are compared by tests, a column has none unless a
    test shows that the best is ahead.
    The caption names models, revisions, each column, and the reason of missing marks.
    """
    models = {}
    for result in results:
        revision = result.signature.get("revision")
        models[result.model] = f"{result.model} ({revision})" if revision else result.model
    facts = {
        "model" if len(models) == 1 else "models": ", ".join(models.values()),
        "idmetric": ", ".join(sorted({result.signature.get("idmetric", "") for result in results})),
    }
    parts = [_table(grid, facts, view, results) for grid in grids(results, view)]
    return "\n".join(parts) + "".join(f"% {note}\n" for note in footnotes(results))


def _table(grid: Grid, facts: Mapping[str, str], view: View, results: Sequence[Result]) -> str:
    copiers = {name for result in results for name in copying(result)}

    # rows and columns of methods that copy
    label = next((grid.labels.index(name) for name in _COMPARED if name in grid.labels), None)
    copying_rows = set()
    if label is not None:
        copying_rows = {row for row, (texts, _) in enumerate(grid.lines) if texts[label] in copiers}
    copying_columns = set()
    if view.columns in _COMPARED:
        copying_columns = {column for column, head in enumerate(grid.metrics) if head in copiers}

    # columns without a clear winner
    is_plain = not view.rows and not grid.title
    unclear = _unclear(results, grid.metrics, copiers) if is_plain else []
    unmarked = copying_columns | {grid.metrics.index(name) for name in unclear}
    is_untested = bool(comparisons_of(results[0])) and (len(results) > 1 or not is_plain)
    if is_untested:  # the tests compare methods over all subjects, by one model
        unmarked = set(range(len(grid.metrics)))
    marks = _marks(grid, copying_rows, unmarked)

    # the cells
    head = [escaped(name) for name in grid.labels]
    for column, name in enumerate(grid.metrics):
        dagger = _DAGGER if column in copying_columns else ""
        head.append(escaped(name) + dagger + _ARROWS[grid.better(name)])
    lines = []
    for row, (texts, numbers) in enumerate(grid.lines):
        cells = [escaped(text) for text in texts]
        if row in copying_rows and label is not None:
            cells[label] += _DAGGER
        for column, value in enumerate(numbers):
            cells.append(_number(value, marks.get((row, column), ""), view.intervals is True))
        line = " & ".join(cells) + " \\\\"
        lines.append(f"{{}}{line}" if line.startswith("[") else line)  # a bracket would be an option of the rule

    caption = _caption(grid, facts, results)
    if copying_rows or copying_columns:
        caption.append(f"{_DAGGER} {escaped(_reason_of_daggers(grid.protocol))}")
    if unclear:
        caption.append(
            f"No marks in {escaped(', '.join(unclear))}: no test shows that the best is ahead of all (sign-flip test "
            "over subjects, Holm's correction)."
        )
    caption += [escaped(f"{note}.") for note in smoke_tests(results)]
    if is_untested:
        caption.append("No marks: methods are tested against each other over all subjects, by one model at a time.")

    columns = "l" * len(grid.labels) + "r" * len(grid.metrics)
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{' '.join(caption)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            " & ".join(head) + " \\\\",
            "\\midrule",
            *lines,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def _caption(grid: Grid, facts: Mapping[str, str], results: Sequence[Result]) -> list[str]:
    """The sentences on what the table holds, and on its columns."""
    title = f"{grid.protocol}, {grid.title}" if grid.title else grid.protocol
    shared = ", ".join(f"{name} {value}" for name, value in {**grid.same, **facts}.items() if value)
    sentences = [f"{title}: {shared}.", *(f"{name}: {column}." for name, column in grid.meanings.items())]
    if "SCR" in (*grid.metrics, *grid.same, grid.title):
        for result in results:
            if "scr" in result.settings:
                sentences.append(f"SCR's threshold is {result.settings['scr']:.3f} by {result.model}.")
    return [escaped(sentence) for sentence in sentences]


def _reason_of_daggers(protocol: str) -> str:
    reason = f"more than {100 * MANY:g} % of the images are copies"
    if compared_rows(protocol) == "step":
        reason = "more copies than the best step may have"
    return f"{reason}, so that no number of it is marked."


def _unclear(results: Sequence[Result], metrics: Sequence[str], copiers: Collection[str]) -> list[str]:
    """The columns in which no test shows that a method is ahead of all others without copies.

    None for results of several models, or without tests.
    """
    comparisons = comparisons_of(results[0])
    if len(results) > 1 or not comparisons:
        return []
    unclear = []
    for metric in metrics:
        numbers = {}
        for row in results[0].rows:
            value, method = row.get(metric), str(row.get("method"))
            if isinstance(value, Value) and row.get("group") == "all" and method not in copiers:
                numbers[method] = value.value
        if not numbers:
            continue
        best = max(numbers, key=lambda method: numbers[method])
        behind = {best}
        for comparison in comparisons.get(metric, []):
            if comparison.is_clear and best in (comparison.a, comparison.b):
                behind |= {comparison.a, comparison.b}
        if not numbers.keys() <= behind:
            unclear.append(metric)
    return unclear


def _number(value: Value | None, mark: str, intervals: bool) -> str:
    if value is None:
        return "--"
    shown = figure(value.value).replace("-", "$-$")
    if mark:
        shown = f"\\{mark}{{{shown}}}"
    if intervals and value.low is not None and value.high is not None:
        interval = f"[{figure(value.low)}, {figure(value.high)}]".replace("-", "$-$")
        shown += f" {{\\scriptsize {interval}}}"
    return shown


def _marks(grid: Grid, skipped: Collection[int], unmarked: Collection[int]) -> dict[tuple[int, int], str]:
    """Row and column of the best and the second number of each column, as printed, among rows that compete.

    These are the rows that differ in the model alone, or else in the method, or else in the last label.

    Args:
        skipped: rows that do not compete. unmarked: columns without marks.
    """
    labels = [name for name in grid.labels if name != "n"]
    competing = next((name for name in ("model", "method", *labels[-1:]) if name in labels), None)
    blocks: dict[tuple[str, ...], list[int]] = {}  # the other labels -> rows
    for row, (texts, _) in enumerate(grid.lines):
        named_texts = zip(grid.labels, texts, strict=True)
        others = tuple(text for name, text in named_texts if name not in (competing, "n"))
        if row not in skipped:
            blocks.setdefault(others, []).append(row)

    marks: dict[tuple[int, int], str] = {}
    for column, metric in enumerate(grid.metrics):
        better = grid.better(metric)
        if not better or column in unmarked:
            continue
        for rows in blocks.values():
            ranked: dict[float, list[int]] = {}  # number, higher = better -> rows
            for row in rows:
                value = grid.lines[row][1][column]
                if value is not None:
                    ranked.setdefault(better * round(value.value, 3), []).append(row)
            order = sorted(ranked, reverse=True)
            if len(order) > 1:
                marks |= {(row, column): "textbf" for row in ranked[order[0]]}
            if len(order) > 2:
                marks |= {(row, column): "underline" for row in ranked[order[1]]}
    return marks


def escaped(words: str) -> str:
    """Text as LaTeX prints it."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {character: f"${character}$" for character in "<>|"}
    return "".join(special.get(character, character) for character in printable(words))
