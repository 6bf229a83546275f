"""The first screen of the pages of methods and of training steps: the verdict in words, a summary, signs, a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from idmetric.evaluate.protocols.common.columns import listed
from idmetric.evaluate.protocols.common.protocol import compared_rows
from idmetric.evaluate.protocols.common.result import Result, Value, comparisons_of, copying, numbers_of
from idmetric.evaluate.protocols.generator.columns import CLIP, NOT_CHECKED
from idmetric.evaluate.statistics.paired import Comparison
from idmetric.match.page.chart import Scale
from idmetric.match.page.render import number

Numbers = Mapping[str, Mapping[str, Value]]  # method or step -> its numbers
Pairs = Mapping[tuple[str, str], Comparison]  # two methods -> the number of the first less that of the second
_SUMMARY = ("identity", "worst", "copies", "diversity", CLIP, "drift", "SCR", "leaning", "Vendi", "published")


@dataclass(frozen=True)
class Chart:
    """Points of methods or steps: name, x and y; `real` is the identity of real photos."""

    x: Scale
    y: Scale
    points: list[tuple[str, Value, Value]]
    real: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What the numbers of a model mean for methods or steps.

    Attributes:
        headline: a sentence. details: what it rests on, and which of them copy.
        rows: method or step -> its numbers; methods without copies come first, by identity.
        columns: at most five metrics of the summary -> the range of its bars, which holds 0 and all intervals.
        best: names that the headline prefers. badge: "best", or "highest" or "tied" where no test says so.
        copies: names of methods or steps that return copies.
        pairs: metric -> the differences of methods, in both directions.
    """

    model: str
    headline: str
    details: list[str]
    rows: Numbers
    columns: dict[str, tuple[float, float]]
    best: list[str]
    badge: str
    copies: list[str]
    pairs: dict[str, Pairs]
    chart: Chart | None


def verdict(result: Result) -> Verdict | None:
    """The verdict on methods or steps; None for results of other protocols."""
    label = compared_rows(result.protocol)
    if not label:
        return None
    rows = {str(row[label]): row for row in result.rows if row.get("group", "all") == "all"}
    numbers = {name: numbers_of(row) for name, row in rows.items()}
    copies = copying(result)
    pairs: dict[str, Pairs] = {}
    for metric, comparisons in comparisons_of(result).items():
        by_names = {}
        for comparison in comparisons:
            by_names[comparison.a, comparison.b] = comparison
            by_names[comparison.b, comparison.a] = comparison.reversed()
        pairs[metric] = by_names

    if label == "method":
        order = sorted(numbers, key=lambda name: (name in copies, -numbers[name]["identity"].value))
        numbers = {name: numbers[name] for name in order}
        best, headline, details = _on_methods(numbers, copies, pairs.get("identity", {}))
    else:
        best = [name for name, row in rows.items() if row.get("best")]
        headline, details = _on_steps(best, result.notes[0])
    badge = "best"
    if headline.endswith("has the highest identity"):
        badge = "highest"
    elif len(best) > 1:
        badge = "tied"

    details += _on_copies(label, numbers, copies)
    if any(row.get("copies") == NOT_CHECKED for row in rows.values()):
        details.append("Copies were not checked: images show several subjects.")
    details += [f"{_capitalized(note)}." for note in result.notes if note.startswith("compared on")]
    return Verdict(
        model=result.model,
        headline=headline,
        details=details,
        rows=numbers,
        columns=_columns(numbers),
        best=best,
        badge=badge,
        copies=copies,
        pairs=pairs,
        chart=_chart(label, numbers),
    )


def _columns(rows: Numbers) -> dict[str, tuple[float, float]]:
    """The metrics of the summary, and the range of their bars."""
    values: dict[str, list[Value]] = {}
    for numbers in rows.values():
        for metric, value in numbers.items():
            values.setdefault(metric, []).append(value)
    stems = {metric: metric.partition("@")[0] for metric in values}
    shown = sorted(
        (metric for metric in values if stems[metric] in _SUMMARY), key=lambda metric: _SUMMARY.index(stems[metric])
    )

    columns = {}
    for metric in shown[:5]:
        ends = [*_ends(values[metric]), 0.0]
        low, high = min(ends), max(ends)
        if low == high:  # all are 0
            high = 1.0
        columns[metric] = (low, high)
    return columns


