"""The first screen of the page of methods: the verdict in words, a summary, signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from idmetric.evaluate.protocols.common.columns import listed
from idmetric.evaluate.protocols.common.protocol import has_verdict
from idmetric.evaluate.protocols.common.result import (
    Result,
    Value,
    behind,
    comparisons_of,
    copying,
    numbers_of,
    tested_family,
)
from idmetric.evaluate.protocols.generator.columns import CLIP, NOT_CHECKED
from idmetric.evaluate.report.render import number
from idmetric.evaluate.statistics.paired import Comparison, methods_of, too_few

Numbers = Mapping[str, Mapping[str, Value]]  # method -> its numbers
Pairs = Mapping[tuple[str, str], Comparison]  # two methods -> the number of the first less that of the second
_SUMMARY = (
    "identity",
    "same",
    "copies",
    "diversity",
    CLIP,
)


@dataclass(frozen=True)
class Finding:
    """What a page says first of methods.

    Attributes:
        headline: a sentence. details: what it rests on.
        best: names that the headline prefers.
        badge: "best", or "highest" or "tied" where no test says so; "" where nothing is compared.
        card: the heading of the number of the first of `best`.
    """

    headline: str
    details: list[str]
    best: list[str]
    badge: str = ""
    card: str = ""


@dataclass(frozen=True)
class ModelVerdict:
    """What the numbers of a model mean for methods.

    Attributes:
        headline, best, badge, card: see `Finding`. details: its details, and which methods copy.
        rows: method -> its numbers; methods without copies come first, by identity.
        columns: metric of the summary -> the range of its bars, which holds 0 and all intervals.
        copies: names of methods that return copies.
        behind: methods that a test finds below another one in identity, so that no other number of them is marked.
        tested: the methods that are tested against each other. family: that in words, and the correction.
        pairs: metric -> the differences of methods, in both directions.
    """

    model: str
    headline: str
    details: list[str]
    best: list[str]
    badge: str
    card: str
    rows: Numbers
    columns: dict[str, tuple[float, float]]
    copies: list[str]
    behind: list[str]
    tested: list[str]
    family: str
    pairs: dict[str, Pairs]

    @property
    def ahead_elsewhere(self) -> list[str]:
        """The methods that are behind in identity, and that a test finds ahead in another number."""
        names = []
        for metric, pairs in self.pairs.items():
            for (name, _), comparison in pairs.items():
                if metric != "identity" and name in self.behind and comparison.is_clear and comparison.difference > 0:
                    names.append(name)
        return list(dict.fromkeys(names))


def verdict(result: Result) -> ModelVerdict | None:
    """The verdict on methods; None for results of other protocols."""
    if not has_verdict(result.protocol):
        return None
    rows = {str(row["method"]): row for row in result.rows if row.get("group", "all") == "all"}
    numbers = {name: numbers_of(row) for name, row in rows.items()}
    copies = copying(result)
    comparisons = comparisons_of(result)
    order = sorted(numbers, key=lambda name: (name in copies, -numbers[name]["identity"].value))
    numbers = {name: numbers[name] for name in order}
    finding = _on_methods(numbers, copies, comparisons.get("identity", []))

    details = [*finding.details, *_on_copies(numbers, copies)]
    if any(row.get("copies") == NOT_CHECKED for row in rows.values()):
        details.append("Copies were not checked: images show several subjects.")
    if compared_on := result.settings.get("compared_on"):
        details.append(f"Compared on the {compared_on} that all have; other images are left out.")
    compared = methods_of(comparisons.get("identity", []))
    return ModelVerdict(
        model=result.model,
        headline=finding.headline,
        details=details,
        best=finding.best,
        badge=finding.badge,
        card=finding.card,
        rows=numbers,
        columns=_columns(numbers),
        copies=copies,
        behind=behind(result),
        tested=[name for name in numbers if name in compared],
        family=f"{_capitalized(tested_family(result))}." if comparisons else "",
        pairs={metric: _both_ways(tests) for metric, tests in comparisons.items()},
    )


def _both_ways(comparisons: Sequence[Comparison]) -> Pairs:
    """The comparisons by their methods, each in both directions."""
    by_names = {}
    for comparison in comparisons:
        by_names[comparison.a, comparison.b] = comparison
        by_names[comparison.b, comparison.a] = comparison.reversed()
    return by_names


def _columns(rows: Numbers) -> dict[str, tuple[float, float]]:
    """The metrics of the summary, and the range of their bars."""
    values: dict[str, list[Value]] = {}
    for numbers in rows.values():
        for metric, value in numbers.items():
            values.setdefault(metric, []).append(value)

    columns = {}
    for metric in _SUMMARY:
        if metric not in values:
            continue
        ends = [*_ends(values[metric]), 0.0]
        low, high = min(ends), max(ends)
        if low == high:  # all are 0
            high = 1.0
        columns[metric] = (low, high)
    return columns


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _on_methods(rows: Numbers, copies: Sequence[str], comparisons: Sequence[Comparison]) -> Finding:
    """The methods that keep identity best, and that in a sentence, with its reasons; `rows` begin with the best."""
    identity = {}
    for name, numbers in rows.items():
        if name not in copies:
            identity[name] = number(numbers["identity"].value)
    if not identity:
        return Finding("Every method copies: no identity here is of new pictures", [], [])
    best, *rivals = identity
    details = []
    if "real" in rows[best]:
        details.append(f"Real photos of the subjects reach {number(rows[best]['real'].value)} among themselves.")

    among = without = ""
    if copies:
        among, without = " of the methods that do not copy", " without copies"
    if not rivals:
        headline = f"{best} has an identity of {identity[best]}"
        if copies:
            headline = f"{best} is the only method without copies: its identity is {identity[best]}"
        return Finding(headline, details, [best], card=f"Identity{without}")

    pairs = _both_ways(comparisons)
    nearest = rivals[0]
    lead = _lead(pairs.get((best, nearest)))
    details.insert(0, f"{best} reaches {identity[best]}, {nearest} {identity[nearest]}; {lead}.")

    # who is clearly behind
    highest = f"{best} has the highest identity{among}"
    card = f"Highest identity{without}"
    compared = {name: pairs[best, name] for name in rivals if (best, name) in pairs}
    if len(compared) < len(rivals):
        return Finding(f"No clear winner: {highest}", details, [best], "highest", card)
    if few := too_few(comparisons):
        details.insert(1, f"{_capitalized(few)}.")
        return Finding(f"Too few subjects for a winner: {highest}", details, [best], "highest", card)
    level = []
    for name, comparison in compared.items():
        if not comparison.is_clear or comparison.difference <= 0:
            level.append(name)
    if level:
        headline = f"No clear winner: {best} and {listed(level)} are too close to call"
        return Finding(headline, details, [best, *level], "tied", card)
    return Finding(f"{best} keeps identity best", details, [best], "best", f"Best identity{without}")


def _lead(comparison: Comparison | None) -> str:
    """The lead of the best method over the second."""
    if comparison is None:
        return "the two were not compared on equal prompts and seeds"
    interval = "no interval"
    if comparison.low is not None and comparison.high is not None:
        interval = f"95\u00a0% interval {number(comparison.low)} to {number(comparison.high)}"
    difference = number(comparison.difference)
    return f"on equal prompts and seeds, it leads by {difference} ({interval}, p = {comparison.p_holm:.3f})"


def _on_copies(rows: Numbers, copies: Sequence[str]) -> list[str]:
    """A sentence on what returns copies, if anything does."""
    if not copies:
        return []
    shares = []
    for name in copies:
        shares.append(f"{name} ({100 * rows[name]['copies'].value:.3g}\u00a0%)")
    return [f"Images that copy references or training images raise the identity of {', '.join(shares)}."]


def _ends(values: Sequence[Value]) -> list[float]:
    """The values and the ends of their intervals."""
    ends = []
    for value in values:
        ends += [end for end in (value.value, value.low, value.high) if end is not None]
    return ends
