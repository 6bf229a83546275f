"""Open-set re-identification: name the known identities, and call the others new.

A query gets the name of its nearest gallery image if their similarity reaches a threshold, and is called new otherwise.
Identities count equally here, whatever their number of images, as in AnimalCLEF 2025 (imageclef.org/AnimalCLEF2025):

* BAKS, balanced accuracy on known samples: the mean over known identities of the share of queries that get their name;
* BAUS, balanced accuracy on unknown samples: the mean over unknown identities of the share of queries called new;
* the challenge's score, sqrt(BAKS x BAUS). An arithmetic mean would give 0.5 for calling every image new.

The challenge averages this score over its data sets. Functions raise a ValueError without queries of known identities
or of unknown ones, where they need them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.statistics.checks import labeled, truths
from idmetric.metric.files import need
from idmetric.metric.ties import STEP, comparable

Array = NDArray[np.float64]
Truths = NDArray[np.bool_]


@dataclass(frozen=True)
class Answers:
    """The nearest gallery image of each query.

    Attributes:
        score: (Q,), its similarity, any sign, as `comparable` rounds it.
        right: (Q,), whether it shows the query's identity; False for unknown identities.
        known: (Q,), whether the gallery has the query's identity.
        weight: (Q,), 1 / the number of queries of the query's identity.
    """

    score: Array
    right: Truths
    known: Truths
    weight: Array

    @classmethod
    def of(
        cls,
        score: ArrayLike,
        right: ArrayLike,
        known: ArrayLike,
        identity: ArrayLike,
    ) -> Answers:
        """The answers to queries of these identities (Q,), of any type that sorts."""
        scores, is_right = labeled(score, right, ("score", "right"))
        is_known = truths("known", known)
        _, number, count = np.unique(identity, return_inverse=True, return_counts=True)
        weight = 1 / count[number]
        return cls(scores, is_right, is_known, weight)

    def rows(self, chosen: NDArray[Any]) -> Answers:
        """Some of the answers with their weights, such as a bootstrap sample of identities."""
        columns = [column[chosen] for column in vars(self).values()]
        return Answers(*columns)


def known_accuracy(answers: Answers, threshold: float = -math.inf) -> float:
    """BAKS at a threshold, in [0, 1], higher = better; without one, the accuracy in a closed set."""
    is_named = answers.score >= comparable(threshold)
    return _share(answers.right & is_named, answers.known, answers)


def unknown_accuracy(answers: Answers, threshold: float) -> float:
    """BAUS at a threshold, in [0, 1], higher = better."""
    is_new = answers.score < comparable(threshold)
    return _share(is_new, ~answers.known, answers)


def open_set_score(answers: Answers, threshold: float) -> float:
    """sqrt(BAKS x BAUS) at a threshold, in [0, 1], higher = better (AnimalCLEF 2025)."""
    baks = known_accuracy(answers, threshold)
    baus = unknown_accuracy(answers, threshold)
    return math.sqrt(baks * baus)


def known_auc(answers: Answers) -> float:
    """The chance that a query of a known identity has a nearer gallery image than one of an unknown identity.

    The area under the ROC curve of known or not, with identities of equal weight; ties half, 0.5 = chance. It does not
    ask for the right name.
    """
    return _beaten(answers, answers.known)


def oscr_area(answers: Answers) -> float:
    """Area under the curve of BAKS over 1 - BAUS at all thresholds, in [0, 1], higher = better.

    This is the curve of the open-set classification rate, OSCR (Dhamija et al. 2018, "Reducing Network Agnostophobia"),
    with identities of equal weight in place of samples. It is at most the closed-set accuracy.
    """
    return _beaten(answers, answers.right)


def curve(answers: Answers) -> tuple[Array, Array, Array]:
    """Thresholds (T,) in rising order, with BAKS (T,) and BAUS (T,) at each.

    The thresholds are the scores, and a last one at which every query is new.
    """
    known_weight = _total(answers.known, answers)
    unknown_weight = _total(~answers.known, answers)
    thresholds, index = np.unique(answers.score, return_inverse=True)
    thresholds = np.append(thresholds, thresholds[-1] + STEP)

    def reaching(chosen: Truths) -> Array:
        """The weight of the chosen queries that reach each threshold."""
        weights = answers.weight[chosen]
        at_threshold = np.bincount(index[chosen], weights, len(thresholds))
        from_the_highest: Array = at_threshold[::-1].cumsum()
        return from_the_highest[::-1]

    baks = reaching(answers.right) / known_weight
    accepted = reaching(~answers.known) / unknown_weight
    return thresholds, baks, (1 - accepted).clip(0, 1)


def best_threshold(answers: Answers) -> float:
    """The threshold of the highest sqrt(BAKS x BAUS) on these queries; of several, the lowest.

    Chosen on the data that it is measured on, it is an oracle: an upper bound, not a result.
    """
    thresholds, baks, baus = curve(answers)
    products = (baks * baus).round(12)
    return float(thresholds[products.argmax()])


def _share(correct: Truths, queries: Truths, answers: Answers) -> float:
    total = _total(queries, answers)
    correct_weight = answers.weight[correct & queries].sum()
    return min(1.0, float(correct_weight / total))  # sums are rounded


def _total(queries: Truths, answers: Answers) -> float:
    if not queries.any():
        raise ValueError("open-set numbers need queries of known identities, and of unknown ones")
    return float(answers.weight[queries].sum())


def _beaten(answers: Answers, counted: Truths) -> float:
    """The weighted share of (known, unknown) pairs with a counted, more similar known query; ties half."""
    need("eval", "open-set areas", sklearn="scikit-learn")
    from sklearn.metrics import roc_auc_score

    known_weight = _total(answers.known, answers)
    _total(~answers.known, answers)
    if not counted.any():
        return 0.0
    compared = answers.rows(counted | ~answers.known)
    area = roc_auc_score(compared.known, compared.score, sample_weight=compared.weight)
    share = answers.weight[counted].sum() / known_weight  # a known query that is not counted beats none
    return min(1.0, float(area * share))  # sums are rounded
