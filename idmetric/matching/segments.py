"""Segments of a clip, by the table of distances between its frames: where it shows something else.

A clip that stands, pans or zooms has small steps from frame to frame, a slow drift has many alike, and both are one
segment. A segment ends where a step is much larger than the ones around it, and the frames before differ from the ones
after. The settings were chosen with IDSim("tiny") on clips made of photos, and checked with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
OTHER_SUBJECT = 0.35  # the distance of two subjects, where no threshold is known
OTHER_CONTENT = 0.15  # that of two segments without a cut between them
_ROUNDING = 1e-6
_OUTSTANDING = 3.0  # a step is so many times the usual one around it
_GRADUAL = 10.0  # a change without one large step is
_APART = 2.0  # the distance of two segments is so many times the one within each
_SHARE = 0.5  # of the distance of two segments, the step is at least
_SAME_AGAIN = 0.75  # of the distance to the segment before, an earlier one is nearer if it shows the same
_IN_BETWEEN = 0.75  # of the distance of its neighbors, a frame of a transition is nearer to one of them


@dataclass(frozen=True)
class Jump:
    """Where one segment ends and the next begins; frames between the two are a transition.

    Attributes:
        before: the position of the last frame of the one. after: that of the first frame of the next.
    """

    before: int
    after: int


def table_of(features: Sequence[Array]) -> Array:
    """Distances 1 - cos (N, N) of frames to each other, by their features (D,) of unit length."""
    if not features:
        return np.empty((0, 0))
    vectors = np.array(features)
    return zero_if_equal(1 - vectors @ vectors.T)


def zero_if_equal(distances: Array) -> Array:
    """Distances 1 - cos, with 0 for what rounding leaves of equal float32 features, about 1e-7 of either sign."""
    return np.where(distances < _ROUNDING, 0, distances)  # NaN stays


def jumps(distances: Array, is_cut: Sequence[bool], limit: float) -> list[Jump]:
    """The ends of the segments of a clip.

    Args:
        distances: (N, N) of its frames to each other. is_cut: (N,), whether a frame differs from the one before as
            after a cut; all of the picture changes there, so that the segments must be two subjects.
        limit: the largest distance of one subject.
    """
    candidates = _joined(distances, _outstanding_steps(distances))
    while candidates:
        blocks = segments(candidates, len(distances))
        strengths = []
        for number, jump in enumerate(candidates):
            needed = OTHER_CONTENT
            if any(is_cut[jump.before + 1 : jump.after + 1]):
                needed = limit
            strengths.append(_strength(distances, blocks[number], blocks[number + 1], jump, needed))
        weakest = int(np.argmin(strengths))
        if strengths[weakest] >= 1:
            break
        del candidates[weakest]
    return candidates


def is_drift(distances: Array, jump: Jump, sequence: Array) -> bool:
    """Whether the frames of a jump change step by step, as the ones around it do.

    Args:
        distances: (N, N) of the frames in use. sequence: (M, M) of all frames from the jump's last to its first one.
    """
    across = sequence[0, -1]
    steps = np.diag(sequence, 1)
    if steps.max() >= _SHARE * across:
        return False
    return bool(across < _GRADUAL * _usual_step(distances, jump))


def turning_point(sequence: Array) -> int:
    """The last frame of a sequence that is nearer to the first one than to the last one.

    Args:
        sequence: distances (M, M) of two frames or more to each other.
    """
    is_nearer = sequence[0, :-1] < sequence[:-1, -1]
    return int(np.flatnonzero(is_nearer).max(initial=0))


def segments(ends: Sequence[Jump], count: int) -> list[slice]:
    """The frames of each segment, without the ones of transitions."""
    starts = [0, *(jump.after for jump in ends)]
    stops = [*(jump.before + 1 for jump in ends), count]
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]


def names_of_segments(distances: Array, blocks: Sequence[slice], limit: float) -> list[str]:
    """A letter for each segment; one that shows again what an earlier one showed has its letter."""
    letters: list[str] = []
    for number, block in enumerate(blocks):
        letter = _letter(len(set(letters)))
        if number:
            to_previous = between_segments(distances, blocks[number - 1], block)
            to_earlier = [between_segments(distances, earlier, block) for earlier in blocks[: number - 1]]
            nearest = int(np.argmin(to_earlier)) if to_earlier else -1
            if nearest >= 0 and to_earlier[nearest] <= min(limit, _SAME_AGAIN * to_previous):
                letter = letters[nearest]
        letters.append(letter)
    return letters


def between_segments(distances: Array, segment: slice, next_segment: slice) -> float:
    """The mean distance of the frames of two segments."""
    return float(distances[segment, next_segment].mean())


def _outstanding_steps(distances: Array) -> list[Jump]:
    """The steps from frame to frame that are larger than the usual ones around them."""
    steps = []
    for frame in range(len(distances) - 1):
        step = Jump(frame, frame + 1)
        if distances[frame, frame + 1] > _OUTSTANDING * _usual_step(distances, step):
            steps.append(step)
    return steps


def _usual_step(distances: Array, jump: Jump) -> float:
    """The lower median of the steps on both sides of a jump, up to a quarter of all on each; infinite without any."""
    steps = np.diag(distances, 1)
    reach = max(3, len(distances) // 4)
    before = steps[max(0, jump.before - reach) : jump.before]
    after = steps[jump.after : jump.after + reach]
    around = np.sort(np.concatenate([before, after]))
    if not len(around):
        return float("inf")
    return float(around[(len(around) - 1) // 2])


def _joined(distances: Array, steps: Sequence[Jump]) -> list[Jump]:
    """Join steps into one jump where the few frames between them are a mixture of both sides, as in a dissolve."""
    longest = max(1, len(distances) // 8)
    joined: list[Jump] = []
    for step in steps:
        while joined:
            wider = Jump(joined[-1].before, step.after)
            if wider.after - wider.before - 1 > longest or not _is_transition(distances, wider):
                break
            joined.pop()
            step = wider
        joined.append(step)
    return joined


def _is_transition(distances: Array, jump: Jump) -> bool:
    across = distances[jump.before, jump.after]
    inside = range(jump.before + 1, jump.after)
    to_nearer = [min(distances[jump.before, frame], distances[frame, jump.after]) for frame in inside]
    return bool(max(to_nearer) < _IN_BETWEEN * across)


def _strength(distances: Array, before: slice, after: slice, jump: Jump, needed: float) -> float:
    """How clearly a jump separates two segments; at least 1 if it does."""
    distance = between_segments(distances, before, after)
    within = max(_mean_within(distances, before), _mean_within(distances, after))
    step = distances[jump.before, jump.after]
    tiny = np.finfo(float).eps
    return float(min(distance / needed, distance / (_APART * within + tiny), step / (_SHARE * distance + tiny)))


def _mean_within(distances: Array, block: slice) -> float:
    """The mean distance of the frames of a segment to each other, 0 for a single one."""
    table = distances[block, block]
    rows, columns = np.triu_indices(len(table), 1)
    if not len(rows):
        return 0.0
    return float(table[rows, columns].mean())


def _letter(number: int) -> str:
    """A, B, ... Z, A1, B1, ..."""
    cycle, position = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[position] + (str(cycle) if cycle else "")
