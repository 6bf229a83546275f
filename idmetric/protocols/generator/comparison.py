"""Paired comparisons of methods: same subjects, prompts and seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from idmetric.evaluate.paired import holm, signed_rank, smallest_p
from idmetric.protocols.common import intervals
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Settings

LEVEL = 0.05  # of a test
Scored = Mapping[str, Mapping[tuple[str, ...], float]]  # method -> place, which begins with the subject -> score


@dataclass(frozen=True)
class Difference:
    """The mean difference a - b over common places, with p of the signed-rank test over subjects."""

    a: str
    b: str
    value: Value
    p: float
    subjects: int


def differences(scores: Scored, settings: Settings, against: str | None = None) -> list[Difference]:
    """Compare each two methods that have common places, or each with one."""
    pairs = combinations(scores, 2) if against is None else ((a, against) for a in scores if a != against)
    found = []
    for a, b in pairs:
        common = [place for place in scores[a] if place in scores.get(b, {})]
        if not common:
            continue
        apart = np.array([scores[a][place] - scores[b][place] for place in common])
        subject = np.array([place[0] for place in common], dtype=object)
        value = intervals.mean(apart, subject, settings)
        found.append(Difference(a, b, value, signed_rank(apart, subject), len(set(subject))))
    return found


def add_differences(result: Result, scores: Mapping[str, Scored], settings: Settings, against: str | None) -> None:
    """Add a row for each two methods, all tests as items, and a note if no p can fall to 0.05.

    Args:
        scores: metric -> method -> place -> score; p of the first metric is in the rows.
    """
    rows: dict[tuple[str, str], Row] = {}
    for metric, scored in scores.items():
        found = differences(scored, settings, against)
        corrected = holm([d.p for d in found]).tolist()
        for difference, p in zip(found, corrected, strict=True):
            pair = difference.a, difference.b
            row = rows.setdefault(pair, {"method": " - ".join(pair), "group": "paired"})
            row[metric] = difference.value
            if metric == next(iter(scores)):
                row["p"] = Value(p, None, None, difference.subjects)
        v = [d.value for d in found]
        result.keep(
            "tests", a=[d.a for d in found], b=[d.b for d in found], metric=[metric] * len(found),
            difference=[x.value for x in v], low=[x.low for x in v], high=[x.high for x in v],
            p=[d.p for d in found], p_holm=corrected, subjects=[d.subjects for d in found],
            pairs=[x.count for x in v],
        )  # fmt: skip
        if metric == next(iter(scores)) and found:
            result.notes.extend(_smallest(found, against))
    result.rows.extend(rows.values())


def _smallest(found: Sequence[Difference], against: str | None) -> list[str]:
    """A note if Holm's smallest p, tests x `smallest_p`, lies above 0.05: no difference is large enough for less."""
    subjects = max(d.subjects for d in found)
    least = smallest_p(subjects)
    tests, with_one = len(found), len({name for d in found for name in (d.a, d.b)}) - 1
    if tests * least <= LEVEL:
        return []

    note = f"smallest possible p here: {min(1, tests * least):.3f} ({tests} tests on {subjects} subjects)"
    if against is None and with_one * least <= LEVEL:
        return [f"{note}; --against METHOD compares with one method ({with_one * least:.3f})"]
    return [f"{note}; {LEVEL:g} needs {math.ceil(math.log2(2 * tests / LEVEL))} subjects"]


def by_place(method: Sequence[Any], places: Sequence[tuple[str, ...]], values: Sequence[float]) -> Scored:
    """Scores as `differences` takes them, without NaN."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for name, place, value in zip(method, places, values, strict=True):
        if not np.isnan(value):
            found.setdefault(name, {})[place] = float(value)
    return found
