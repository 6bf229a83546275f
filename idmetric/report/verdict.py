"""The first screen of the pages of methods and of training steps: the verdict in words, a chart, a summary, signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from idmetric.protocols.common.columns import listed
from idmetric.protocols.common.measures import measure
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.generator.columns import CLIP, copying
from idmetric.report.chart import Chart, Point, Scale, ends_of, percent

Numbers = Mapping[str, Mapping[str, Value]]  # method or step -> its numbers
Pairs = Mapping[tuple[str, str], Value]  # two methods -> the difference
_SUMMARY = ("identity", "worst", "copies", "diversity", CLIP, "drift", "SCR", "leaning", "Vendi", "published")
_COLUMNS = 5  # of numbers in the summary, next to the names


@dataclass(frozen=True)
class Bar:
    """A number as a bar from 0: its ends and those of its interval, in percent of the column's range."""

    value: Value
    low: float
    high: float
    ends: tuple[float, float] | None


@dataclass(frozen=True)
class Sign:
    """A difference: "+" or "−" where it is beyond its interval, "≈" within it; `good` for the row's method."""

    sign: str
    number: str
    about: str
    good: bool | None


@dataclass(frozen=True)
class Verdict:
    """What the numbers of a model mean for methods or steps.

    Attributes:
        headline: a sentence. details: what it rests on, and which of them copy.
        tiles: name, number, and whether it warns.
        columns: the metrics of the summary. rows: method or step -> its bars.
        best: the names that the headline prefers. copies: those that return copies.
        matrices: metric -> methods of row and column -> the sign of the row's number less the column's.
    """

    model: str
    headline: str
    details: list[str]
    tiles: list[tuple[str, str, bool]]
    columns: list[str]
    rows: dict[str, list[Bar | None]]
    best: list[str]
    copies: list[str]
    chart: Chart | None
    matrices: dict[str, dict[tuple[str, str], Sign]]


def verdict(result: Result) -> Verdict | None:
    """The verdict on methods or steps; None for results of other protocols."""
    label = {"generator": "method", "checkpoints": "step"}.get(result.protocol)
    if label is None:
        return None
    rows = {str(row[label]): row for row in result.rows if row.get("group", "all") == "all"}
    found = {name: {k: v for k, v in row.items() if isinstance(v, Value)} for name, row in rows.items()}
    if label == "method":
        copies = copying(result)
        found = dict(sorted(found.items(), key=lambda of: (of[0] in copies, -of[1]["identity"].value)))
        best, headline, details = _on_methods(found, copies, _pairs(result.rows, "identity"))
        chart = _trade_off(found, best, copies)
    else:
        most = float(result.settings.get("max_copies", 0))
        copies = [name for name, numbers in found.items() if "copies" in numbers and numbers["copies"].value > most]
        best = [name for name, row in rows.items() if row.get("best")]
        reason = result.notes[0].partition(": ")[2]
        headline = f"Keep step {best[0]}" if best else "No step qualifies"
        details = [f"Step {best[0]} is {reason}." if best else f"{reason[:1].upper()}{reason[1:]}."]
        chart = _course(found, best, copies)

    metrics = list(dict.fromkeys(name for numbers in found.values() for name in numbers))
    columns = [m for stem in _SUMMARY for m in metrics if m.partition("@")[0] == stem][:_COLUMNS]
    bars = {m: _bars([numbers.get(m) for numbers in found.values()]) for m in columns}
    signs = {m: _signs(m, pairs) for m in metrics if (pairs := _pairs(result.rows, m))}
    return Verdict(
        result.model, headline, details + _on_copies(label, found, copies), _tiles(label, found, best, copies),
        columns, {name: [bars[m][k] for m in columns] for k, name in enumerate(found)}, best, copies, chart, signs,
    )  # fmt: skip


# In words


def _on_methods(found: Numbers, copies: Sequence[str], pairs: Pairs) -> tuple[list[str], str, list[str]]:
    """The methods that keep identity best, and that in a sentence, with its reasons; `found` begins with the best."""
    identity = {name: numbers["identity"].value for name, numbers in found.items() if name not in copies}
    if not identity:
        return [], "Every method copies: no identity here is of new pictures", []
    first, *others = identity
    details = []
    if real := found[first].get("real"):
        details.append(f"Real photos of the subjects reach {_number(real.value)} among themselves.")
    if not others:
        alone = " is the only method without copies: its identity is" if len(found) > 1 else " has an identity of"
        return [first], f"{first}{alone} {_number(identity[first])}", details

    ahead = {name: _turned(pairs, first, name) for name in others}
    level = [name for name, apart in ahead.items() if apart is not None and apart.low is not None and apart.low <= 0]
    closest = ahead[others[0]]
    lead = f"{first} reaches {_number(identity[first])}, {others[0]} {_number(identity[others[0]])}"
    if closest is not None:
        lead += f": {_number(closest.value)} apart on equal prompts and seeds"
        if closest.low is None:
            lead += ", without an interval"
        else:
            beyond = "within" if level else "beyond"
            lead += f", {beyond} the 95\u00a0% interval ({_interval(closest)})"
    headline = f"{first} keeps identity best"
    if level:
        headline = f"No clear winner: {first} and {listed(level)} keep identity equally well"
    return [first, *level], headline, [f"{lead}.", *details]


