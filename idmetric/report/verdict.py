"""The first screen of the pages of methods and of training steps: the verdict in words, a summary, signs, a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from idmetric.protocols.common.columns import listed
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.generator.columns import CLIP, copying
from idmetric.report.chart import Scale
from idmetric.report.page import number

Numbers = Mapping[str, Mapping[str, Value]]  # method or step -> its numbers
Pairs = Mapping[tuple[str, str], Value]  # two methods -> the number of the first less that of the second
_SUMMARY = ("identity", "worst", "copies", "diversity", CLIP, "drift", "SCR", "leaning", "Vendi", "published")
JUDGED = {"generator": "method", "checkpoints": "step"}  # protocol -> the label of its rows


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
        best: names that the headline prefers. copies: names of methods or steps that return copies.
        pairs: metric -> the differences of methods, in both directions.
    """

    model: str
    headline: str
    details: list[str]
    rows: Numbers
    columns: dict[str, tuple[float, float]]
    best: list[str]
    copies: list[str]
    pairs: dict[str, Pairs]
    chart: Chart | None


def verdict(result: Result) -> Verdict | None:
    """The verdict on methods or steps; None for results of other protocols."""
    label = JUDGED.get(result.protocol)
    if label is None:
        return None
    rows = {str(row[label]): row for row in result.rows if row.get("group", "all") == "all"}
    found = {name: {k: v for k, v in row.items() if isinstance(v, Value)} for name, row in rows.items()}
    metrics = list(dict.fromkeys(name for numbers in found.values() for name in numbers))
    pairs = {m: differences for m in metrics if (differences := _pairs(result.rows, list(found), m))}
    if label == "method":
        copies = copying(result)
        found = dict(sorted(found.items(), key=lambda of: (of[0] in copies, -of[1]["identity"].value)))
        best, headline, details = _on_methods(found, copies, pairs.get("identity", {}))
    else:
        most = float(result.settings.get("max_copies", 0))
        copies = [name for name, numbers in found.items() if "copies" in numbers and numbers["copies"].value > most]
        best = [name for name, row in rows.items() if row.get("best")]
        reason = result.notes[0].partition(": ")[2]
        headline = f"Keep step {best[0]}" if best else "No step qualifies"
        details = [f"Step {best[0]} is {reason}." if best else f"{reason[:1].upper()}{reason[1:]}."]

    columns = [m for stem in _SUMMARY for m in metrics if m.partition("@")[0] == stem][:5]
    ends = {m: [*_ends([numbers[m] for numbers in found.values() if m in numbers]), 0.0] for m in columns}
    ranges = {m: (min(of), max(of) if any(of) else 1.0) for m, of in ends.items()}
    details += _on_copies(label, found, copies)
    return Verdict(result.model, headline, details, found, ranges, best, copies, pairs, _chart(label, found))


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

    ahead = {name: pairs.get((first, name)) for name in others}
    apart = ahead[others[0]]
    lead = f"{first} reaches {number(identity[first])}, {others[0]} {number(identity[others[0]])}"
    if apart is None:
        lead += "; the two were not compared on equal prompts and seeds"
    else:
        ends = "no interval"
        if apart.low is not None and apart.high is not None:
            ends = f"95\u00a0% interval {number(apart.low)} to {number(apart.high)}"
        lead += f"; on equal prompts and seeds, it leads by {number(apart.value)} ({ends})"

    def least(name: str) -> float:
        apart = ahead[name] or Value(identity[first] - identity[name], None, None, 1)
        return apart.value if apart.low is None else apart.low

    level = [name for name in others if round(least(name), 6) <= 0]
    if level:
        headline = f"No clear winner: {first} and {listed(level)} are too close to call"
    elif all(value is not None and value.low is not None for value in ahead.values()):
        headline = f"{first} keeps identity best"
    else:
        headline = f"{first} has the highest identity"
    return [first, *level], headline, [f"{lead}.", *details]


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


def _pairs(rows: Sequence[Row], names: Sequence[str], metric: str) -> Pairs:
    """The differences of methods in a metric, of the rows `a - b`, in both directions."""
    both = {f"{a} - {b}": (a, b) for a in names for b in names}
    found: dict[tuple[str, str], Value] = {}
    for row in rows:
        if row.get("group") == "paired" and isinstance(v := row.get(metric), Value):
            a, b = both[str(row["method"])]
            low, high = (None if end is None else -end for end in (v.high, v.low))
            found |= {(a, b): v, (b, a): Value(-v.value, low, high, v.count)}
    return found


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
