"""Who is where: assignment, states and unknown regions of one image."""

import itertools

import numpy as np
import pytest

from idmetric.matching.assignment import UNASSIGNED, assign, assigned, counted

RIGHT = 1 - np.array([[0.80, 0.45], [0.42, 0.78]])


@pytest.mark.parametrize(
    ("similarity", "states", "unknown"),
    [
        ([[0.80, 0.45], [0.42, 0.78]], ("matched", "matched"), ()),
        ([[0.45, 0.80], [0.78, 0.42]], ("matched", "matched"), ()),
        ([[0.80], [0.42]], ("matched", "missing"), ()),
        ([[0.80, 0.79], [0.42, 0.41]], ("twice", "missing"), ()),
        ([[0.62], [0.60]], ("matched", "missing"), ()),
        ([[0.80, 0.45, 0.1], [0.42, 0.78, 0.2]], ("matched", "matched"), (2,)),
        ([[0.2, 0.1], [0.1, 0.2]], ("missing", "missing"), (0, 1)),
        ([[0.62, 0.1], [0.60, 0.1]], ("matched", "missing"), (1,)),
    ],
    ids=[
        "right",
        "exchanged",
        "one missing",
        "twice",
        "one region of two",
        "a third region",
        "two strangers",
        "one region of two, one more",
    ],
)
def test_states(similarity, states, unknown):
    result = assigned(1 - np.array(similarity), [0.5, 0.5])
    assert result.states == states
    assert result.unknown == unknown


def test_look_alikes_are_matched_where_each_has_a_region_of_its_own():
    result = assigned(RIGHT, [0.6, 0.6])  # both regions are within both thresholds
    assert result.states == ("matched", "matched")
    assert result.region.tolist() == [0, 1]


def test_a_second_region_of_a_subject_is_no_double_if_it_is_another_subject():
    result = assigned([[0.1, 0.3, 0.35], [0.9, 0.2, 0.9]], [0.4, 0.4])
    assert result.states == ("twice", "matched")
    assert assigned([[0.1, 0.3], [0.9, 0.2]], [0.4, 0.4]).states == ("matched", "matched")


@pytest.mark.parametrize("threshold", [0.36, 0.4])
def test_a_subject_that_is_there_twice_does_not_stand_for_its_look_alike(threshold):
    # both regions are within both thresholds, and at least twice as far from the second subject
    result = assigned([[0.10, 0.14], [0.30, 0.28]], [threshold, threshold])
    assert result.states == ("twice", "missing")
    assert result.unknown == ()
    alone = assigned([[0.10], [0.30]], [threshold, threshold])
    assert alone.states == ("matched", "missing")
    assert alone.unknown == ()


def test_of_three_look_alikes_each_at_its_own_region_all_are_matched():
    distances = np.full((3, 3), 0.3)
    np.fill_diagonal(distances, 0.1)
    assert assigned(distances[:, ::-1], [0.4, 0.4, 0.4]).states == ("matched", "matched", "matched")


def test_a_region_counts_as_all_subjects_that_are_a_fifth_farther_than_the_nearest_one_at_most():
    limits = np.array([0.4, 0.4])

    def count(distance, further, **margin):
        return counted(np.array([[distance], [further]]), limits, **margin).ravel().tolist()

    assert count(0.25, 0.3) == [True, True]  # the bound: 1.2 x 0.25
    assert count(0.25, 0.301) == [True, False]
    assert count(0.25, 0.375, margin=0.5) == [True, True]
    assert count(0.25, 0.375, margin=0.25) == [True, False]


def test_a_subject_beyond_its_threshold_takes_no_region_from_another():
    # the second subject is nearer, but too far by its own threshold; the third has none
    result = assigned([[0.30], [0.15], [0.10]], [0.36, 0.10, np.nan])
    assert result.states == ("matched", "missing", "")
    assert result.region.tolist() == [0, UNASSIGNED, UNASSIGNED]


