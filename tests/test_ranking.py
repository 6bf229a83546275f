from __future__ import annotations

import numpy as np
import pytest

from idmetric.evaluate.ranking import average_precision, roc_auc
from idmetric.protocols.photos import retrieval

metrics = pytest.importorskip("sklearn.metrics")


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_scikit_learn_with_ties_and_negative_scores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    relevant = rng.random(40) < 0.3
    relevant[:2] = True, False
    scores = rng.normal(size=40).round(seed % 3) - 1
    assert average_precision(scores, relevant) == pytest.approx(metrics.average_precision_score(relevant, scores))
    assert roc_auc(scores, relevant) == pytest.approx(metrics.roc_auc_score(relevant, scores))


def test_one_class_and_broken_scores_are_errors() -> None:
    with pytest.raises(ValueError, match="at least one relevant"):
        average_precision([1.0, 2.0], [False, False])
    with pytest.raises(ValueError, match="both"):
        roc_auc([1.0, 2.0], [True, True])
    with pytest.raises(ValueError, match="finite"):
        roc_auc([1.0, np.nan], [True, False])
    with pytest.raises(ValueError, match="one shape"):
        average_precision([1.0], [True, False])


def test_retrieval_leaves_the_query_out() -> None:
    similarity = np.array([[1, 0.9, 0.1, 0], [0.9, 1, 0.2, 0], [0.1, 0.2, 1, 0.3], [0, 0, 0.3, 1.0]])
    mean_precision, auc = retrieval(similarity, ["a", "a", "b", "b"])
    assert mean_precision == 1
    assert auc == 1
    assert retrieval(1 - similarity, ["a", "a", "b", "b"])[1] == 0
    lonely, _ = retrieval(similarity, ["a", "a", "b", "c"])  # b and c have no positive: only a's photos query
    assert lonely == 1