def _on_steps(best: Sequence[str], note: str) -> tuple[str, list[str]]:
    """The step to keep in a sentence, and the reasons of the protocol's note."""
    start, _, reason = note.partition(": ")
    if not best:
        return "No step qualifies", [f"{_capitalized(reason)}."]
    if start.startswith("best step"):
        return f"Keep step {best[0]}", [f"Step {best[0]} is {reason}."]
    return f"No clear best step: step {best[0]} has the highest identity", [f"The identity is {reason}."]


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _on_methods(
    rows: Numbers,
    copies: Sequence[str],
    pairs: Pairs,
) -> tuple[list[str], str, list[str]]:
    """The methods that keep identity best, and that in a sentence, with its reasons; `rows` begin with the best."""
    identity = {}
    for name, numbers in rows.items():
        if name not in copies:
            identity[name] = number(numbers["identity"].value)
    if not identity:
        return [], "Every method copies: no identity here is of new pictures", []
    best, *rivals = identity
    details = []
    if "real" in rows[best]:
        details.append(f"Real photos of the subjects reach {number(rows[best]['real'].value)} among themselves.")
    if "floor" in rows[best]:
        details.append(f"The same prompts without references reach {number(rows[best]['floor'].value)}.")
    if not rivals and len(rows) == 1:
        return [best], f"{best} has an identity of {identity[best]}", details
    if not rivals:
        return [best], f"{best} is the only method without copies: its identity is {identity[best]}", details

    nearest = rivals[0]
    lead = _lead(pairs.get((best, nearest)))
    details.insert(0, f"{best} reaches {identity[best]}, {nearest} {identity[nearest]}; {lead}.")

    # who is clearly behind
    compared = {name: pairs[best, name] for name in rivals if (best, name) in pairs}
    if len(compared) < len(rivals):
        return [best], f"No clear winner: {best} has the highest identity", details
    for comparison in compared.values():
        if comparison.too_few:
            details.insert(1, f"{_capitalized(comparison.too_few)}.")
            return [best], f"Too few subjects for a winner: {best} has the highest identity", details
    level = []
    for name, comparison in compared.items():
        if not comparison.is_clear or comparison.difference <= 0:
            level.append(name)
    if level:
        return [best, *level], f"No clear winner: {best} and {listed(level)} are too close to call", details
    return [best], f"{best} keeps identity best", details


def _lead(comparison: Comparison | None) -> str:
    """The lead of the best method over the second."""
    if comparison is None:
        return "the two were not compared on equal prompts and seeds"
    interval = "no interval"
    if comparison.low is not None and comparison.high is not None:
        interval = f"95\u00a0% interval {number(comparison.low)} to {number(comparison.high)}"
    difference = number(comparison.difference)
    return f"on equal prompts and seeds, it leads by {difference} ({interval}, p = {comparison.p_holm:.3f})"


def _on_copies(label: str, rows: Numbers, copies: Sequence[str]) -> list[str]:
    """A sentence on what returns copies, if anything does."""
    if not copies:
        return []
    shares = []
    for name in copies:
        prefix = "step " if label == "step" else ""
        shares.append(f"{prefix}{name} ({100 * rows[name]['copies'].value:.3g}\u00a0%)")
    return [f"Images that copy references or training images raise the identity of {', '.join(shares)}."]


def _ends(values: Sequence[Value]) -> list[float]:
    """The values and the ends of their intervals."""
    ends = []
    for value in values:
        ends += [end for end in (value.value, value.low, value.high) if end is not None]
    return ends


def _chart(label: str, rows: Numbers) -> Chart | None:
    """Identity over training steps; of methods, against diversity or else CLIP-T. None for less than two points."""
    x_name, y_name = "step", "identity"
    if label == "method":
        x_name, y_name = "identity", CLIP
        if sum("diversity" in numbers for numbers in rows.values()) > 1:
            y_name = "diversity"

    points = []
    real = None
    for name, numbers in rows.items():
        x, y = numbers.get(x_name), numbers.get(y_name)
        if label == "step":
            x = Value(float(name), None, None, 1)
        if x is not None and y is not None:
            points.append((name, x, y))
        if real is None and "real" in numbers:
            real = numbers["real"].value
    if len(points) < 2:
        return None

    ends = {x_name: _ends([x for _, x, _ in points]), y_name: _ends([y for _, _, y in points])}
    if real is not None:
        ends["identity"].append(real)
    return Chart(Scale.of(x_name, ends[x_name]), Scale.of(y_name, ends[y_name]), points, real)
