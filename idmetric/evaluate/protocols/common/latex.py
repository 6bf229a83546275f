"""Tables of results in LaTeX (package booktabs)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from idmetric.evaluate.protocols.common.grids import Grid, View, figure, grids
from idmetric.evaluate.protocols.common.result import (
    Result,
    Value,
    behind,
    comparisons_of,
    copying,
    footnotes,
    smoke_tests,
)
from idmetric.metric.files.tables import printable
from idmetric.scoring.copies import MANY

WORDS = 60  # of a short caption, at most
_DAGGER = "$^\\dagger$"
_ARROWS = {1: " $\\uparrow$", -1: " $\\downarrow$", 0: ""}
_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{character: f"${character}$" for character in "<>|"},
    }
)


def latex(results: Sequence[Result], view: View = View()) -> str:
    """LaTeX tables: the best number of a column is bold, the second underlined.

    Methods that copy have a dagger and no marks. Of methods that are compared by tests, a column has no marks unless a
    test shows that the best is ahead, and a method that is behind another one in identity has no mark in other columns.
    The caption names models, revisions, and the reason of missing marks, in at most `WORDS` words. Comments after the
    tables have what it leaves out: what each column is, and sentences that do not fit; a long caption has all.
    """
    models = {}
    for result in results:
        revision = result.signature.get("revision")
        models[result.model] = result.model
        if revision:
            models[result.model] += f" ({revision})"
    label = "model"
    if len(models) > 1:
        label = "models"
    versions = {result.signature.get("idmetric", "") for result in results}
    facts = {label: ", ".join(models.values()), "idmetric": ", ".join(sorted(versions))}

    parts = []
    notes: list[str] = []
    for grid in grids(results, view):
        part, left_out = _table(grid, facts, view, results)
        parts.append(part)
        notes += left_out
    notes += footnotes(results)
    lines = [f"% {note}\n" for note in dict.fromkeys(notes)]
    return "\n".join(parts) + "".join(lines)


def _table(grid: Grid, facts: Mapping[str, str], view: View, results: Sequence[Result]) -> tuple[str, list[str]]:
    """A table, and the sentences that its caption leaves out."""
    copiers = {name for result in results for name in copying(result)}

    # rows and columns of methods that copy
    copying_rows = _rows_of(grid, copiers)
    copying_columns = set()
    if view.columns == "method":
        copying_columns = {column for column, head in enumerate(grid.metrics) if head in copiers}

    # columns without a clear winner
    is_plain = not view.rows and not grid.title
    unclear = []
    if is_plain:
        unclear = _unclear(results, grid.metrics, copiers)
    unmarked = copying_columns | {grid.metrics.index(name) for name in unclear}
    untested = _why_untested(results, is_plain)
    if untested:
        unmarked = set(range(len(grid.metrics)))
    methods_behind = behind(results[0])
    marks = _marks(grid, copying_rows, unmarked, _rows_of(grid, methods_behind))

    # the cells
    head = [escaped(name) for name in grid.labels]
    for column, name in enumerate(grid.metrics):
        words = escaped(name)
        if column in copying_columns:
            words += _DAGGER
        head.append(words + _ARROWS[grid.better(name)])
    lines = []
    for row, (texts, numbers) in enumerate(grid.lines):
        cells = [escaped(text) for text in texts]
        if row in copying_rows:
            cells[grid.labels.index("method")] += _DAGGER
        for column, value in enumerate(numbers):
            mark = marks.get((row, column), "")
            cells.append(_number(value, mark, view.intervals is True))
        line = " & ".join(cells) + " \\\\"
        if line.startswith("["):  # a bracket would be an option of the rule
            line = "{}" + line
        lines.append(line)

    # the caption
    sentences = []
    if copying_rows or copying_columns:
        reason = f"more than {100 * MANY:g} % of the images are copies"
        sentences.append(f"{_DAGGER} {escaped(reason)}, so that no number of it is marked.")
    if methods_behind and len(unmarked) < len(grid.metrics):
        sentences.append(f"Outside of identity, no marks of {escaped(', '.join(methods_behind))}: behind in identity.")
    if unclear:
        sentences.append(
            f"No marks in {escaped(', '.join(unclear))}: no test shows that the best is ahead of all (sign-flip test "
            "over subjects, Holm's correction)."
        )
    sentences += [escaped(f"{note}.") for note in smoke_tests(results)]
    if untested:
        sentences.append(f"No marks: {untested}.")
    caption, left_out = _caption(grid, facts, [*sentences, *_thresholds(grid, results)], is_long=view.caption == "long")

    columns = "l" * len(grid.labels) + "r" * len(grid.metrics)
    text = "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{caption}}}",
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
    return text, left_out


def _rows_of(grid: Grid, names: Collection[str]) -> set[int]:
    """The rows of the methods of these names."""
    if "method" not in grid.labels:
        return set()
    column = grid.labels.index("method")
    return {row for row, (texts, _) in enumerate(grid.lines) if texts[column] in names}


def _caption(grid: Grid, facts: Mapping[str, str], sentences: Sequence[str], is_long: bool) -> tuple[str, list[str]]:
    """The caption, and the sentences that it leaves out.

    Args:
        facts: on the models. sentences: on marks and thresholds, in LaTeX.
    """
    title = grid.protocol
    if grid.title:
        title += f", {grid.title}"
    models = ", ".join(f"{name} {value}" for name, value in facts.items() if value)
    shared = [escaped(f"{name} {value}") for name, value in grid.same.items() if value and name not in facts]
    columns = [escaped(f"{name}: {column}.") for name, column in grid.meanings.items()]
    if is_long:
        all_shared = [f"In all rows: {', '.join(shared)}."] if shared else []
        return " ".join([escaped(f"{title}: {models}."), *all_shared, *columns, *sentences]), []

    opening = escaped(f"{title}: {models}.")
    left_out = []
    if _words(opening) > WORDS:  # of very many models
        left_out.append(opening)
        opening = escaped(f"{title}.")
    fitting, too_long = _fitting(sentences, WORDS - _words(opening))
    left_out += too_long
    caption = " ".join([opening, *fitting])

    lead = "In all rows:"
    facts_that_fit, other_facts = _fitting(shared, WORDS - _words(f"{caption} {lead}"))
    if facts_that_fit:
        caption += f" {lead} {', '.join(facts_that_fit)}."
    if other_facts:
        left_out.append(f"{escaped(title)}, in all rows: {', '.join(other_facts)}.")
    return caption, left_out + columns


def _fitting(sentences: Sequence[str], room: int) -> tuple[list[str], list[str]]:
    """The sentences that so many words have room for, in their order, and the others."""
    fitting, too_long = [], []
    for sentence in sentences:
        count = _words(sentence)
        if count <= room:
            fitting.append(sentence)
            room -= count
        else:
            too_long.append(sentence)
    return fitting, too_long


def _words(sentence: str) -> int:
    return len(sentence.split())


def _thresholds(grid: Grid, results: Sequence[Result]) -> list[str]:
    """A sentence on each model's threshold of SCR, if the table shows SCR."""
    if "SCR" not in (*grid.metrics, *grid.same, grid.title):
        return []
    sentences = []
    for result in results:
        if "scr" in result.settings:
            sentences.append(escaped(f"SCR's threshold is {result.settings['scr']:.3f} by {result.model}."))
    return sentences


