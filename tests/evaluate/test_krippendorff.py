from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest

from idmetric.evaluate.krippendorff import krippendorff_alpha


def counts(*observers: str) -> list[list[int]]:
    """Votes (items, categories) of observers' values, one character for each item; * is missing."""
    values = sorted(set("".join(observers)) - {"*"})
    return [[item.count(value) for value in values] for item in zip(*observers, strict=True)]


# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), examples A, B and C. By hand, from the matrix of
# coincidences: alpha = ((n - 1) sum o_cc - sum n_c (n_c - 1)) / (n (n - 1) - sum n_c (n_c - 1))
EXAMPLES = {
    "binary": (("0100000010", "1110010000"), 0.095, (20, 12, 14 * 13 + 6 * 5)),
    "nominal": (("aabbdcccedda", "babbbccceddd"), 0.692, (24, 18, 4 * 3 + 6 * 5 + 6 * 5 + 6 * 5 + 2 * 1)),
    "missing": (
        ("123321412***", "1233224125*3", "*3332342251*", "1233244125" + "1*"),
        0.743,
        (40, 7 + 10 + 8 + 4 + 3, 9 * 8 + 13 * 12 + 10 * 9 + 5 * 4 + 3 * 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_alpha_is_that_of_the_published_examples(name: str) -> None:
    observers, published, (n, agreeing, by_value) = EXAMPLES[name]
    by_hand = ((n - 1) * agreeing - by_value) / (n * (n - 1) - by_value)
    assert krippendorff_alpha(counts(*observers)) == pytest.approx(by_hand, abs=1e-12)
    assert by_hand == pytest.approx(published, abs=5e-4)


def slowly(votes: Sequence[Sequence[int]]) -> float:
    """1 - observed over expected disagreement, by every ordered pair of votes."""
    items = [[c for c, n in enumerate(row) for _ in range(n)] for row in votes]
    items = [values for values in items if len(values) > 1]
    everyone = [value for values in items for value in values]
    observed = sum(
        sum(a != b for a, b in permutations(values, 2)) / (len(values) - 1) for values in items
    ) / len(everyone)  # fmt: skip
    pairs = list(permutations(everyone, 2))
    return 1 - observed / (sum(a != b for a, b in pairs) / len(pairs))


def test_alpha_equals_the_loop_over_pairs_of_votes() -> None:
    rng = np.random.default_rng(0)
    for categories in (2, 3, 5):
        for _ in range(20):
            votes = rng.integers(0, 4, (12, categories))
            assert krippendorff_alpha(votes) == pytest.approx(slowly(votes.tolist()), abs=1e-12)


def test_agreement_is_one_and_opposite_votes_are_below_zero() -> None:
    assert krippendorff_alpha([[3, 0], [0, 5], [2, 0]]) == 1
    assert krippendorff_alpha([[1, 1]] * 6) < 0


def test_items_with_fewer_than_two_votes_do_not_count() -> None:
    votes = [[3, 0], [1, 2], [0, 3]]
    assert krippendorff_alpha([*votes, [1, 0], [0, 0]]) == krippendorff_alpha(votes)


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        ([[1, 0], [0, 1]], "an item with two votes"),
        ([[2, 0], [3, 0]], "all votes are for one category"),
        ([[np.nan, 2]], "finite"),
        ([1, 2], "2 dimensions"),
    ],
)
def test_undefined_votes_are_refused(votes: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        krippendorff_alpha(votes)
