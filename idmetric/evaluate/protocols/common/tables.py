"""Tables of results: which rows and columns, for a terminal, Markdown and LaTeX, and as files.

    print(tables.table(results))
    print(tables.latex(results, View("method", "subject", show=("identity",))))
    tables.write(results, Path("results"), "generator")

Labels and numbers that are the same in all rows stand below a table once, not in each row. Differences of methods have
a table of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from idmetric.evaluate.protocols.common.protocol import column_of, compared_rows
from idmetric.evaluate.protocols.common.result import (
    Result,
    Row,
    Value,
    as_csv,
    as_json,
    comparisons_of,
    copying,
    footnotes,
    scr_thresholds,
    slug,
    smoke_tests,
    write_items,
)
from idmetric.metric.files.output import replacing
from idmetric.metric.files.tables import aligned, printable
from idmetric.metric.scoring.copies import MANY

Dimensions = dict[str, str]  # name -> value: the model, and a row's labels
Line = tuple[Dimensions, Mapping[str, Value]]


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        protocol: its protocol. title: what all its numbers have in common, such as the metric of a pivot.
        labels: heads of the columns of text. metrics: heads of the columns of numbers.
        lines: the texts and numbers of each row, None where a number is undefined.
        better: for each column of numbers, 1 where higher is better, -1 where lower is, 0 where neither.
        says: measure -> what it is, in a sentence.
        same: what all rows share: name -> value.
    """

    protocol: str
    title: str
    labels: list[str]
    metrics: list[str]
    lines: list[tuple[list[str], list[Value | None]]]
    better: list[int]
    says: dict[str, str]
    same: dict[str, str]


@dataclass(frozen=True)
class View:
    """What a table shows of results.

    Attributes:
        rows, columns: two of "model", "metric" and the rows' labels, such as "method", "dataset" and "subject": their
            values become the rows and the columns. None: a row for each row of the results.
        show: columns of numbers, in this order, whatever their case and punctuation; empty: all (of a pivot, the first,
            unless "metric" is one of its dimensions).
        intervals: with 95 % intervals; None: in LaTeX without, elsewhere with.
    """

    rows: str | None = None
    columns: str | None = None
    show: tuple[str, ...] = ()
    intervals: bool | None = None


class TableError(ValueError):
    """A table that the results do not allow; the message lists what they have."""


# From results to grids


def grids(results: Sequence[Result], view: View = View()) -> list[Grid]:
    """The tables of a view.

    Raises:
        TableError: for a dimension or column that no row has.
    """
    if view.rows and view.columns:
        return _pivots(results, view.rows, view.columns, view.show)
    if view.rows or view.columns:
        raise TableError("rows and columns belong together: give both, such as rows method and columns subject")
    lines = _lines(results)
    found = []
    for kind in (False, True):
        some = [line for line in lines if ("p" in line[1]) == kind]
        if some:
            names = _shown(some, () if kind else view.show)
            title = "differences of methods" if kind else ""
            found.append(_grid(results[0].protocol, title, some, list(some[0][0]), names))
    return found


def _pivots(results: Sequence[Result], rows: str, columns: str, show: Sequence[str]) -> list[Grid]:
    """A table for each metric, or one if "metric" is one of the dimensions."""
    lines = [line for line in _lines(results) if "p" not in line[1]]
    known = list(dict.fromkeys(name for dimensions, _ in lines for name in dimensions))
    for name in (rows, columns):
        if name not in (*known, "metric"):
            raise TableError(f"no row has a {name}: rows and columns can be {', '.join([*known, 'metric'])}")
    if rows == columns:
        raise TableError(f"rows and columns are both {rows}: choose two of {', '.join([*known, 'metric'])}")
    by = {name for result in results for row in result.rows for name in [_group(row)[0]] if name}
    wanted = {rows, columns} - {"metric"}
    lines = [line for line in lines if wanted <= line[0].keys() and line[0].keys() & by <= wanted]
    if not lines:
        raise TableError(f"no row has both a {rows} and a {columns}")
    names = _shown(lines, show)
    if "metric" in (rows, columns):
        return [_pivot(results[0].protocol, lines, rows, columns, names, "")]
    return [_pivot(results[0].protocol, lines, rows, columns, [name], name) for name in (names if show else names[:1])]


