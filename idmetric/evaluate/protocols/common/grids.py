"""From results to tables: which rows and columns a table shows.

Labels and numbers that are the same in all rows stand below a table once, not in each row. Differences of methods have
a table of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from idmetric.evaluate.protocols.common.protocol import column_of
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.metric.errors import RequestError
from idmetric.metric.files.tables import printable

PAPER = " (paper)"  # ends the heads of the papers' numbers


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        protocol: its protocol. title: what all its numbers have in common, such as the metric of a pivot.
        labels: heads of the columns of text. metrics: heads of the columns of numbers.
        lines: the texts and numbers of each row, None where a number is undefined.
        meanings: of the columns of numbers, or of the title.
        same: what all rows share: name -> value.
    """

    protocol: str
    title: str
    labels: list[str]
    metrics: list[str]
    lines: list[tuple[list[str], list[Value | None]]]
    meanings: dict[str, Column]
    same: dict[str, str]

    def better(self, metric: str) -> int:
        """1 where higher is better, -1 where lower is, 0 where neither."""
        name = self.title or metric
        if metric.endswith(PAPER) or name not in self.meanings:
            return 0
        return self.meanings[name].better


@dataclass(frozen=True)
class View:
    """What a table shows of results.

    Attributes:
        rows, columns: two of "model", "metric" and the rows' labels, such as "method", "dataset" and "subject": their
            values become the rows and the columns. None: a row for each row of the results.
        show: columns of numbers, in this order, whatever their case and punctuation; empty: all (of a pivot, the first,
            unless "metric" is one of its dimensions).
        intervals: with 95 % intervals; None: in LaTeX without, elsewhere with.
        caption: of LaTeX: "short", or "long" with what each column is.
    """

    rows: str | None = None
    columns: str | None = None
    show: tuple[str, ...] = ()
    intervals: bool | None = None
    caption: str = "short"


class Line(NamedTuple):
    """A row of results: its labels, the model among them, its numbers, and the property that its images share."""

    labels: dict[str, str]
    numbers: dict[str, Value]
    group: str = ""


def grids(results: Sequence[Result], view: View = View()) -> list[Grid]:
    """The tables of a view.

    Raises:
        RequestError: for a dimension or column that no row has, or a view with rows or columns alone.
    """
    if (view.rows is None) != (view.columns is None):
        raise RequestError("rows and columns belong together: give both, such as rows method and columns subject")
    protocol = results[0].protocol
    lines = _lines(results)
    rows = [line for line in lines if "p" not in line.numbers]
    differences = [line for line in lines if "p" in line.numbers]
    if view.rows and view.columns:
        return _pivots(protocol, rows, view.rows, view.columns, view.show)

    tables = []
    if rows:
        tables.append(_grid(protocol, "", rows, _shown(rows, view.show)))
    if differences:
        tables.append(_grid(protocol, "differences of methods", differences, _shown(differences)))
    return tables


def _lines(results: Sequence[Result]) -> list[Line]:
    """Each row with printable names; a group "subject: dog" is the label subject."""
    lines = []
    for result in results:
        for row in result.rows:
            labels = {"model": printable(result.model)}
            numbers = {}
            for name, entry in row.items():
                if isinstance(entry, Value):
                    numbers[printable(name)] = entry
                else:
                    labels[printable(name)] = printable(entry)

            group, colon, member = labels.get("group", "").partition(": ")
            if colon:
                del labels["group"]
                labels[group] = member
                lines.append(Line(labels, numbers, group))
            else:
                if group in ("all", "paired"):
                    del labels["group"]
                lines.append(Line(labels, numbers))
    return lines


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """The keys of all mappings, in order of first appearance."""
    names: dict[str, None] = {}
    for mapping in mappings:
        names |= dict.fromkeys(mapping)
    return list(names)


def _shown(lines: Sequence[Line], show: Sequence[str] = ()) -> list[str]:
    """The columns of numbers to show: those that `show` spells in any way, or all."""
    metrics = _names(line.numbers for line in lines)
    if not show:
        return metrics
    by_plain_name = {_plain(name): name for name in metrics}
    for name in show:
        if _plain(name) not in by_plain_name:
            raise RequestError(f"no column {name}: there are {', '.join(metrics)}")
    return [by_plain_name[_plain(name)] for name in show]


def _plain(name: str) -> str:
    """A column's name, to compare names by; some differ by these signs alone."""
    return "".join(character for character in name.lower() if character.isalnum() or character in "±@.")


def _pivots(protocol: str, lines: Sequence[Line], rows: str, columns: str, show: Sequence[str]) -> list[Grid]:
    """A table for each metric, or one if "metric" is one of the dimensions."""
    dimensions = [*_names(line.labels for line in lines), "metric"]
    for name in (rows, columns):
        if name not in dimensions:
            raise RequestError(f"no row has a {name}: rows and columns can be {', '.join(dimensions)}")
    if rows == columns:
        raise RequestError(f"rows and columns are both {rows}: choose two of {', '.join(dimensions)}")

    wanted = {rows, columns} - {"metric"}
    groups = ("", rows, columns)
    lines = [line for line in lines if wanted <= line.labels.keys() and line.group in groups]
    if not lines:
        raise RequestError(f"no row has both a {rows} and a {columns}")

    metrics = _shown(lines, show)
    if "metric" in (rows, columns):
        return [_pivot(protocol, lines, rows, columns, metrics, "")]
    if not show:
        metrics = metrics[:1]
    return [_pivot(protocol, lines, rows, columns, [metric], metric) for metric in metrics]


