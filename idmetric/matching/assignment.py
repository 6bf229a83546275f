"""Which region shows which subject: assignment by distances, and the states that follow from thresholds.

Of one image, `distances` are (subjects, regions), NaN where the two were not compared. A subject's threshold is the
largest distance at which a region can count as this subject; NaN where none is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.ties import comparable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]
State = Literal["matched", "missing", "twice", "unexpected", "absent", "unknown", ""]
FOUND: tuple[State, ...] = ("matched", "twice", "unexpected")
UNASSIGNED = -1
MARGIN = 0.2  # see `counted`; chosen by benchmarks/states.py
_BEYOND = 1e6  # added to the cost of pairs beyond their threshold; it outweighs all of the rest
_NOT_COMPARED = _BEYOND + 1e3  # distances are at most 2


@dataclass(frozen=True)
class Assignment:
    """The regions of one image, assigned to subjects.

    Attributes:
        region: of each subject (S,), the region that it is assigned to, or `UNASSIGNED`.
        states: of each subject, see `state_of`; "" without a threshold. Of a subject outside the image's cast
            "unexpected" if it is in the image all the same, else "absent".
        unknown: the regions that count as no subject; none where a subject has no threshold.
        within: (S, R), whether a region counts as a subject, see `counted`.
    """

    region: Integers
    states: tuple[State, ...]
    unknown: tuple[int, ...]
    within: Bools


def assigned(
    distances: ArrayLike,
    thresholds: ArrayLike,
    cast: ArrayLike | None = None,
    *,
    margin: float = MARGIN,
) -> Assignment:
    """Assign the regions of one image to subjects.

    Args:
        distances: (S, R), NaN where subject and region were not compared.
        thresholds: (S,), NaN where a subject has none.
        cast: (S,), whether a subject should be in the image; default all. The cast is assigned first, and the other
            subjects are looked for in the remaining regions.
        margin: see `counted`.
    """
    matrix = np.asarray(distances, dtype=np.float64)
    limits = np.asarray(thresholds, dtype=np.float64)
    is_member = np.ones(len(limits), dtype=bool)
    if cast is not None:
        is_member = np.asarray(cast, dtype=bool)
    region, states, within = _of_cast(matrix, limits, is_member, margin)
    has_no_limit = np.isnan(limits)
    for subject in np.flatnonzero(has_no_limit):
        states[subject] = ""

    unknown: list[int] = []
    if not has_no_limit.any():
        is_known = within.any(0)
        unknown = np.flatnonzero(~is_known).tolist()
    return Assignment(region, tuple(states), tuple(unknown), within)


def _of_cast(
    distances: Floats, thresholds: Floats, is_member: Bools, margin: float
) -> tuple[Integers, list[State], Bools]:
    """Region and state of each subject: first of the cast, then of the other subjects in the regions left over.

    A member gets its region whatever subjects outside the cast look like; a further region counts as the member only
    if it is not clearly nearer to one of them.

    Returns:
        The region (S,) and the state of each subject, and whether each region counts as it (S, R).
    """
    region = np.full(len(distances), UNASSIGNED, dtype=np.int64)
    states: list[State] = ["absent"] * len(distances)
    members = np.flatnonzero(is_member)
    within = counted(distances, thresholds, margin)
    member_within = counted(distances[members], thresholds[members], margin)
    region[members] = assign(distances[members], member_within)
    columns = np.arange(distances.shape[1])
    is_assigned = region[members, None] == columns
    member_within &= is_assigned | within[members]
    within[members] = member_within

    for number, subject in enumerate(members):
        states[subject] = state_of(number, member_within, region[members])

    is_taken = member_within.any(0)  # a region that a member explains, as its own or as a further one
    outsiders = np.flatnonzero(~is_member)
    within_rest = within[outsiders] & ~is_taken
    distances_rest = np.where(within_rest, distances[outsiders], np.nan)
    assigned_rest = assign(distances_rest, within_rest)
    for subject, column in zip(outsiders, assigned_rest, strict=True):
        if column != UNASSIGNED:
            region[subject] = column
            states[subject] = "unexpected"
    return region, states, within


def counted(distances: Floats, thresholds: Floats, margin: float = MARGIN) -> Bools:
    """Whether a region counts as a subject: within the subject's threshold, and not clearly nearer to another one.

    Of the subjects within whose thresholds a region is, it counts as the nearest one, and as each one that is at most
    1 + margin times as far. One of two look-alikes is then not taken for the other.

    Args:
        distances: (S, R). thresholds: (S,). Where one is NaN, the region does not count.

    Returns:
        Shape (S, R).
    """
    within = distances <= thresholds[:, None]
    candidates = np.where(within, distances, np.inf)
    nearest = candidates.min(0, initial=np.inf)
    farthest = (1 + margin) * nearest
    counts: Bools = within & (distances <= farthest)
    return counts


def assign(distances: Floats, within: Bools) -> Integers:
    """Assign at most one region to each subject, and at most one subject to each region.

    As many pairs as possible count (see `counted`), and of these assignments the one with the least sum of
    distances is taken (`scipy.optimize.linear_sum_assignment`).

    Args:
        within: (S, R), see `counted`.

    Returns:
        The region of each subject (S,), `UNASSIGNED` for subjects that are left over.
    """
    from scipy.optimize import linear_sum_assignment

    compared = ~np.isnan(distances)
    distances = comparable(distances)  # rounding must not choose between two copies of a region
    cost = distances.copy()
    cost[~within] += _BEYOND
    cost[~compared] = _NOT_COMPARED
    subjects, regions = linear_sum_assignment(cost)

    region = np.full(len(distances), UNASSIGNED, dtype=np.int64)
    for subject, column in zip(subjects, regions, strict=True):
        if compared[subject, column]:
            region[subject] = column
    return region


def state_of(subject: int, within: Bools, region: Integers) -> State:
    """The state of a subject with a threshold.

    Regions that are assigned to another subject, and count as that one, are explained by it and left out.

    - missing: no region counts as the subject.
    - twice: two regions or more count as it.
    - matched: exactly one does.

    Args:
        within: (S, R), see `counted`. region: see `assign`.
    """
    candidates = within[subject].copy()
    if not candidates.any():
        return "missing"
    subjects = np.arange(len(within))
    is_within = within[subjects, region]
    is_assigned = region != UNASSIGNED
    is_another = subjects != subject
    is_explained = is_assigned & is_within & is_another
    candidates[region[is_explained]] = False

    count = int(candidates.sum())
    if count == 0:
        return "missing"
    if count > 1:
        return "twice"
    return "matched"
