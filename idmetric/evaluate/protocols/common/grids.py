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
from idmetric.tables import printable

PAPER = " (paper)"  # ends the heads of the papers' numbers


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        title: what all its numbers have in common, such as "differences of methods".
        labels: heads of the columns of text. metrics: heads of the columns of numbers.
        lines: the texts and numbers of each row, None where a number is undefined.
        meanings: of the columns of numbers.
        same: what all rows share: name -> value.
    """

    title: str
    labels: list[str]
    metrics: list[str]
    lines: list[tuple[list[str], list[Value | None]]]
    meanings: dict[str, Column]
    same: dict[str, str]


class Line(NamedTuple):
    """A row of results: its labels, the model among them, and its numbers."""

    labels: dict[str, str]
    numbers: dict[str, Value]


def grids(results: Sequence[Result]) -> list[Grid]:
    """The table of the rows, and that of the differences of methods if there are any."""
    protocol = results[0].protocol
    lines = _lines(results)
    rows = [line for line in lines if "p" not in line.numbers]
    differences = [line for line in lines if "p" in line.numbers]

    tables = []
    if rows:
        tables.append(_grid(protocol, "", rows))
    if differences:
        tables.append(_grid(protocol, "differences of methods", differences))
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
            elif group in ("all", "paired"):
                del labels["group"]
            lines.append(Line(labels, numbers))
    return lines


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """The keys of all mappings, in order of first appearance."""
    names: dict[str, None] = {}
    for mapping in mappings:
        names |= dict.fromkeys(mapping)
    return list(names)


def _grid(protocol: str, title: str, lines: Sequence[Line]) -> Grid:
    """A table of these rows without labels, supports and numbers that all of them share."""
    metrics = _names(line.numbers for line in lines)
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
    meanings = meanings_of([*columns, *same], protocol)

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
    return Grid(title, labels, list(shown), rows, meanings, same)


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