def _lines(results: Sequence[Result]) -> list[Line]:
    """Each row's model and labels, printable, and its numbers; a group "subject: dog" is the label subject."""
    found: list[Line] = []
    for result in results:
        for row in result.rows:
            labels = {"model": result.model, **{k: v for k, v in row.items() if isinstance(v, str)}}
            name, value = _group(row)
            if name or value in ("all", "paired"):
                del labels["group"]
            if name:
                labels[name] = value
            labels = {printable(k): printable(v) for k, v in labels.items()}
            found.append((labels, {printable(k): v for k, v in row.items() if isinstance(v, Value)}))
    return found


def _group(row: Row) -> tuple[str, str]:
    """The column and the value by which a row's images were chosen; ("", "all") for all of them."""
    name, colon, value = str(row.get("group", "")).partition(": ")
    return (name, value) if colon else ("", name)


def _shown(lines: Sequence[Line], show: Sequence[str]) -> list[str]:
    """The metrics to show."""
    have = list(dict.fromkeys(name for _, numbers in lines for name in numbers))
    if not show:
        return have
    by_plain = {_plain(name): name for name in have}
    for name in show:
        if _plain(name) not in by_plain:
            raise TableError(f"no column {name}: there are {', '.join(have)}")
    return [by_plain[_plain(name)] for name in show]


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c in "±@.")


def _grid(protocol: str, title: str, lines: Sequence[Line], labels: Sequence[str], metrics: Sequence[str]) -> Grid:
    """A table of these rows without labels, supports and numbers that all of them share."""
    labels = list(dict.fromkeys([*labels, *(name for dimensions, _ in lines for name in dimensions)]))
    several = len(lines) > 1
    same = {
        name: lines[0][0].get(name, "")
        for name in labels
        if (several or name == "model") and len({of.get(name, "") for of, _ in lines}) == 1
    }
    support, about_n = _supports(lines, metrics)
    if len(set(support)) == 1:
        same["n"] = f"{support[0]} ({about_n})" if about_n else support[0]
    elif about_n:
        same["n is of"] = about_n

    columns = {name: [numbers.get(name) for _, numbers in lines] for name in metrics}
    constant = {name for name, column in columns.items() if several and _is_constant(column)}
    if len(constant) < len(columns):
        for name in constant:
            value = columns.pop(name)[0]
            same[name] = text(value, intervals=False)
    heads: dict[str, list[Value | None]] = {}
    for name, column in columns.items():
        heads[name] = column
        if any(v is not None and v.paper is not None for v in column):
            papers = [None if v is None else v.paper for v in column]
            heads[f"{name} (paper)"] = [None if paper is None else Value(paper, None, None, 0) for paper in papers]

    own = [name for name in labels if name not in same]
    texts = [[of.get(name, "") for name in own] + ([n] if "n" not in same else []) for (of, _), n in
             zip(lines, support, strict=True)]  # fmt: skip
    own_names = [name for name in [*heads, *same] if not name.endswith(" (paper)")]
    known = {name: about for name in own_names if (about := column_of(name, protocol))}
    return Grid(
        protocol, title, own + ([] if "n" in same else ["n"]), list(heads),
        [(words, [column[k] for column in heads.values()]) for k, words in enumerate(texts)],
        [0 if title or head not in known else known[head].better for head in heads],
        {head: str(about) for head, about in known.items()},
        {k: v for k, v in same.items() if v},
    )  # fmt: skip


def _supports(lines: Sequence[Line], metrics: Sequence[str]) -> tuple[list[str], str]:
    """The supports of each row, one for all columns that agree in it, and which columns these are if they differ."""
    columns_of: dict[tuple[int | None, ...], list[str]] = {}
    for metric in metrics:
        counts = tuple(numbers[metric].count if metric in numbers else None for _, numbers in lines)
        columns_of.setdefault(counts, []).append(metric)
    supports = []
    for row in range(len(lines)):
        counts_of_row = [counts[row] for counts in columns_of if counts[row] is not None]
        supports.append("/".join(map(str, counts_of_row)))
    several = len(columns_of) > 1
    return supports, " / ".join(", ".join(names) for names in columns_of.values()) if several else ""


def _is_constant(column: Sequence[Value | None]) -> bool:
    """Whether a column has one number, and no number of a paper with it."""
    return len(set(column)) == 1 and (column[0] is None or column[0].paper is None)


