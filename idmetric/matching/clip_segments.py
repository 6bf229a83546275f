"""What a clip shows over time, without references: its segments, its cuts, and its drift.

`idmetric.matching.segments` finds the segments in the table of distances of the frames in use. The frames within a
change may have been compared as well, for its exact time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from idmetric.matching.changes import Border
from idmetric.matching.clips import FrameInterval, Moment
from idmetric.matching.result import Array, Match
from idmetric.matching.segments import (
    Jump,
    between_segments,
    is_drift,
    jumps,
    names_of_segments,
    segments,
    table_of,
    turning_point,
)
from idmetric.matching.tracks import CUT, Motion
from idmetric.metric.files.tables import first_few, four
from idmetric.scoring.records import Record

SUBJECT_CHANGE_COLUMNS = (
    "clip",
    "from",
    "to",
    "distance",
    "last_image",
    "last_frame",
    "last_seconds",
    "first_image",
    "first_frame",
    "first_seconds",
    "exact",
)


@dataclass(frozen=True, eq=False)
class ImageGroup:
    """Images that are compared with each other.

    Attributes:
        clip: that the images are frames of; "" for still images.
        times: of the images that have a region, in the table. features: of each (D,).
        motion: of the clip.
    """

    clip: str
    times: list[int]
    features: list[Array]
    motion: Motion

    @cached_property
    def distances(self) -> Array:
        """The distances (N, N) of the images to each other."""
        return table_of(self.features)

    @cached_property
    def mean_to_others(self) -> Array:
        """The mean distance (N,) of each image to all others; 0 of a single one."""
        sums: Array = self.distances.sum(1) - self.distances.diagonal()
        return sums / max(1, len(self.times) - 1)


@dataclass(frozen=True)
class SubjectChange:
    """A clip changes its subject.

    Attributes:
        old_segment, new_segment: their letters.
        distance: the mean of all pairs of frames of the two segments.
    """

    old_segment: str
    new_segment: str
    border: Border
    distance: float

    @property
    def record(self) -> Record:
        """The columns `SUBJECT_CHANGE_COLUMNS`."""
        record = {
            "clip": self.border.after.clip,
            "from": self.old_segment,
            "to": self.new_segment,
            "distance": self.distance,
            **self.border.where,
        }
        return {name: record[name] for name in SUBJECT_CHANGE_COLUMNS}


@dataclass(frozen=True)
class ClipSegments:
    """What a clip shows over time.

    Attributes:
        moments: of the frames in use that have a region. to_first: the distance of each to the first one.
        changes: of the subject, in order of time. cuts: in order of time.
        limit: the largest distance of one subject.
    """

    moments: Sequence[Moment]
    to_first: Array
    changes: Sequence[SubjectChange]
    cuts: Sequence[Border]
    limit: float

    @property
    def first_to_last(self) -> float | None:
        """The distance of the first frame to the last one; None with fewer than two."""
        return float(self.to_first[-1]) if len(self.to_first) > 1 else None

    @property
    def verdict(self) -> str:
        """In words, whether and when the clip changes its subject."""
        if self.changes:
            return f"changes its subject {self._times}"
        if len(self.to_first) < 2:
            return "fewer than two frames"
        farthest = int(self.to_first.argmax())
        if self.to_first[-1] > self.limit:
            return f"no change of subject, but it drifts, first to last {four(float(self.to_first[-1]))}"
        if self.to_first[farthest] > self.limit:
            distance = four(float(self.to_first[farthest]))
            return f"no change of subject, but it drifts to {distance} from the first frame, at {self._at(farthest)}"
        return "no change of subject"

    @property
    def _times(self) -> str:
        letters = {"A"}
        parts = []
        for change in self.changes:
            text = f"{change.border.when}, distance {four(change.distance)}"
            if change.new_segment == "A":
                text += ", back to the first"
            elif change.new_segment in letters:
                text += ", back to an earlier one"
            letters.add(change.new_segment)
            parts.append(text)
        if len(parts) == 1:
            return parts[0]
        return f"{len(parts)} times: {'; '.join(parts)}"

    @property
    def notes_on_cuts(self) -> list[str]:
        """In words, when the picture changes: by cuts, and between frames in use, where it may be motion."""
        notes = []
        for is_exact, what in ((True, "cuts"), (False, "cuts or fast motion")):
            times = [cut.when for cut in self.cuts if cut.is_exact == is_exact]
            if times:
                notes.append(f"{what}: {', '.join(first_few(times, 6))}")
        return notes

    def _at(self, frame: int) -> str:
        return f"{self.moments[frame].seconds:.2f} s"


@dataclass(frozen=True)
class FrameFeature:
    """The feature of a frame's region.

    Attributes:
        difference: from the frame that was compared before it, see `Match.frame_differences`.
    """

    moment: Moment
    feature: Array
    difference: float


def changing_intervals(result: Match, limit: float) -> list[FrameInterval]:
    """The parts of clips in which the subject changes, with their first and last frame.

    Args:
        result: a match without subjects. limit: the largest distance of one subject.
    """
    intervals = []
    for clip, frames in _frames_of_clips(result).items():
        for jump in _jumps(frames, limit):
            before, after = frames[jump.before].moment.frame, frames[jump.after].moment.frame
            if after > before + 1:
                intervals.append(FrameInterval(clip, before - 1, after + 1))
    return intervals


def clip_segments(samples: Match, between: Match | None, limit: float) -> dict[str, ClipSegments]:
    """What each clip shows over time.

    Args:
        samples: a match without subjects. between: that of all frames in the parts of clips that `changing_intervals`
            gives.
        limit: the largest distance of one subject.
    """
    frames_between = {} if between is None else _frames_of_clips(between)
    timelines = {}
    for clip in samples.times_of_clips:
        frames = _frames_of_clips(samples).get(clip, [])
        timelines[clip] = _segments_of_clip(frames, frames_between.get(clip, []), limit)
    return timelines


def _frames_of_clips(result: Match) -> dict[str, list[FrameFeature]]:
    """The frames of each clip that have a region."""
    frames_of_clips: dict[str, list[FrameFeature]] = {}
    for time, moment in enumerate(result.table.moments):
        features = result.region_features(0, time)
        if moment.clip and len(features):
            frame = FrameFeature(moment, features[0], result.frame_differences[time])
            frames_of_clips.setdefault(moment.clip, []).append(frame)
    return frames_of_clips


def _jumps(frames: Sequence[FrameFeature], limit: float) -> list[Jump]:
    distances = table_of([frame.feature for frame in frames])
    is_cut = [frame.difference > CUT for frame in frames]
    return jumps(distances, is_cut, limit)


def _segments_of_clip(
    samples: Sequence[FrameFeature], further_frames: Sequence[FrameFeature], limit: float
) -> ClipSegments:
    distances = table_of([frame.feature for frame in samples])
    ends = []
    borders = []
    for jump in _jumps(samples, limit):
        sequence = _sequence(samples, further_frames, jump)
        sequence_distances = table_of([frame.feature for frame in sequence])
        if len(sequence) > 2 and is_drift(distances, jump, sequence_distances):
            continue
        turn = turning_point(sequence_distances)
        ends.append(jump)
        borders.append(Border(sequence[turn].moment, sequence[turn + 1].moment))

    blocks = segments(ends, len(samples))
    letters = names_of_segments(distances, blocks, limit)
    changes = []
    for number, border in enumerate(borders):
        distance = between_segments(distances, blocks[number], blocks[number + 1])
        changes.append(SubjectChange(letters[number], letters[number + 1], border, distance))
    return ClipSegments(
        moments=[frame.moment for frame in samples],
        to_first=distances[0] if len(samples) else np.empty(0),
        changes=changes,
        cuts=_cuts(samples, further_frames),
        limit=limit,
    )


def _sequence(
    samples: Sequence[FrameFeature], further_frames: Sequence[FrameFeature], jump: Jump
) -> list[FrameFeature]:
    """All frames from the last one before a jump to the first one after it, in order."""
    by_number = {frame.moment.frame: frame for frame in samples[jump.before : jump.after + 1]}
    start, end = samples[jump.before].moment.frame, samples[jump.after].moment.frame
    for frame in further_frames:
        if start < frame.moment.frame < end:
            by_number[frame.moment.frame] = frame
    return [by_number[number] for number in sorted(by_number)]


def _cuts(samples: Sequence[FrameFeature], further_frames: Sequence[FrameFeature]) -> list[Border]:
    """The cuts between frames in use; at their exact frames where all frames between were compared."""
    exact: dict[int, Border] = {}  # by the first frame after the cut
    for before, after in pairwise(further_frames):
        border = Border(before.moment, after.moment)
        if border.is_exact and after.difference > CUT:
            exact[after.moment.frame] = border

    cuts = []
    for before, after in pairwise(samples):
        if not after.difference > CUT:  # also NaN
            continue
        start, end = before.moment.frame, after.moment.frame
        inside = [border for frame, border in exact.items() if start < frame <= end]
        cuts += inside or [Border(before.moment, after.moment)]
    return cuts
