"""Is one method better than another? Differences on equal items, with an interval and an exact test over subjects.

Every verdict goes through `compare`: rows of pairs, bold numbers, pages, the best training step. A winner is declared
where the test says so, not where an interval excludes 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.bootstrap import FEWEST, student, within
from idmetric.evaluate.statistics.checks import numbers
from idmetric.metric.ties import comparable

Array = NDArray[np.float64]
Place = tuple[str, ...]  # begins with the subject: what is flipped together

LEVEL = 0.05  # of the tests
_EXACT = 16  # subjects, up to which all flips of signs are enumerated
_FLIPS = 10_000  # random flips of more subjects


@dataclass(frozen=True)
class Comparison:
    """Two methods on the slots that both have.

    Attributes:
        a, b: the methods. difference: mean of a's scores less b's.
        low, high: its 95 % interval; None of fewer than three subjects.
        p: of `sign_flip`. p_holm: p, corrected for all comparisons of one call of `compare`, `tests` of them.
        subjects, pairs: numbers of subjects and of slots.
    """

    a: str
    b: str
    difference: float
    low: float | None
    high: float | None
    p: float
    p_holm: float
    subjects: int
    pairs: int
    tests: int

    @property
    def is_clear(self) -> bool:
        """Whether the test finds a difference."""
        return self.p_holm <= LEVEL

    def reversed(self) -> Comparison:
        """The comparison of b with a."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        return replace(self, a=self.b, b=self.a, difference=-self.difference, low=low, high=high)