def _why_untested(results: Sequence[Result], is_plain: bool) -> str:
    """Why no test compares the numbers of a table, of methods that are compared by tests; else empty."""
    if "tests" not in results[0].items:
        return ""
    if not comparisons_of(results[0]):
        return "no two methods were tested against each other"
    if len(results) > 1 or not is_plain:
        return "methods are tested against each other over all subjects, by one model at a time"
    return ""


def _unclear(results: Sequence[Result], metrics: Sequence[str], copiers: Collection[str]) -> list[str]:
    """The columns in which no test shows that a method is ahead of all others that may be marked in it.

    None for results of several models, or without tests.
    """
    comparisons = comparisons_of(results[0])
    if len(results) > 1 or not comparisons:
        return []
    methods_behind = behind(results[0])
    unclear = []
    for metric in metrics:
        excluded = {*copiers}
        if metric != "identity":
            excluded |= {*methods_behind}
        numbers = {}
        for row in results[0].rows:
            value = row.get(metric)
            method = str(row.get("method"))
            is_candidate = row.get("group") == "all" and method not in excluded
            if is_candidate and isinstance(value, Value):
                numbers[method] = value.value
        if not numbers:
            continue
        best = max(numbers, key=lambda method: numbers[method])
        beaten = {best}
        for comparison in comparisons.get(metric, []):
            if comparison.is_clear and best in (comparison.a, comparison.b):
                beaten |= {comparison.a, comparison.b}
        if not numbers.keys() <= beaten:
            unclear.append(metric)
    return unclear


def _number(value: Value | None, mark: str, intervals: bool) -> str:
    if value is None:
        return "--"
    shown = figure(value.value).replace("-", "$-$")
    if mark:
        shown = f"\\{mark}{{{shown}}}"
    if intervals and value.low is not None and value.high is not None:
        interval = f"[{figure(value.low)}, {figure(value.high)}]"
        shown += f" {{\\scriptsize {interval.replace('-', '$-$')}}}"
    return shown


def _marks(
    grid: Grid,
    skipped: Collection[int],
    unmarked: Collection[int],
    behind_in_identity: Collection[int],
) -> dict[tuple[int, int], str]:
    """Row and column of the best and the second number of each column, as printed, among rows that compete.

    These are the rows that differ in the model alone, or else in the method, or else in the last label.

    Args:
        skipped: rows that do not compete. unmarked: columns without marks.
        behind_in_identity: rows that compete in no other column.
    """
    labels = [name for name in grid.labels if name != "n"]
    competing = next((name for name in ("model", "method", *labels[-1:]) if name in labels), None)
    blocks: dict[tuple[str, ...], list[int]] = {}  # the other labels -> rows
    for row, (texts, _) in enumerate(grid.lines):
        if row not in skipped:
            named_texts = zip(grid.labels, texts, strict=True)
            shared_texts = [text for name, text in named_texts if name not in (competing, "n")]
            blocks.setdefault(tuple(shared_texts), []).append(row)

    marks: dict[tuple[int, int], str] = {}
    for column, metric in enumerate(grid.metrics):
        better = grid.better(metric)
        if not better or column in unmarked:
            continue
        for rows in blocks.values():
            ranked: dict[float, list[int]] = {}  # number, higher = better -> rows
            for row in rows:
                _, values = grid.lines[row]
                value = values[column]
                may_be_marked = metric == "identity" or row not in behind_in_identity
                if value is not None and may_be_marked:
                    printed = better * round(value.value, 3)
                    ranked.setdefault(printed, []).append(row)
            order = sorted(ranked, reverse=True)
            if len(order) > 1:
                marks |= {(row, column): "textbf" for row in ranked[order[0]]}
            if len(order) > 2:
                marks |= {(row, column): "underline" for row in ranked[order[1]]}
    return marks


def escaped(words: str) -> str:
    """Text as LaTeX prints it."""
    return printable(words).translate(_ESCAPES)