def test_a_region_counts_where_it_was_compared():
    counts = counted(np.array([[0.1, np.nan], [np.nan, 0.2], [0.11, 0.3]]), np.array([0.4, 0.4, 0.4]))
    assert counts.tolist() == [[True, False], [False, True], [True, False]]


def test_as_many_subjects_as_possible_are_within_their_threshold():
    # the least sum of distances, 0.1 + 0.9, would leave the second subject beyond its threshold
    distances = np.array([[0.1, 0.38], [0.35, 0.9]])
    region = assign(distances, distances <= 0.4)
    assert region.tolist() == [1, 0]


def test_a_pair_that_was_not_compared_takes_no_subject_from_the_region_within_its_threshold():
    # the first subject's other region is far, and the second one's was not compared
    result = assigned([[0.1, 0.9], [0.8, np.nan]], [0.3, 0.3])
    assert result.region.tolist() == [0, UNASSIGNED]
    assert result.states == ("matched", "missing")


def test_assignment_is_the_best_of_all_permutations():
    rng = np.random.default_rng(0)
    for _ in range(20):
        distances = rng.uniform(0, 1, (3, 4))
        region = assign(distances, np.ones_like(distances, dtype=bool))
        best = min(sum(distances[range(3), chosen]) for chosen in itertools.permutations(range(4), 3))
        assert distances[range(3), region].sum() == pytest.approx(best)


def test_pairs_within_their_threshold_come_first_whatever_was_compared():
    rng = np.random.default_rng(1)
    for _ in range(200):
        distances = rng.uniform(0, 1, (3, 4))
        distances[rng.uniform(size=(3, 4)) < 0.4] = np.nan
        within = distances <= 0.4
        ranks = []
        for chosen in itertools.permutations(range(4), 3):
            pairs = (range(3), chosen)
            compared = int(np.isfinite(distances[pairs]).sum())
            ranks.append((-int(within[pairs].sum()), -compared, np.nansum(distances[pairs])))
        region = assign(distances, within)
        subjects = np.flatnonzero(region != UNASSIGNED)
        pairs = (subjects, region[subjects])
        rank = (-int(within[pairs].sum()), -len(subjects), distances[pairs].sum())
        assert rank == pytest.approx(min(ranks))


def test_rounding_does_not_choose_between_two_copies_of_a_region():
    noise = [1e-8, -1e-8]
    both = [assigned([[0.1, 0.1 + e], [0.9, 0.9 - e]], [0.4, 0.4]).region.tolist() for e in noise]
    assert both[0] == both[1]


def test_subjects_that_were_not_compared_are_not_assigned():
    region = assign(np.array([[np.nan, 0.2], [np.nan, 0.1]]), np.ones((2, 2), dtype=bool))
    assert region.tolist() == [UNASSIGNED, 1]


def test_without_thresholds_there_are_no_states_and_no_unknown_regions():
    result = assigned(np.hstack([RIGHT, [[0.9], [0.9]]]), [np.nan, 0.5])
    assert result.states == ("", "matched")
    assert result.unknown == ()
    assert result.region.tolist() == [0, 1]


def test_the_cast_is_assigned_first_and_others_are_unexpected_or_absent():
    # the second subject is nearer to the only region, which the first one, of the cast, takes
    assert assigned([[0.3], [0.1]], [0.4, 0.4], [True, False]).states == ("matched", "absent")
    assert assigned([[0.3, 0.9], [0.9, 0.1]], [0.4, 0.4], [True, False]).states == ("matched", "unexpected")
    assert assigned([[0.9, 0.9], [0.9, 0.1]], [0.4, 0.4], [True, False]).states == ("missing", "unexpected")
    assert assigned([[0.9], [0.9]], [0.4, 0.4], [False, False]).states == ("absent", "absent")


def test_an_image_without_regions():
    result = assigned(np.empty((2, 0)), [0.5, np.nan])
    assert result.states == ("missing", "")
    assert result.region.tolist() == [UNASSIGNED, UNASSIGNED]