def compare(
    scores: Mapping[str, Mapping[Place, float]],
    against: str | None = None,
    *,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> list[Comparison]:
    """Compare each two methods, or each with one, on the slots that both have; pairs without any are left out.

    Args:
        scores: method -> slot -> score. A slot, such as (subject, prompt, seed), begins with its subject.
        limits: the range of a difference, which its interval does not leave.
    """
    pairs = list(combinations(scores, 2))
    if against is not None:
        pairs = [(name, against) for name in scores if name != against]

    comparisons = []
    for a, b in pairs:
        shared_slots = [slot for slot in scores[a] if slot in scores[b]]
        if shared_slots:
            differences = np.array([scores[a][slot] - scores[b][slot] for slot in shared_slots])
            subjects = np.array([slot[0] for slot in shared_slots], dtype=object)
            comparisons.append(_compared(a, b, differences, subjects, limits))

    corrected = holm([comparison.p for comparison in comparisons]).tolist()
    tests = len(comparisons)
    return [replace(test, p_holm=p, tests=tests) for test, p in zip(comparisons, corrected, strict=True)]


def _compared(a: str, b: str, values: Array, subjects: NDArray[Any], limits: tuple[float, float]) -> Comparison:
    """One comparison, without a correction for others."""
    count = len(set(subjects))
    low = high = None
    if count >= FEWEST:
        interval = within(student(lambda rows: values[rows].mean(), subjects), limits)
        low, high = interval.low, interval.high

    p = sign_flip(values, subjects)
    return Comparison(
        a=a,
        b=b,
        difference=float(values.mean()),
        low=low,
        high=high,
        p=p,
        p_holm=p,
        subjects=count,
        pairs=len(values),
        tests=1,
    )


def too_few(comparisons: Sequence[Comparison]) -> str:
    """Why none of the comparisons of one call of `compare` can be clear, and how one could be; empty if one can.

    >>> scores = {name: {("s", "x"): 0.5} for name in ("a", "b")}
    >>> too_few(compare(scores))
    'no winner can be shown: the smallest p of 1 subject in 1 comparison is 1.000; 6 subjects would do'
    """
    subjects = max(comparison.subjects for comparison in comparisons)
    tests = comparisons[0].tests
    least = smallest_p(subjects, tests)
    if least <= LEVEL:
        return ""

    remedies = []
    needed = subjects_needed(tests)
    if smallest_p(needed, tests) <= LEVEL:
        remedies.append(f"{needed} subjects")
    tests_against_one = len(methods_of(comparisons)) - 1
    if tests_against_one < tests and smallest_p(subjects, tests_against_one) <= LEVEL:
        remedies.append(f"{_count(tests_against_one, 'comparison')} (--against METHOD)")
    sentence = f"no winner can be shown: the smallest p of {_count(subjects, 'subject')} in "
    sentence += f"{_count(tests, 'comparison')} is {least:.3f}"
    if remedies:
        sentence += f"; {' or '.join(remedies)} would do"
    return sentence


def family(comparisons: Sequence[Comparison]) -> str:
    """Which methods one call of `compare` has tested against each other.

    >>> scores = {name: {("s", "x"): 0.5} for name in ("a", "b", "c")}
    >>> family(compare(scores))
    '3 comparisons, each two of a, b, c'
    >>> family(compare(scores, against="b"))
    '2 comparisons, of a, c with b'
    """
    methods = methods_of(comparisons)
    tests = len(comparisons)
    if tests > 1 and tests == len(methods) * (len(methods) - 1) / 2:
        return f"{tests} comparisons, each two of {', '.join(methods)}"

    last = comparisons[-1]
    if all(comparison.b == last.b for comparison in comparisons):
        methods = [comparison.a for comparison in comparisons]
        return f"{_count(tests, 'comparison')}, of {', '.join(methods)} with {last.b}"
    pairs = [f"{comparison.a} - {comparison.b}" for comparison in comparisons]
    return f"{tests} comparisons: {', '.join(pairs)}"


def methods_of(comparisons: Sequence[Comparison]) -> list[str]:
    """The methods that are compared, in order of first appearance."""
    methods: dict[str, None] = {}
    for comparison in comparisons:
        methods |= {comparison.a: None, comparison.b: None}
    return list(methods)


def _count(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number} {noun}{'s' * (number > 1)}"


def sign_flip(differences: ArrayLike, identity: ArrayLike, *, seed: int = 0) -> float:
    """Two-sided p of the sign-flip test over identities (Fisher 1935): the share of flips with as large a mean.

    If two methods do not differ, the sign of each identity's differences is a coin toss. Up to 16 identities, all 2^n
    tosses are enumerated, as by scipy.stats.permutation_test(permutation_type="samples"); of more, 10,000 are drawn.
    Items of one identity are not independent and keep a common sign, so p is `smallest_p` at least.

    Args:
        differences: (N,). identity: (N,), any type that sorts.
    """
    values = numbers("differences", differences)
    _, number = np.unique(identity, return_inverse=True)
    sizes = np.bincount(number)
    means = comparable(np.bincount(number, values) / sizes)
    sums = means * sizes
    count = len(sums)

    def as_large(tails: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which tosses, 1 for a flipped sign, give a mean as large as that of the data."""
        flipped = np.abs((1 - 2 * tails) @ sums)
        observed = np.abs(sums.sum())
        return np.asarray(flipped >= observed - 1e-9)  # equal sums may differ by rounding

    # the opposite of each flip has the same size, so half of them are enough
    if count <= _EXACT:
        codes = np.arange(2 ** (count - 1))[:, None]
        return float(as_large(codes >> np.arange(count) & 1).mean())

    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(10):
        tails = rng.integers(2, size=(_FLIPS // 10, count), dtype=np.int8)
        hits += int(as_large(tails).sum())
    return (1 + hits) / (1 + _FLIPS)


def smallest_p(subjects: int, tests: int = 1) -> float:
    """The p, after Holm's correction for so many tests, of differences that have one sign in all subjects."""
    least = 1 / (1 + _FLIPS)
    if subjects <= _EXACT:
        least = 2.0 ** (1 - subjects)
    return min(1.0, tests * least)


def subjects_needed(tests: int = 1) -> int:
    """The number of subjects from which so many tests can show a difference.

    >>> subjects_needed(), subjects_needed(6)
    (6, 8)
    """
    return 1 + math.ceil(math.log2(tests / LEVEL))


def holm(p: ArrayLike) -> Array:
    """p values (N,) corrected for N tests: Holm's step-down procedure (1979).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values)
    tests_left = np.arange(len(values), 0, -1)
    rising = np.maximum.accumulate(tests_left * values[order])
    corrected = np.empty_like(values)
    corrected[order] = rising.clip(max=1)
    return corrected