def _on_copies(label: str, found: Numbers, copies: Sequence[str]) -> list[str]:
    """A sentence on what returns copies, if anything does."""
    if not copies:
        return []
    shares = [f"{name} ({100 * found[name]['copies'].value:.0f}\u00a0%)" for name in copies]
    shares[0] = shares[0].replace("%", "% of the images")
    several = len(copies) > 1
    start = f"Step{'s' if several else ''} " if label == "step" else ""
    names = f"{', '.join(shares[:-1])} and {shares[-1]} copy" if several else f"{shares[0]} copies"
    return [f"{start}{names} references or training images, which raises identity."]


def _tiles(label: str, found: Numbers, best: Sequence[str], copies: Sequence[str]) -> list[tuple[str, str, bool]]:
    tiles = [("Methods" if label == "method" else "Steps", str(len(found)), False)]
    if best:
        about = found[best[0]]
        tiles.append(("Best identity", _number(about["identity"].value), False))
        if "real" in about:
            tiles.append(("Real photos", _number(about["real"].value), False))
        tiles.append(("Images each", str(about["identity"].count), False))
    return [*tiles, ("With copies", str(len(copies)), True)] if copies else tiles


def _number(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def _interval(value: Value) -> str:
    return "" if value.low is None or value.high is None else f"{_number(value.low)} to {_number(value.high)}"


# The summary and the differences


def _bars(column: Sequence[Value | None]) -> list[Bar | None]:
    """The numbers of a column in one range, which holds 0 and all intervals, and shares up to 1."""
    ends = [*ends_of([value for value in column if value is not None]), 0.0]
    low, high = min(ends), max(ends)
    high = high if high > low else low + 1

    def bar(value: Value) -> Bar:
        start, end = sorted(percent(x, low, high) for x in (0.0, value.value))
        limits = None if value.low is None or value.high is None else (percent(value.low, low, high),
                                                                       percent(value.high, low, high))  # fmt: skip
        return Bar(value, start, end, limits)

    return [None if value is None else bar(value) for value in column]


def _pairs(rows: Sequence[Row], metric: str) -> dict[tuple[str, str], Value]:
    """The differences of two methods in a metric, of the rows `a - b`."""
    names = [str(row["method"]) for row in rows if row.get("group") == "all"]
    both = {f"{a} - {b}": (a, b) for a in names for b in names}
    return {
        both[str(row["method"])]: value
        for row in rows
        if row.get("group") == "paired" and isinstance(value := row.get(metric), Value)
    }


def _turned(pairs: Pairs, a: str, b: str) -> Value | None:
    """The number of a less that of b; None where they were not compared."""
    if (a, b) in pairs:
        return pairs[a, b]
    v = pairs.get((b, a))
    if v is None:
        return None
    return Value(-v.value, None if v.high is None else -v.high, None if v.low is None else -v.low, v.count)


def _signs(metric: str, pairs: Pairs) -> dict[tuple[str, str], Sign]:
    better = about.better if (about := measure(metric, "generator")) else 0
    found = {}
    for a, b in [*pairs, *((b, a) for a, b in pairs)]:
        value = _turned(pairs, a, b)
        if value is None:
            continue
        sign = ""
        if value.low is not None and value.high is not None:
            sign = "+" if value.low > 0 else "−" if value.high < 0 else "≈"
        good = None if sign in ("", "≈") or not better else (sign == "+") == (better > 0)
        words = f"95 % interval {_interval(value)}" if sign else "no interval"
        found[a, b] = Sign(sign, _number(value.value), f"{a} less {b}: {_number(value.value)}, {words}", good)
    return found


# The charts


def _trade_off(found: Numbers, best: Sequence[str], copies: Sequence[str]) -> Chart | None:
    """Identity of methods against diversity, or else CLIP-T; None with neither of several methods."""
    other = next((m for m in ("diversity", CLIP) if sum(m in numbers for numbers in found.values()) > 1), None)
    if other is None:
        return None
    both = {name: (numbers["identity"], numbers[other]) for name, numbers in found.items() if other in numbers}
    real = [numbers["real"].value for numbers in found.values() if "real" in numbers][:1]
    x = Scale.of("identity", ends_of([pair[0] for pair in both.values()]) + real)
    y = Scale.of(other, ends_of([pair[1] for pair in both.values()]))
    points = [
        Point(name, x.at(a.value), y.at(b.value), x.span(a), y.span(b), name in best, name in copies)
        for name, (a, b) in both.items()
    ]
    about = "; ".join(f"{name} {_number(a.value)} and {_number(b.value)}" for name, (a, b) in both.items())
    return Chart(f"Identity and {other} of each method: {about}", x, y, points, real=x.at(real[0]) if real else None)


def _course(found: Numbers, best: Sequence[str], copies: Sequence[str]) -> Chart | None:
    """Identity over training steps."""
    identity = {name: numbers["identity"] for name, numbers in found.items() if "identity" in numbers}
    if len(identity) < 2:
        return None
    real = [numbers["real"].value for numbers in found.values() if "real" in numbers][:1]
    x = Scale.of("step", [float(name) for name in identity])
    y = Scale.of("identity", ends_of(list(identity.values())) + real)
    points = [
        Point(f"step {name}" if name in best else "", x.at(float(name)), y.at(value.value), None, y.span(value),
              name in best, name in copies)
        for name, value in identity.items()
    ]  # fmt: skip
    about = "; ".join(f"step {name} {_number(value.value)}" for name, value in identity.items())
    line = [(point.x, point.y) for point in points]
    return Chart(f"Identity over training steps: {about}", x, y, points, line, y.at(real[0]) if real else None, "y")
