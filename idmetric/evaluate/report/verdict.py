"""The first screen of the pages of methods and of training steps: the verdict in words, a summary, signs, a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from idmetric.evaluate.protocols.common.columns import listed
from idmetric.evaluate.protocols.common.protocol import compared_rows
from idmetric.evaluate.protocols.common.result import Result, Row, Value, comparisons_of, copying
from idmetric.evaluate.protocols.generator.columns import CLIP, NOT_CHECKED
from idmetric.evaluate.report.chart import Scale
from idmetric.evaluate.report.page import number
from idmetric.evaluate.statistics.paired import Comparison

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
    numbers = {name: _numbers(row) for name, row in rows.items()}
    copies = copying(result)
    pairs: dict[str, Pairs] = {}
    for metric, comparisons in comparisons_of(result).items():
        both_ways = [*comparisons, *(comparison.reversed() for comparison in comparisons)]
        pairs[metric] = {(comparison.a, comparison.b): comparison for comparison in both_ways}

    if label == "method":
        numbers = dict(sorted(numbers.items(), key=lambda item: (item[0] in copies, -item[1]["identity"].value)))
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


def _numbers(row: Row) -> dict[str, Value]:
    return {name: value for name, value in row.items() if isinstance(value, Value)}


def _columns(rows: Numbers) -> dict[str, tuple[float, float]]:
    """The metrics of the summary, and the range of their bars."""
    values: dict[str, list[Value]] = {}
    for numbers in rows.values():
        for metric, value in numbers.items():
            values.setdefault(metric, []).append(value)
    shown: list[str] = []
    for stem in _SUMMARY:
        shown += [metric for metric in values if metric.partition("@")[0] == stem]

    columns = {}
    for metric in shown[:5]:
        ends = [*_ends(values[metric]), 0.0]
        columns[metric] = (min(ends), max(ends) if any(ends) else 1.0)
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


def _on_methods(rows: Numbers, copies: Sequence[str], pairs: Pairs) -> tuple[list[str], str, list[str]]:
    """The methods that keep identity best, and that in a sentence, with its reasons; `rows` begin with the best."""
    identity = {}
    for name, numbers in rows.items():
        if name not in copies:
            identity[name] = number(numbers["identity"].value)
    if not identity:
        return [], "Every method copies: no identity here is of new pictures", []
    best, *others = identity
    details = []
    if "real" in rows[best]:
        details.append(f"Real photos of the subjects reach {number(rows[best]['real'].value)} among themselves.")
    if not others and len(rows) == 1:
        return [best], f"{best} has an identity of {identity[best]}", details
    if not others:
        return [best], f"{best} is the only method without copies: its identity is {identity[best]}", details

    second = others[0]
    lead = _lead(pairs.get((best, second)))
    details.insert(0, f"{best} reaches {identity[best]}, {second} {identity[second]}; {lead}.")

    # who is clearly behind
    compared = {name: pairs[best, name] for name in others if (best, name) in pairs}
    if len(compared) < len(others):
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
    shares: list[str] = []
    for name in copies:
        of_images = "" if shares else " of the images"
        shares.append(f"{name} ({100 * rows[name]['copies'].value:.3g}\u00a0%{of_images})")
    subject, verb = shares[0], "copies"
    if len(shares) > 1:
        subject, verb = f"{', '.join(shares[:-1])} and {shares[-1]}", "copy"
    if label == "step":
        subject = f"Step{'s' * (len(shares) > 1)} {subject}"
    return [f"{subject} {verb} references or training images, which raises identity."]


def _ends(values: Sequence[Value]) -> list[float]:
    """The values and the ends of their intervals."""
    ends = []
    for value in values:
        ends += [end for end in (value.value, value.low, value.high) if end is not None]
    return ends


def _chart(label: str, rows: Numbers) -> Chart | None:
    """Identity over training steps; of methods, against diversity or else CLIP-T. None for less than two points."""
    names = ("step", "identity")
    if label == "step":
        rows = {name: {**numbers, "step": Value(float(name), None, None, 1)} for name, numbers in rows.items()}
    else:
        has_diversity = sum("diversity" in numbers for numbers in rows.values()) > 1
        names = ("identity", "diversity" if has_diversity else CLIP)

    points = []
    for name, numbers in rows.items():
        if set(names) <= numbers.keys():
            points.append((name, numbers[names[0]], numbers[names[1]]))
    if len(points) < 2:
        return None

    x_name, y_name = names
    x_ends = _ends([x for _, x, _ in points])
    y_ends = _ends([y for _, _, y in points])
    real = None
    for numbers in rows.values():
        if "real" in numbers:
            real = numbers["real"].value
            (y_ends if label == "step" else x_ends).append(real)
            break
    return Chart(Scale.of(x_name, x_ends), Scale.of(y_name, y_ends), points, real)