def _pivot(
    protocol: str,
    lines: Sequence[Line],
    rows: str,
    columns: str,
    metrics: Sequence[str],
    title: str,
) -> Grid:
    """The table of one metric, the title, or of several where "metric" is a dimension."""
    heads = []
    for name in _names(line.labels for line in lines):
        texts = {line.labels.get(name, "") for line in lines}
        texts_of_columns = {(line.labels.get(columns, ""), line.labels.get(name, "")) for line in lines}
        is_of_column = len(texts_of_columns) == len({column for column, _ in texts_of_columns})
        if name not in (rows, columns) and len(texts) > 1 and not is_of_column:
            heads.append(name)
    heads.append(rows)

    cells: dict[tuple[str, ...], dict[str, Value]] = {}
    for line in lines:
        for metric in metrics:
            if metric in line.numbers:
                labels = {**line.labels, "metric": metric}
                key = tuple(labels.get(name, "") for name in heads)
                row = cells.setdefault(key, {})
                row[labels[columns]] = line.numbers[metric]

    pivoted = []
    for key, numbers in cells.items():
        labels = dict(zip(heads, key, strict=True))
        pivoted.append(Line(labels, numbers))
    return _grid(protocol, title, pivoted, _names(cells.values()))


def _grid(protocol: str, title: str, lines: Sequence[Line], metrics: Sequence[str]) -> Grid:
    """A table of these rows without labels, supports and numbers that all of them share."""
    same, labels = {}, []
    for name in _names(line.labels for line in lines):
        texts = {line.labels.get(name, "") for line in lines}
        if len(texts) == 1 and (len(lines) > 1 or name == "model"):
            same[name] = texts.pop()
        else:
            labels.append(name)

    supports, parts = _supports(lines, metrics)
    has_one_support = len(set(supports)) == 1
    if has_one_support:
        same["n"] = supports[0]
        if parts:
            same["n"] += f" ({parts})"
    elif parts:
        same["n is of"] = parts

    columns = {name: [line.numbers.get(name) for line in lines] for name in metrics}
    constant = []
    if len(lines) > 1:
        constant = [name for name, column in columns.items() if _is_constant(column)]
    if len(constant) < len(columns):
        for name in constant:
            same[name] = text(columns.pop(name)[0], intervals=False)
    meanings = meanings_of([title], protocol) or meanings_of([*columns, *same], protocol)

    # the papers' numbers, each next to ours
    shown: dict[str, list[Value | None]] = {}
    for name, column in columns.items():
        shown[name] = column
        papers = [_paper_value(value) for value in column]
        if set(papers) != {None}:
            shown[name + PAPER] = papers

    rows = []
    for number, line in enumerate(lines):
        row_texts = [line.labels.get(name, "") for name in labels]
        if not has_one_support:
            row_texts.append(supports[number])
        rows.append((row_texts, [column[number] for column in shown.values()]))
    if not has_one_support:
        labels.append("n")
    same = {name: value for name, value in same.items() if value}
    return Grid(protocol, title, labels, list(shown), rows, meanings, same)


def _paper_value(value: Value | None) -> Value | None:
    """The paper's number next to ours, if there is one."""
    if value is None or value.paper is None:
        return None
    return Value(value.paper, None, None, 0)


def meanings_of(names: Iterable[str], protocol: str) -> dict[str, Column]:
    """What the columns of these names mean, as far as a protocol describes them."""
    meanings = {}
    for name in names:
        column = column_of(name, protocol)
        if column is not None:
            meanings[name] = column
    return meanings


def _supports(lines: Sequence[Line], metrics: Sequence[str]) -> tuple[list[str], str]:
    """The supports of each row, one for all columns that agree in it, and which columns these are if they differ."""
    metrics_of: dict[tuple[int | None, ...], list[str]] = {}
    for metric in metrics:
        counts: list[int | None] = []
        for line in lines:
            value = line.numbers.get(metric)
            counts.append(None if value is None else value.count)
        metrics_of.setdefault(tuple(counts), []).append(metric)

    supports = []
    for counts_of_row in zip(*metrics_of, strict=True):
        texts = [str(count) for count in counts_of_row if count is not None]
        supports.append("/".join(texts))
    if len(metrics_of) == 1:
        return supports, ""
    names = map(", ".join, metrics_of.values())
    return supports, " / ".join(names)


def _is_constant(column: Sequence[Value | None]) -> bool:
    """Whether a column has one number, and no number of a paper with it."""
    return len(set(column)) == 1 and _paper_value(column[0]) is None


def text(value: Value | None, intervals: bool = True) -> str:
    """A number as text, three decimals, with its interval in brackets."""
    if value is None:
        return "-"
    if not intervals or value.low is None or value.high is None:
        return figure(value.value)
    return f"{figure(value.value)} [{figure(value.low)}, {figure(value.high)}]"


def figure(number: float) -> str:
    """A number with three decimals, without the sign of -0.0001."""
    return f"{round(number, 3) + 0.0:.3f}"