def _pivot(protocol: str, lines: Sequence[Line], rows: str, columns: str, metrics: Sequence[str], title: str) -> Grid:
    """The table of one metric, the title, or of several where "metric" is a dimension."""
    cells: dict[tuple[str, ...], dict[str, Value]] = {}
    rest = [name for name in dict.fromkeys(n for of, _ in lines for n in of) if name not in (rows, columns)]
    rest = [name for name in rest if len({of.get(name, "") for of, _ in lines}) > 1]
    for of, numbers in lines:
        for metric in metrics:
            if metric in numbers:
                place = {**of, "metric": metric}
                key = tuple(place.get(name, "") for name in (*rest, rows))
                cells.setdefault(key, {})[place[columns]] = numbers[metric]
    made: list[Line] = [(dict(zip([*rest, rows], key, strict=True)), numbers) for key, numbers in cells.items()]
    grid = _grid(protocol, title, made, [*rest, rows], list(dict.fromkeys(c for row in cells.values() for c in row)))
    about = column_of(title, protocol)
    if about is None:  # one of the dimensions is the metric
        return grid
    better = [0 if name.endswith(" (paper)") else about.better for name in grid.metrics]
    return replace(grid, better=better, says={title: str(about)})


# From results to text


def table(results: Sequence[Result], view: View = View(), width: int = 0, elsewhere: str = "") -> str:
    """Aligned columns, in lines of at most `width` characters; 0 = of any length.

    Intervals are left out first, then columns from the right; a line says which, and `elsewhere` where they are.
    """
    parts = [_terminal(grid, width, view.intervals is not False, elsewhere) for grid in grids(results, view)]
    return "\n".join(parts) + "".join(f"{note}\n" for note in footnotes(results))


def markdown(results: Sequence[Result], view: View = View()) -> str:
    """Markdown tables."""
    parts = [_markdown(grid, view.intervals is not False) for grid in grids(results, view)]
    notes = "".join(f"- {note}\n" for note in footnotes(results))
    return "\n".join([*parts, notes] if notes else parts)


def latex(results: Sequence[Result], view: View = View()) -> str:
    """LaTeX tables (package booktabs): the best number of a column is bold, the second underlined.

    Methods that copy have a dagger and no marks, and of methods that are compared by tests, a column has none unless a
    test shows that the best is ahead.
    The caption names models, revisions, each column, and the reason of missing marks.
    """
    about = {r.model: f" ({r.signature['revision']})" if r.signature.get("revision") else "" for r in results}
    facts = {"model" if len(about) == 1 else "models": ", ".join(model + of for model, of in about.items())}
    facts["idmetric"] = ", ".join(sorted({r.signature.get("idmetric", "") for r in results}))
    copiers = list(dict.fromkeys(name for result in results for name in copying(result)))
    parts = [_latex(grid, facts, view, results, copiers) for grid in grids(results, view)]
    return "\n".join(parts) + "".join(f"% {note}\n" for note in footnotes(results))


def explained(results: Sequence[Result], view: View = View()) -> list[str]:
    """A line for each column: what it is, its unit, its direction and its source."""
    return _sentences(grids(results, view))


FORMATS: dict[str, Callable[[Sequence[Result], View], str]] = {
    "table": table, "json": lambda results, _: as_json(results), "csv": lambda results, _: as_csv(results),
    "markdown": markdown, "latex": latex,
}  # fmt: skip


