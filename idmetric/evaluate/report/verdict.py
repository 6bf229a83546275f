"""The first screen of the pages of methods and of training steps: the verdict in words, a summary, signs, a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from idmetric.evaluate.protocols.common.columns import listed
from idmetric.evaluate.protocols.common.protocol import compared_rows
from idmetric.evaluate.protocols.common.result import Result, Value, comparisons_of, copying
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
    found = {name: {k: v for k, v in row.items() if isinstance(v, Value)} for name, row in rows.items()}
    metrics = list(dict.fromkeys(name for numbers in found.values() for name in numbers))
    pairs: dict[str, Pairs] = {}
    for metric, comparisons in comparisons_of(result).items():
        both_ways = [*comparisons, *(c.reversed() for c in comparisons)]
        pairs[metric] = {(c.a, c.b): c for c in both_ways}
    copies = copying(result)
    if label == "method":
        found = dict(sorted(found.items(), key=lambda of: (of[0] in copies, -of[1]["identity"].value)))
        best, headline, details = _on_methods(found, copies, pairs.get("identity", {}))
    else:
        best = [name for name, row in rows.items() if row.get("best")]
        headline, details = _on_steps(best, result.notes[0])

    badge = "best"
    if headline.endswith("has the highest identity"):
        badge = "highest"
    elif len(best) > 1:
        badge = "tied"
    columns = [m for stem in _SUMMARY for m in metrics if m.partition("@")[0] == stem][:5]
    ends = {m: [*_ends([numbers[m] for numbers in found.values() if m in numbers]), 0.0] for m in columns}
    ranges = {m: (min(of), max(of) if any(of) else 1.0) for m, of in ends.items()}
    details += _on_copies(label, found, copies)
    if any(row.get("copies") == NOT_CHECKED for row in rows.values()):
        details.append("Copies were not checked: images show several subjects.")
    details += [f"{note[:1].upper()}{note[1:]}." for note in result.notes if note.startswith("compared on")]
    return Verdict(result.model, headline, details, found, ranges, best, badge, copies, pairs, _chart(label, found))


def _on_steps(best: Sequence[str], note: str) -> tuple[str, list[str]]:
    """The step to keep in a sentence, and the reasons of the protocol's note."""
    start, _, reason = note.partition(": ")
    if not best:
        return "No step qualifies", [f"{reason[:1].upper()}{reason[1:]}."]
    if start.startswith("best step"):
        return f"Keep step {best[0]}", [f"Step {best[0]} is {reason}."]
    return f"No clear best step: step {best[0]} has the highest identity", [f"The identity is {reason}."]


def _on_methods(found: Numbers, copies: Sequence[str], pairs: Pairs) -> tuple[list[str], str, list[str]]:
    """The methods that keep identity best, and that in a sentence, with its reasons; `found` begins with the best."""
    identity = {name: numbers["identity"].value for name, numbers in found.items() if name not in copies}
    if not identity:
        return [], "Every method copies: no identity here is of new pictures", []
    first, *others = identity
    details = []
    if real := found[first].get("real"):
        details.append(f"Real photos of the subjects reach {number(real.value)} among themselves.")
    if not others:
        alone = " is the only method without copies: its identity is" if len(found) > 1 else " has an identity of"
        return [first], f"{first}{alone} {number(identity[first])}", details

    # the lead over the second
    ahead = {name: pairs.get((first, name)) for name in others}
    apart = ahead[others[0]]
    lead = f"{first} reaches {number(identity[first])}, {others[0]} {number(identity[others[0]])}"
    if apart is None:
        lead += "; the two were not compared on equal prompts and seeds"
    else:
        ends = "no interval"
        if apart.low is not None and apart.high is not None:
            ends = f"95\u00a0% interval {number(apart.low)} to {number(apart.high)}"
        lead += f"; on equal prompts and seeds, it leads by {number(apart.difference)} ({ends}, p = {apart.p_holm:.3f})"
    details.insert(0, f"{lead}.")

    # who is clearly behind
    compared = {name: difference for name, difference in ahead.items() if difference is not None}
    if len(compared) < len(others):
        return [first], f"No clear winner: {first} has the highest identity", details
    for difference in compared.values():
        if difference.too_few:
            details.insert(1, f"{difference.too_few[:1].upper()}{difference.too_few[1:]}.")
            return [first], f"Too few subjects for a winner: {first} has the highest identity", details
    level = [name for name, difference in compared.items() if not (difference.is_clear and difference.difference > 0)]
    if level:
        return [first, *level], f"No clear winner: {first} and {listed(level)} are too close to call", details
    return [first], f"{first} keeps identity best", details


def _on_copies(label: str, found: Numbers, copies: Sequence[str]) -> list[str]:
    """A sentence on what returns copies, if anything does."""
    if not copies:
        return []
    shares = [
        f"{name} ({100 * found[name]['copies'].value:.3g}\u00a0%{'' if k else ' of the images'})"
        for k, name in enumerate(copies)
    ]
    several = len(copies) > 1
    start = f"Step{'s' if several else ''} " if label == "step" else ""
    names = f"{', '.join(shares[:-1])} and {shares[-1]} copy" if several else f"{shares[0]} copies"
    return [f"{start}{names} references or training images, which raises identity."]


def _ends(values: Sequence[Value]) -> list[float]:
    """The values and the ends of their intervals."""
    return [end for v in values for end in (v.value, v.low, v.high) if end is not None]


def _chart(label: str, found: Numbers) -> Chart | None:
    """Identity over training steps; of methods, against diversity or else CLIP-T. None for less than two points."""
    other = next((m for m in ("diversity", CLIP) if sum(m in numbers for numbers in found.values()) > 1), "")
    names = ("step", "identity") if label == "step" else ("identity", other)
    points = []
    for name, numbers in found.items():
        at = {**numbers, "step": Value(float(name), None, None, 1)} if label == "step" else numbers
        if set(names) <= at.keys():
            points.append((name, at[names[0]], at[names[1]]))
    if len(points) < 2:
        return None
    real = [numbers["real"].value for numbers in found.values() if "real" in numbers][:1]
    x, y = (
        Scale.of(name, _ends([(a, b)[k] for _, a, b in points]) + (real if name == "identity" else []))
        for k, name in enumerate(names)
    )
    return Chart(x, y, points, *real)
