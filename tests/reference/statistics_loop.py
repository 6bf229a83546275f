"""The evaluation statistics again, by loops over pairs and places: slow, obvious, sharing no code with the package.

Each function counts what its definition says. Scores are lists of numbers, labels lists of booleans.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def losing_order(scores: Sequence[float], relevant: Sequence[bool]) -> list[bool]:
    """Relevance by place, best score first, irrelevant items first among equal scores."""
    items = sorted(zip(scores, relevant, strict=True), key=lambda item: (-item[0], item[1]))
    return [bool(r) for _, r in items]


def mean_of_orders(scores: Sequence[float], values: Sequence[float], measure: Callable[[list[float]], float]) -> float:
    """A measure of values in ranked order, averaged over every order of the items of equal score."""
    found = []
    for order in itertools.permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            found.append(measure([values[i] for i in order]))
    return sum(found) / len(found)


def average_precision_at(scores: Sequence[float], relevant: Sequence[bool], k: int, divisor: int) -> float:
    """Sum over places up to k of precision times relevance, both spread evenly over places of equal score."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    share: list[Fraction] = []  # relevance of each place
    last: list[int] = []  # last place of its group of equal scores
    for _, group in itertools.groupby(order, key=lambda i: scores[i]):
        members = list(group)
        hits = sum(bool(relevant[i]) for i in members)
        end = len(share) + len(members)
        share += [Fraction(hits, len(members))] * len(members)
        last += [end] * len(members)
    total = Fraction(0)
    for place in range(min(k, len(share))):
        end = min(last[place], k)
        total += share[place] * sum(share[:end]) / end
    return float(total / divisor)


def trapezoids(by_place: Sequence[bool]) -> float:
    """Area under precision against recall, between each hit and the place before it."""
    area, found = 0.0, 0
    for place, hit in enumerate(by_place, 1):
        if hit:
            before = found / (place - 1) if place > 1 else 1.0
            found += 1
            area += (before + found / place) / 2
    return area / sum(by_place)


def rates(scores: Sequence[float], same: Sequence[bool], threshold: float) -> tuple[float, float, float]:
    """F1, true accepts and false accepts of scores >= threshold."""
    tp = sum(s >= threshold and r for s, r in zip(scores, same, strict=True))
    fp = sum(s >= threshold and not r for s, r in zip(scores, same, strict=True))
    fn = sum(s < threshold and r for s, r in zip(scores, same, strict=True))
    return 2 * tp / (2 * tp + fp + fn), tp / sum(same), fp / (len(same) - sum(same))


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """From the definition; 0 where one of them does not vary."""
    mx, my = sum(x) / len(x), sum(y) / len(y)
    xx, yy = sum((a - mx) ** 2 for a in x), sum((b - my) ** 2 for b in y)
    if min(xx, yy) < 1e-20:
        return 0.0
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / math.sqrt(xx * yy)


def margins(positives: Array, distractors: Array) -> list[float]:
    """NearID's equation 4 for each pair i < j of views of one sample, without those of missing images."""
    found = []
    for i in range(len(distractors)):
        for j in range(i + 1, len(distractors)):
            found += [positives[i, j] - distractors[i], positives[i, j] - distractors[j]]
    return [m for m in found if not math.isnan(m)]


def success(samples: Sequence[Sequence[float]], with_mean: bool) -> tuple[float, float, int, int]:
    """SSR, PA, samples and trials (NearID's equation 5); with the released table code's extra trial or without."""
    whole = wins = trials = valid = 0
    for sample in samples:
        if not sample:
            continue
        valid += 1
        whole += all(m > 0 for m in sample)
        wins += sum(m > 0 for m in sample)
        trials += len(sample)
        if with_mean:
            wins += sum(sample) / len(sample) > 0
            trials += 1
    return whole / valid, wins / trials, valid, trials


def oracle(similarity: Array, scores: Array) -> tuple[float, float]:
    """M-O and M-O-pair of two views (NearID): mean atanh of Pearson's over the four, and two, sets of pairs."""
    z: dict[tuple[int, int], float] = {}
    for view, edit in ((0, 0), (1, 1), (0, 1), (1, 0)):
        pairs = [(s[view, edit], o[edit]) for s, o in zip(similarity, scores, strict=True)]
        pairs = [p for p in pairs if not any(math.isnan(v) for v in p)]
        r = pearson([s for s, _ in pairs], [o for _, o in pairs])
        z[view, edit] = math.atanh(min(0.999, max(-0.999, r)))
    return math.tanh(sum(z.values()) / 4), math.tanh((z[0, 0] + z[1, 1]) / 2)


def cluster_sample(groups: Sequence[Sequence[str]], chosen: Sequence[str]) -> list[int]:
    """Pairs of a bootstrap sample of identities: each choice is an identity of its own, with copies of its images."""
    found = []
    for row, (a, b) in enumerate(groups):
        for p, first in enumerate(chosen):
            for q, second in enumerate(chosen):
                if first == a and second == b and ((p == q) if a == b else (p != q)):
                    found.append(row)
    return found