def write(results: Sequence[Result], out: Path, name: str, view: View = View()) -> list[Path]:
    """Write `name`.json and .csv (all numbers), .md and .tex (the view), each atomically.

    The items go to `name`.MODEL.TABLE.parquet.

    Raises:
        ImportError: if there are items and pyarrow is missing.
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

    for ending, content in {**texts, "json": as_json(results, files)}.items():
        path = out / f"{name}.{ending}"
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
        written.append(path)
    return written


# From grids to text


def text(value: Value | None, intervals: bool = True) -> str:
    """A number as text, three decimals, with its interval in brackets."""
    if value is None:
        return "-"
    if not intervals or value.low is None or value.high is None:
        return _figure(value.value)
    return f"{_figure(value.value)} [{_figure(value.low)}, {_figure(value.high)}]"


def _figure(number: float) -> str:
    return f"{round(number, 3) + 0.0:.3f}"  # without the sign of -0.0001


def _terminal(grid: Grid, width: int, intervals: bool, elsewhere: str) -> str:
    shown, kept = intervals, len(grid.metrics)
    while True:
        lines = _aligned(grid, kept, shown)
        if not width or max(map(len, lines)) <= width or kept <= 1:
            break
        if shown:
            shown = False
        else:
            kept -= 1
    spread = any(value is not None and value.low is not None for _, numbers in grid.lines for value in numbers)
    left = (["intervals"] if intervals and not shown and spread else []) + grid.metrics[kept:]
    title = [f"{grid.title}:"] if grid.title else []
    more = [f"not shown for lack of room: {', '.join(left)}{f' ({elsewhere})' if elsewhere else ''}"] if left else []
    return "\n".join([*title, *lines, *_below(grid), *more]) + "\n"


def _aligned(grid: Grid, kept: int, intervals: bool) -> list[str]:
    cells = [grid.labels + grid.metrics[:kept]]
    cells += [[*labels, *(text(value, intervals) for value in numbers[:kept])] for labels, numbers in grid.lines]
    return aligned(cells, right=range(len(grid.labels), len(cells[0])))


def _below(grid: Grid) -> list[str]:
    """What all rows share, in a line."""
    return [f"in all rows: {', '.join(f'{k} {v}' for k, v in grid.same.items())}"] if grid.same else []


def _markdown(grid: Grid, intervals: bool) -> str:
    lines = [[*labels, *(text(value, intervals) for value in numbers)] for labels, numbers in grid.lines]
    head, *body = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in [grid.labels + grid.metrics, *lines]
    )
    title = [f"**{grid.title}**", ""] if grid.title else []
    rule = "|" + "---|" * len(grid.labels) + "---:|" * len(grid.metrics)
    return "\n".join([*title, head, rule, *body, *(["", *_below(grid)] if grid.same else [])]) + "\n"


def _sentences(grids: Iterable[Grid]) -> list[str]:
    return [f"{name}: {says}" for name, says in {k: v for grid in grids for k, v in grid.says.items()}.items()]


# LaTeX

_DAGGER = "$^\\dagger$"


def _latex(grid: Grid, about: Mapping[str, str], view: View, results: Sequence[Result], copiers: Sequence[str]) -> str:
    # marks: none of methods that copy, nor in columns without a clear winner
    label = next((name for name in ("method", "step") if name in grid.labels), "")
    skipped = {row for row, (texts, _) in enumerate(grid.lines) if label and texts[grid.labels.index(label)] in copiers}
    unclear = [] if view.rows or grid.title else _unclear(results, grid.metrics, copiers)
    unmarked = {grid.metrics.index(name) for name in unclear}
    is_untested = bool(comparisons_of(results[0])) and (len(results) > 1 or bool(view.rows) or bool(grid.title))
    if is_untested:  # the tests compare methods over all subjects, by one model
        unmarked = set(range(len(grid.metrics)))
    if view.columns in ("method", "step"):
        unmarked |= {column for column, name in enumerate(grid.metrics) if name in copiers}
    marks = _marks(grid, skipped, unmarked)

    # head and lines
    arrows = {1: " $\\uparrow$", -1: " $\\downarrow$", 0: ""}
    has_daggers = bool(skipped)
    head = [*map(escaped, grid.labels)]
    for name, better in zip(grid.metrics, grid.better, strict=True):
        copies = view.columns in ("method", "step") and name in copiers
        has_daggers |= copies
        head.append(escaped(name) + (_DAGGER if copies else "") + arrows[better])
    lines = []
    for row, (texts, numbers) in enumerate(grid.lines):
        cells = [
            escaped(text) + (_DAGGER if row in skipped and name == label else "")
            for name, text in zip(grid.labels, texts, strict=True)
        ]
        cells += [_number(value, marks.get((row, k), ""), view.intervals is True) for k, value in enumerate(numbers)]
        line = " & ".join(cells) + " \\\\"
        lines.append(f"{{}}{line}" if line.startswith("[") else line)  # a bracket would be an option of the rule

    facts = [f"{k} {v}" for k, v in {**grid.same, **about}.items() if v]
    sentences = [escaped(f"{grid.protocol}{f', {grid.title}' if grid.title else ''}: {', '.join(facts)}.")]
    sentences += [escaped(f"{line}.") for line in _sentences([grid])]
    sentences += _reservations(grid, results, has_daggers, unclear)
    if is_untested:
        sentences.append("No marks: methods are tested against each other over all subjects, by one model at a time.")
    return "\n".join([
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{' '.join(sentences)}}}",
        f"\\begin{{tabular}}{{{'l' * len(grid.labels)}{'r' * len(grid.metrics)}}}",
        "\\toprule",
        " & ".join(head) + " \\\\",
        "\\midrule",
        *lines,
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]) + "\n"  # fmt: skip


def _reservations(grid: Grid, results: Sequence[Result], has_daggers: bool, unclear: Sequence[str]) -> list[str]:
    """The sentences of a caption on thresholds, copies, missing marks and smoke-test models."""
    sentences = []
    if "SCR" in (*grid.metrics, *grid.same, grid.title):
        sentences += [escaped(f"{line}.") for line in scr_thresholds(results)]
    if has_daggers:
        most = f"more than {100 * MANY:g} % of the images are copies"
        if compared_rows(grid.protocol) == "step":
            most = "more copies than the best step may have"
        sentences.append(f"{_DAGGER} {escaped(f'{most}, so that no number of it is marked.')}")
    if unclear:
        sentences.append(
            f"No marks in {escaped(', '.join(unclear))}: no test shows that the best is ahead of all (sign-flip test "
            "over subjects, Holm's correction)."
        )
    return sentences + [escaped(f"{note}.") for note in smoke_tests(results)]


def _unclear(results: Sequence[Result], metrics: Sequence[str], copiers: Sequence[str]) -> list[str]:
    """The columns in which no test shows that a method is ahead of all others without copies.

    None for results of several models, or without tests.
    """
    comparisons = comparisons_of(results[0])
    if len(results) > 1 or not comparisons:
        return []
    rows = {str(row["method"]): row for row in results[0].rows if row.get("group") == "all" and "method" in row}
    unclear = []
    for metric in metrics:
        values = {}
        for name, row in rows.items():
            value = row.get(metric)
            if isinstance(value, Value) and name not in copiers:
                values[name] = value.value
        if not values:
            continue
        best = max(values, key=lambda name: values[name])
        tests = comparisons.get(metric, [])
        behind = {c.b if c.a == best else c.a for c in tests if c.is_clear and best in (c.a, c.b)}
        if not values.keys() - {best} <= behind:
            unclear.append(metric)
    return unclear


def _number(value: Value | None, mark: str, intervals: bool) -> str:
    if value is None:
        return "--"
    shown = _figure(value.value).replace("-", "$-$")
    shown = f"\\{mark}{{{shown}}}" if mark else shown
    if intervals and value.low is not None and value.high is not None:
        low, high = (_figure(end).replace("-", "$-$") for end in (value.low, value.high))
        shown += f" {{\\scriptsize [{low}, {high}]}}"
    return shown


def _marks(grid: Grid, skipped: Collection[int], unmarked: Collection[int]) -> dict[tuple[int, int], str]:
    """Row and column of the best and the second number of each column, as printed, among rows that compete.

    These are the rows that differ in the model alone, or else in the method, or else in the last label.

    Args:
        skipped: rows that do not compete. unmarked: columns without marks.
    """
    last = [name for name in grid.labels if name != "n"][-1:]
    competing = next((name for name in ("model", "method", *last) if name in grid.labels), None)
    blocks: dict[tuple[str, ...], list[int]] = {}
    for row, (labels, _) in enumerate(grid.lines):
        others = tuple(t for n, t in zip(grid.labels, labels, strict=True) if n not in (competing, "n"))
        if row not in skipped:
            blocks.setdefault(others, []).append(row)
    found = {}
    for rows in blocks.values():
        for k, better in enumerate(grid.better):
            numbers = {row: grid.lines[row][1][k] for row in rows}
            printed = {row: better * round(v.value, 3) for row, v in numbers.items() if v is not None}
            order = sorted(set(printed.values()), reverse=True)
            if better and len(order) > 1 and k not in unmarked:
                for row, value in printed.items():
                    if value == order[0]:
                        found[row, k] = "textbf"
                    elif value == order[1] and len(order) > 2:
                        found[row, k] = "underline"
    return found


def escaped(words: str) -> str:
    """Text as LaTeX prints it."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {"<": "$<$", ">": "$>$", "|": "$|$"}
    return "".join(special.get(character, character) for character in printable(words))
