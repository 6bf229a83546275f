"""The training losses again, one float64 number at a time: slow, obvious, and sharing no code with the package.

Each function follows an equation of a paper term by term; `None` in a list of embeddings is a missing view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Views = Sequence[Sequence[Array | None]]


def cos(a: Array, b: Array) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def softplus(x: float) -> float:
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def log_sum_exp(values: Sequence[float]) -> float:
    if not values:
        return -math.inf
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def mean_over_slots(slots: Sequence[Sequence[float]]) -> float:
    return mean([mean(slot) for slot in slots if slot])


def one_of(target: float, others: Sequence[float]) -> float:
    """-log of the softmax of `target` among itself and the others."""
    return log_sum_exp([target, *others]) - target


# NearID


def discrimination(anchor: Sequence[Array], positive: Views, distractor: Views, tau: float) -> float:
    """Eq. 1."""
    slots = []
    for p in range(len(positive[0])):
        terms = []
        for i, a in enumerate(anchor):
            target = positive[i][p]
            if target is None:
                continue
            denominator = 0.0
            for row in positive:
                denominator += sum(math.exp(cos(a, g) / tau) for g in row if g is not None)
            denominator += sum(math.exp(cos(a, r) / tau) for r in distractor[i] if r is not None)
            terms.append(-math.log(math.exp(cos(a, target) / tau) / denominator))
        slots.append(terms)
    return mean_over_slots(slots)


def ranking(anchor: Sequence[Array], positive: Views, distractor: Views, tau: float) -> float:
    """Eq. 2, in its cross-entropy form."""
    slots = []
    for k in range(len(distractor[0])):
        terms = []
        for i, a in enumerate(anchor):
            r = distractor[i][k]
            if r is None:
                continue
            rest = [g for j, row in enumerate(positive) if j != i for g in row if g is not None]
            near = math.exp(cos(a, r) / tau)
            terms.append(-math.log(near / (near + sum(math.exp(cos(a, g) / tau) for g in rest))))
        slots.append(terms)
    return mean_over_slots(slots)


def cohesion(positive: Views) -> float:
    """Eq. 7 and 8."""
    samples = []
    for row in positive:
        there = [g / np.linalg.norm(g) for g in row if g is not None]
        if len(there) < 2:
            samples.append(0.0)
            continue
        prototype = sum(there) / np.linalg.norm(sum(there))
        samples.append(mean([1 - cos(g, prototype) for g in there]))
    return mean(samples)


def symmetric(anchor: Sequence[Array], chosen: Sequence[Array], distractor: Views | None, tau: float) -> float:
    """Table 4, first two rows: softmax cross-entropy in both directions."""
    terms = []
    for sources, targets in ((anchor, chosen), (chosen, anchor)):
        for i, x in enumerate(sources):
            others = [cos(x, t) / tau for j, t in enumerate(targets) if j != i]
            if distractor is not None:
                others += [cos(x, r) / tau for r in distractor[i] if r is not None]
            terms.append(one_of(cos(x, targets[i]) / tau, others))
    return mean(terms)


def oracle_ranking(similarity: Array, oracle: Array, valid: Array, tau: float, margin: float) -> float:
    """Table 4, "+ Oracle": RankNet over ordered pairs of a row."""
    terms = []
    for s, o, v in zip(similarity, oracle, valid, strict=True):
        for i in range(len(s)):
            for j in range(len(s)):
                if v[i] and v[j] and o[i] > o[j]:
                    terms.append(-math.log(sigmoid(s[i] / tau - s[j] / tau - margin)))
    return mean(terms)


def sigmoid_pairs(
    anchor: Sequence[Array], positive: Views, distractor: Views, tau: float, bias: float, per_anchor: bool = False
) -> float:
    """Table 4, SigLIP: binary cross-entropy over the pool, and of distractors with 0; means, or sums per anchor."""
    pool, near = [], []
    for i, a in enumerate(anchor):
        for j, row in enumerate(positive):
            for g in row:
                if g is not None:
                    probability = sigmoid(cos(a, g) / tau + bias)
                    pool.append(-math.log(probability) if i == j else -math.log1p(-probability))
        near += [-math.log1p(-sigmoid(cos(a, r) / tau + bias)) for r in distractor[i] if r is not None]
    if per_anchor:
        return (sum(pool) + sum(near)) / len(anchor)
    return mean(pool) + mean(near)


def circle(positives: Sequence[float], negatives: Sequence[float], m: float, gamma: float) -> float:
    """Circle loss of one query (Sun et al. 2020, Eq. 6)."""
    near = sum(math.exp(-gamma * max(0.0, 1 + m - s) * (s - (1 - m))) for s in positives)
    far = sum(math.exp(gamma * max(0.0, s + m) * (s - m)) for s in negatives)
    return math.log(1 + near * far)


def max_hinge(anchor: Sequence[Array], positive: Views, distractor: Views, tau: float, margin: float) -> float:
    """Table 4, the hinge of Circle + Rank."""
    terms = []
    for i, a in enumerate(anchor):
        rest = [cos(a, g) / tau for j, row in enumerate(positive) if j != i for g in row if g is not None]
        terms += [max(0.0, max(rest) - cos(a, r) / tau + margin) for r in distractor[i] if r is not None]
    return mean(terms)


# ILGen


def recall_at_k(
    embedding: Sequence[Array],
    label: Sequence[int],
    queries: Sequence[int],
    ks: Sequence[int],
    *,
    t_rank: float = 0.01,
    t_recall: float = 1.0,
) -> float:
    losses = []
    for q in queries:
        database = [z for z in range(len(label)) if z != q]
        positives = [x for x in range(len(label)) if label[x] == label[q] and x != q]
        if not positives:
            continue
        s = [cos(embedding[q], z) for z in embedding]
        rank = {x: 1 + sum(sigmoid((s[z] - s[x]) / t_rank) for z in database if z != x) for x in positives}
        recalls = []
        for k in ks:
            found = sum(sigmoid((k - rank[x]) / t_recall) for x in positives)
            recalls.append(min(k, found) / min(k, len(positives)))
        losses.append(1 - mean(recalls))
    return mean(losses)


def label_info_nce(embedding: Sequence[Array], label: Sequence[int], tau: float) -> float:
    queries = []
    for q, x in enumerate(embedding):
        logits = [cos(x, z) / tau for z in embedding]
        own = [z for z in range(len(label)) if label[z] == label[q] and z != q]
        others = [logits[z] for z in range(len(label)) if label[z] != label[q]]
        if own:
            queries.append(mean([one_of(logits[p], others) for p in own]))
    return mean(queries)
